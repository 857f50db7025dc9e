"""The official Python SDKs run against the daemon as they would against OpenAI and Anthropic.

What they read of texts, calls and responses is in tests/clients.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from edge_client.formats.dialect import KEEP_ALIVE
from tests.edge_client.api.served import TOKEN, served
from tests.edge_client.api.world import alone

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

pytestmark = [pytest.mark.api, pytest.mark.grpc, pytest.mark.sdk]

ABC: Any = [{"role": "user", "content": "abc"}]
TINY: Any = {"model": "tiny", "max_tokens": 20, "messages": ABC, "extra_body": {"temperature": 0}}
LOSSY: Any = {**TINY, "extra_body": {"forerun": {"acceptance": "typical"}}}
"""The verifier refuses it after the response has begun."""

MODELS = ["tiny@tiny-draft", "tiny", "tiny-draft", "default"]


@contextlib.asynccontextmanager
async def openai(step_time: float = 0.0, token: str = TOKEN) -> AsyncIterator[AsyncOpenAI]:
    from openai import AsyncOpenAI

    async with (
        served(step_time=step_time) as found,
        AsyncOpenAI(base_url=found.url, api_key=token, max_retries=0) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def anthropic() -> AsyncIterator[AsyncAnthropic]:
    """`base_url` has no /v1, unlike OpenAI's."""
    from anthropic import AsyncAnthropic

    async with (
        served() as found,
        AsyncAnthropic(base_url=f"http://{found.address}", max_retries=0, api_key=TOKEN) as client,
    ):
        yield client


async def test_openais_completions_and_models() -> None:
    async with openai() as client:
        stream = await client.completions.create(
            model="tiny", prompt=[1, 2, 3], max_tokens=20, temperature=0, stream=True
        )
        pieces = [chunk.choices[0].text async for chunk in stream]
        models = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("tiny@tiny-draft")
    assert "".join(pieces) == alone()
    assert (models, one.owned_by) == (MODELS, "forerun")


async def test_anthropics_betas_counts_and_models() -> None:
    """Fields and betas that the daemon does not know change nothing."""
    body = {**TINY, "extra_body": {"temperature": 0, "not_yet_known": {"a": 1}}}
    async with anthropic() as client:
        beta = await client.beta.messages.create(**body, betas=["interleaved-thinking-2025-05-14"])
        counting: Any = (client.messages.count_tokens, client.beta.messages.count_tokens)
        counts = [(await count(model="tiny", messages=ABC)).input_tokens for count in counting]
        models = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("tiny")
    (text,) = beta.content
    assert text.to_dict()["text"] == alone()
    assert counts == [3, 3]
    assert (models, one.id, one.max_input_tokens) == (MODELS, "tiny", 512)


async def test_openais_errors_are_its_own() -> None:
    import openai as sdk

    async with openai() as client:
        create = client.chat.completions.create
        with pytest.raises(sdk.NotFoundError) as unknown:
            await create(**{**TINY, "model": "gpt-4"})
        with pytest.raises(sdk.BadRequestError) as unsupported:
            await create(**TINY, modalities=["audio"])
        with pytest.raises(sdk.NotFoundError):
            await client.embeddings.create(model="tiny", input="abc")
        with pytest.raises(sdk.APIError, match="typical is not allowed"):
            async for _ in await create(**LOSSY, stream=True):
                pass
    assert unknown.value.code == "model_not_found"
    assert unsupported.value.code == "unsupported_parameter"
    async with openai(token="wrong") as client:
        with pytest.raises(sdk.AuthenticationError, match="is not this daemon's"):
            await client.models.list()


async def test_anthropics_errors_are_its_own() -> None:
    import anthropic as sdk

    async with anthropic() as client:
        with pytest.raises(sdk.NotFoundError, match="gpt-4") as unknown:
            await client.messages.create(**{**TINY, "model": "gpt-4"})
        with pytest.raises(sdk.APIStatusError, match="typical is not allowed"):
            async for _ in await client.messages.create(**LOSSY, stream=True):
                pass
    body: Any = unknown.value.body
    assert body["error"]["type"] == "not_found_error"


async def test_a_reader_that_falls_behind_what_is_kept_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anthropic's SDK skips an event without a name, and the text would end early without a word."""
    import anthropic as sdk

    monkeypatch.setattr("edge_client.texts.resume.ReplayStream._has", lambda self, start: start == 0)
    async with anthropic() as client:
        stream = await client.messages.create(**TINY, stream=True)
        with pytest.raises(sdk.APIStatusError, match="is not kept"):
            async for _ in stream:
                pass


def test_openais_decoder_makes_no_event_of_a_comment() -> None:
    from openai._streaming import SSEDecoder

    stream = b"id: 1\ndata: {}\n\n" + KEEP_ALIVE + KEEP_ALIVE + b"id: 2\ndata: [DONE]\n\n"
    assert [event.data for event in SSEDecoder().iter_bytes(iter([stream]))] == ["{}", "[DONE]"]


async def test_a_client_that_goes_away_ends_its_text() -> None:
    """The world checks at its end that no text is left and no slot of the verifier is held."""
    long: Any = {**TINY, "max_tokens": 400, "extra_body": {"ignore_eos": True}}
    async with openai(step_time=0.01) as client:
        stream = await client.chat.completions.create(**long, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        whole = asyncio.create_task(client.chat.completions.create(**long))
        await asyncio.sleep(0.05)
        whole.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await whole
