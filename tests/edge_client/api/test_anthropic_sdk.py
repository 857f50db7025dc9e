"""The official Python SDK of Anthropic runs against the daemon as it would against Anthropic."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.edge_client.api.served import TOKEN, Served, served
from tests.edge_client.api.test_messages import USER
from tests.edge_client.api.test_messages_api import read_letters
from tests.edge_client.api.world import alone

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

pytestmark = [pytest.mark.api, pytest.mark.grpc, pytest.mark.sdk]

TINY: Any = {"model": "tiny", "max_tokens": 20, "messages": [USER], "extra_body": {"temperature": 0}}

LONG = alone(max_tokens=60, temperature=1.0, seed=3, ignore_eos=True)


@pytest.fixture
def _reads_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    read_letters(monkeypatch)


def sdk_of(found: Served, **secret: Any) -> AsyncAnthropic:
    """`base_url` has no /v1, unlike OpenAI's."""
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(base_url=f"http://{found.address}", max_retries=0, **secret)


@contextlib.asynccontextmanager
async def client(**more: Any) -> AsyncIterator[AsyncAnthropic]:
    async with served(**more) as found, sdk_of(found, api_key=TOKEN) as made:
        yield made


def blocks(message: Any) -> list[dict[str, Any]]:
    """The content of a message that the SDK made."""
    found: list[dict[str, Any]] = message.model_dump()["content"]
    return found


def joined(found: list[dict[str, Any]], kind: str) -> str:
    return "".join(each[kind] for each in found if each["type"] == kind)


async def test_texts_counts_and_models() -> None:
    async with client() as anthropic:
        whole = await anthropic.messages.create(**TINY)
        async with anthropic.messages.stream(**TINY) as stream:
            pieces = [piece async for piece in stream.text_stream]
            rebuilt = await stream.get_final_message()
        raw = [event async for event in await anthropic.messages.create(**TINY, stream=True)]
        count = await anthropic.messages.count_tokens(model="tiny", messages=TINY["messages"])
        models = [model async for model in anthropic.models.list()]
        one = await anthropic.models.retrieve("tiny")
    assert joined(blocks(whole), "text") == alone()
    assert "".join(pieces) == alone()
    assert joined(blocks(rebuilt), "text") == alone()
    assert rebuilt.stop_reason == whole.stop_reason == "end_turn"
    assert rebuilt.usage.output_tokens == whole.usage.output_tokens
    assert whole.usage.input_tokens == count.input_tokens == 3
    assert (rebuilt.usage.input_tokens, rebuilt.usage.cache_read_input_tokens) == (1, 2)
    assert raw[-1].type == "message_stop"
    assert [model.id for model in models] == ["tiny@tiny-draft", "tiny", "tiny-draft", "default"]
    assert (one.id, one.max_input_tokens) == ("tiny", 512)


async def test_beta_requests_and_unknown_fields_are_answered() -> None:
    betas = ["interleaved-thinking-2025-05-14", "context-management-2025-06-27"]
    body = {**TINY, "extra_body": {"temperature": 0, "not_yet_known": {"a": 1}}}
    async with client() as anthropic:
        whole = await anthropic.beta.messages.create(**body, betas=betas)
        count = await anthropic.beta.messages.count_tokens(model="tiny", messages=TINY["messages"])
    assert joined(blocks(whole), "text") == alone()
    assert count.input_tokens == 3


@pytest.mark.usefixtures("_reads_letters")
async def test_all_kinds_of_blocks_are_put_together_by_the_sdk() -> None:
    body = {**TINY, "max_tokens": 60, "extra_body": {"temperature": 1, "seed": 3, "ignore_eos": True}}
    async with client() as anthropic:
        async with anthropic.messages.stream(**body) as stream:
            rebuilt = await stream.get_final_message()
        whole = await anthropic.messages.create(**body)
    made = [blocks(rebuilt), blocks(whole)]
    assert all({each["type"] for each in found} == {"thinking", "text", "tool_use"} for found in made)
    calls = [[each for each in found if each["type"] == "tool_use"] for found in made]
    assert [len(each) for each in calls] == [LONG.count("b")] * 2
    assert len({call["id"] for call in calls[0]}) == len(calls[0])
    assert all((call["name"], call["input"]) == ("f", {"x": 1}) for found in calls for call in found)
    for found in made:
        assert joined(found, "thinking") == "a" * LONG.count("a")
        assert joined(found, "text") == "".join(letter for letter in LONG if letter not in "ab")


async def test_errors_are_the_sdks_own() -> None:
    import anthropic as sdk

    async with client() as anthropic:
        with pytest.raises(sdk.BadRequestError, match="temperature"):
            await anthropic.messages.create(**{**TINY, "extra_body": {"temperature": -1}})
        with pytest.raises(sdk.NotFoundError, match="gpt-4") as unknown:
            await anthropic.messages.create(**{**TINY, "model": "gpt-4"})
        lossy = {"forerun": {"acceptance": "typical"}}
        stream = await anthropic.messages.create(**{**TINY, "extra_body": lossy}, stream=True)
        with pytest.raises(sdk.APIStatusError, match="typical is not allowed"):
            async for _ in stream:
                pass
    body: Any = unknown.value.body
    assert body["error"]["type"] == "not_found_error"


async def test_a_reader_that_falls_behind_what_is_kept_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK skips an event without a name, and the text would end early without a word."""
    import anthropic as sdk

    monkeypatch.setattr("edge_client.api.replay.ReplayStream._has", lambda self, start: start == 0)
    async with client() as anthropic:
        stream = await anthropic.messages.create(**TINY, stream=True)
        with pytest.raises(sdk.APIStatusError, match="is not kept"):
            async for _ in stream:
                pass


@pytest.mark.parametrize("kind", ["api_key", "auth_token"])
async def test_the_token_may_be_a_key_or_a_bearers(kind: str) -> None:
    import anthropic as sdk

    async with served() as found:
        async with sdk_of(found, **{kind: TOKEN}) as anthropic:
            assert (await anthropic.messages.create(**TINY)).content
        async with sdk_of(found, **{kind: "wrong"}) as anthropic:
            with pytest.raises(sdk.AuthenticationError, match="is not this daemon's"):
                await anthropic.messages.create(**TINY)
