"""The official Python SDK of OpenAI runs against the daemon as it would against OpenAI."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from edge_client.formats.dialect import KEEP_ALIVE
from tests.edge_client.api.served import TOKEN, Served, served
from tests.edge_client.api.world import alone

if TYPE_CHECKING:
    from openai import AsyncOpenAI

pytestmark = [pytest.mark.api, pytest.mark.grpc, pytest.mark.sdk]


@contextlib.asynccontextmanager
async def client(step_time: float = 0.0, token: str = TOKEN) -> AsyncIterator[AsyncOpenAI]:
    async with served(step_time=step_time) as found, sdk_of(found, token) as made:
        yield made


def sdk_of(found: Served, token: str = TOKEN) -> AsyncOpenAI:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=found.url, api_key=token, max_retries=0)


ABC: Any = [{"role": "user", "content": "abc"}]
TINY: Any = {"model": "tiny", "temperature": 0, "max_tokens": 20}


async def test_texts_and_models() -> None:
    async with client() as openai:
        chat = await openai.chat.completions.create(
            **TINY, messages=ABC, extra_body={"forerun": {"speculate": False}, "top_k": 0}
        )
        whole = await openai.completions.create(**TINY, prompt="abc")
        stream = await openai.completions.create(**TINY, prompt=[1, 2, 3], stream=True)
        pieces = [chunk.choices[0].text async for chunk in stream]
        models = [model.id async for model in openai.models.list()]
        one = await openai.models.retrieve("tiny@tiny-draft")
    assert chat.choices[0].message.content == alone()
    assert chat.usage is not None
    assert chat.model_extra is not None
    ours = chat.model_extra["forerun"]
    assert (ours["mode"], ours["tokens"]) == ("server-only", chat.usage.completion_tokens)
    assert whole.choices[0].text == "".join(pieces) == alone()
    assert models == ["tiny@tiny-draft", "tiny", "tiny-draft", "default"]
    assert one.owned_by == "forerun"


async def test_errors_are_the_sdks_own() -> None:
    import openai as sdk

    async with client() as openai:
        create = openai.chat.completions.create
        with pytest.raises(sdk.BadRequestError) as wrong:
            await create(model="tiny", messages=ABC, temperature=-1)
        with pytest.raises(sdk.NotFoundError) as unknown:
            await create(model="gpt-4", messages=ABC)
        with pytest.raises(sdk.BadRequestError) as unsupported:
            await create(model="tiny", messages=ABC, modalities=["audio"])
        with pytest.raises(sdk.NotFoundError):
            await openai.embeddings.create(model="tiny", input="abc")
        lossy = {"forerun": {"acceptance": "typical"}}
        stream = await create(model="default", messages=ABC, stream=True, extra_body=lossy)
        with pytest.raises(sdk.APIError, match="typical is not allowed"):
            async for _ in stream:
                pass
    assert (wrong.value.param, wrong.value.type) == ("temperature", "invalid_request_error")
    assert unknown.value.code == "model_not_found"
    assert unsupported.value.code == "unsupported_parameter"
    async with client(token="wrong") as openai:
        with pytest.raises(sdk.AuthenticationError, match="is not this daemon's"):
            await openai.models.list()


def test_the_sdks_decoder_makes_no_event_of_a_comment() -> None:
    from openai._streaming import SSEDecoder

    stream = b"id: 1\ndata: {}\n\n" + KEEP_ALIVE + KEEP_ALIVE + b"id: 2\ndata: [DONE]\n\n"
    assert [event.data for event in SSEDecoder().iter_bytes(iter([stream]))] == ["{}", "[DONE]"]


async def test_a_client_that_goes_away_ends_its_text() -> None:
    """The world checks at its end that no text is left and no slot of the verifier is held."""
    long: Any = {**TINY, "max_tokens": 400, "messages": ABC, "extra_body": {"ignore_eos": True}}
    async with client(step_time=0.01) as openai:
        stream = await openai.chat.completions.create(**long, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        whole = asyncio.create_task(openai.chat.completions.create(**long))
        await asyncio.sleep(0.05)
        whole.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await whole
