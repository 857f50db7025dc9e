"""The official Python SDK of Anthropic runs against the daemon as it would against Anthropic."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients.answers import call
from tests.clients.scripted import TEMPLATE, scripted
from tests.edge_client.api.served import TOKEN, served
from tests.edge_client.api.test_messages import USER
from tests.edge_client.api.world import alone

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

pytestmark = [pytest.mark.api, pytest.mark.grpc, pytest.mark.sdk]

TINY: Any = {"model": "tiny", "max_tokens": 20, "messages": [USER], "extra_body": {"temperature": 0}}


def sdk_of(address: str, **secret: Any) -> AsyncAnthropic:
    """`base_url` has no /v1, unlike OpenAI's."""
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(base_url=f"http://{address}", max_retries=0, **secret)


@contextlib.asynccontextmanager
async def client(**more: Any) -> AsyncIterator[AsyncAnthropic]:
    async with served(**more) as found, sdk_of(found.address, api_key=TOKEN) as made:
        yield made


async def test_texts_counts_and_models() -> None:
    """Fields and betas that the daemon does not know change nothing."""
    body = {**TINY, "extra_body": {"temperature": 0, "not_yet_known": {"a": 1}}}
    async with client() as anthropic:
        whole = await anthropic.messages.create(**body)
        beta = await anthropic.beta.messages.create(**body, betas=["interleaved-thinking-2025-05-14"])
        counting: Any = (anthropic.messages.count_tokens, anthropic.beta.messages.count_tokens)
        counts = [(await count(model="tiny", messages=[USER])).input_tokens for count in counting]
        models = [model async for model in anthropic.models.list()]
        one = await anthropic.models.retrieve("tiny")
    (text,) = whole.content
    assert text.type == "text"
    assert text.text == alone()
    assert beta.content[0].to_dict() == text.to_dict()
    assert whole.id.startswith("msg_")
    used = beta.usage
    assert (used.input_tokens, used.cache_read_input_tokens) == (1, 2), "all of the prompt but its last token"
    assert counts == [3, 3]
    assert [model.id for model in models] == ["tiny@tiny-draft", "tiny", "tiny-draft", "default"]
    assert (one.id, one.max_input_tokens) == ("tiny", 512)


async def test_a_models_own_marks_become_blocks_and_go_back_into_its_prompt() -> None:
    """The second turn repeats the first answer, as clients do, and the prompt goes on from the first one."""
    prompts = dict[str, None]()

    def script(prompt: str) -> str:
        prompts[prompt] = None
        return "Done." if "found it" in prompt else f"<think>hm</think>I look.{call('f', a='b')}"

    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    body: Any = {"model": "", "max_tokens": 1000, "tools": [{"name": "f", "input_schema": schema}]}
    user: Any = USER
    async with (
        scripted(script, f"{TEMPLATE}{{# <think></think> #}}") as address,
        sdk_of(address, api_key=TOKEN) as anthropic,
    ):
        async with anthropic.messages.stream(**body, messages=[user]) as stream:
            streamed = await stream.get_final_message()
        whole = await anthropic.messages.create(**body, messages=[user])
        result = {
            "type": "tool_result",
            "tool_use_id": whole.content[-1].to_dict()["id"],
            "content": "found it",
        }
        told: Any = [
            USER,
            {"role": "assistant", "content": whole.content},
            {"role": "user", "content": [result]},
        ]
        second = await anthropic.messages.create(**body, messages=told)
    for message in (streamed, whole):
        thought, text, called = (dict[str, Any](each.to_dict()) for each in message.content)
        assert (thought["thinking"], text["text"].strip()) == ("hm", "I look.")
        assert thought["signature"], "some clients send only signed reasoning back"
        assert (called["name"], called["input"]) == ("f", {"a": "b"})
        assert message.stop_reason == "tool_use"
    assert dict[str, Any](whole.to_dict())["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    assert ([each.to_dict()["text"] for each in second.content], second.stop_reason) == (
        ["Done."],
        "end_turn",
    )
    before, after = prompts
    assert after.startswith(before)


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

    monkeypatch.setattr("edge_client.texts.resume.ReplayStream._has", lambda self, start: start == 0)
    async with client() as anthropic:
        stream = await anthropic.messages.create(**TINY, stream=True)
        with pytest.raises(sdk.APIStatusError, match="is not kept"):
            async for _ in stream:
                pass
