"""The official Python SDK of OpenAI runs against the daemon as it would against OpenAI."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from edge_client.api.telling import KEEP_ALIVE
from tests.edge_client.api.served import TOKEN, Served, served
from tests.edge_client.api.world import World, alone

if TYPE_CHECKING:
    from openai import AsyncOpenAI

pytestmark = [pytest.mark.api, pytest.mark.grpc, pytest.mark.sdk]

GREEDY = {"temperature": 0.0, "max_tokens": 20}


@contextlib.asynccontextmanager
async def client(step_time: float = 0.0, token: str = TOKEN) -> AsyncIterator[AsyncOpenAI]:
    async with served(step_time=step_time) as found, sdk_of(found, token) as made:
        yield made


def sdk_of(found: Served, token: str = TOKEN) -> AsyncOpenAI:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=found.url, api_key=token, max_retries=0)


async def test_chat() -> None:
    async with client() as openai:
        found = await openai.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "abc"}], temperature=0, max_tokens=20
        )
    assert found.choices[0].message.content == alone()
    assert found.usage is not None
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert found.model_extra is not None
    assert found.model_extra["forerun"]["tokens"] == found.usage.completion_tokens


async def test_chat_streamed_with_usage() -> None:
    async with client() as openai:
        stream = await openai.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "abc"}],
            temperature=0,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == alone()
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons.count(None) == len(reasons) - 1


async def silent_for_a_while(world: World, stack: contextlib.AsyncExitStack) -> None:
    """Let a named stream wait for a seat until keep-alive comments have come, then let it write."""
    streams = world.api.streams.store
    while (stream := streams.get("talk")) is None or stream.replay.total_bytes < 1000:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await stack.aclose()


async def test_a_stream_that_is_silent_for_a_while_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_client.api.telling.KEEP_ALIVE_TIME", 0.001)
    async with served() as found, contextlib.AsyncExitStack() as stack:
        openai = await stack.enter_async_context(sdk_of(found))
        seats = await stack.enter_async_context(contextlib.AsyncExitStack())
        admission = found.world.device.admission
        for _ in range(admission.seats):
            await seats.enter_async_context(admission.place("somebody"))
        silence = asyncio.create_task(silent_for_a_while(found.world, seats))
        stream = await openai.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "abc"}],
            temperature=0,
            max_tokens=20,
            stream=True,
            extra_headers={"X-Conversation-Id": "talk"},
        )
        chunks = [chunk async for chunk in stream]
        await silence
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == alone()


def test_the_sdks_decoder_makes_no_event_of_a_comment() -> None:
    from openai._streaming import SSEDecoder

    stream = b"id: 1\ndata: {}\n\n" + KEEP_ALIVE + KEEP_ALIVE + b"id: 2\ndata: [DONE]\n\n"
    assert [event.data for event in SSEDecoder().iter_bytes(iter([stream]))] == ["{}", "[DONE]"]


async def test_the_sdks_own_stream_helper_rebuilds_the_answer() -> None:
    async with (
        client() as openai,
        openai.chat.completions.stream(
            model="tiny", messages=[{"role": "user", "content": "abc"}], temperature=0, max_tokens=20
        ) as stream,
    ):
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content == alone()


async def test_completion_whole_and_streamed() -> None:
    async with client() as openai:
        whole = await openai.completions.create(model="tiny", prompt="abc", temperature=0, max_tokens=20)
        stream = await openai.completions.create(
            model="tiny", prompt=[1, 2, 3], temperature=0, max_tokens=20, stream=True
        )
        pieces = [chunk.choices[0].text async for chunk in stream]
    assert whole.choices[0].text == "".join(pieces) == alone()


async def test_models() -> None:
    async with client() as openai:
        found = [model.id async for model in openai.models.list()]
        one = await openai.models.retrieve("tiny@tiny-draft")
    assert found == ["tiny@tiny-draft", "tiny", "tiny-draft", "default"]
    assert one.owned_by == "forerun"


async def test_errors_are_the_sdks_own() -> None:
    import openai as sdk

    async with client() as openai:
        create = openai.chat.completions.create
        with pytest.raises(sdk.BadRequestError) as wrong:
            await create(model="tiny", messages=[{"role": "user", "content": "abc"}], temperature=-1)
        with pytest.raises(sdk.NotFoundError) as unknown:
            await create(model="gpt-4", messages=[{"role": "user", "content": "abc"}])
        with pytest.raises(sdk.BadRequestError) as unsupported:
            await create(model="tiny", messages=[{"role": "user", "content": "abc"}], n=2)
        with pytest.raises(sdk.NotFoundError):
            await openai.embeddings.create(model="tiny", input="abc")
    assert (wrong.value.param, wrong.value.type) == ("temperature", "invalid_request_error")
    assert unknown.value.code == "model_not_found"
    assert unsupported.value.code == "unsupported_parameter"


async def test_a_wrong_key_is_an_authentication_error() -> None:
    import openai as sdk

    async with client(token="wrong") as openai:
        with pytest.raises(sdk.AuthenticationError, match="is not this daemon's"):
            await openai.models.list()


async def test_an_error_in_a_stream_is_raised_from_it() -> None:
    import openai as sdk

    async with client() as openai:
        stream = await openai.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "abc"}],
            stream=True,
            extra_body={"forerun": {"acceptance": "typical"}},
        )
        with pytest.raises(sdk.APIError, match="typical is not allowed"):
            async for _ in stream:
                pass


async def test_our_own_object_goes_through_the_sdk() -> None:
    async with client() as openai:
        found = await openai.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "abc"}],
            extra_body={"forerun": {"speculate": False}, "top_k": 3, "min_p": 0.01},
        )
    assert found.model_extra is not None
    assert found.model_extra["forerun"]["mode"] == "server-only"


async def test_a_client_that_goes_away_ends_its_text() -> None:
    """The world checks at its end that no text is left and no slot of the verifier is held."""
    async with client(step_time=0.01) as openai:
        stream = await openai.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "abc"}],
            max_tokens=400,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        whole = asyncio.create_task(
            openai.chat.completions.create(
                model="default",
                messages=[{"role": "user", "content": "abc"}],
                max_tokens=400,
                extra_body={"ignore_eos": True},
            )
        )
        await asyncio.sleep(0.05)
        whole.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await whole
