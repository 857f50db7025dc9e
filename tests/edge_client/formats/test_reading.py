"""Through the API: what a model writes arrives as reasoning, content and calls, and goes back as history."""

from typing import Any

import httpx
import numpy as np
import pytest

from common.grammar import Grammars
from edge_client.formats.openai import ChatCompletion
from tests.clients.scripted import TEMPLATE, scripted
from tests.edge_client.api.served import TOKEN
from tests.edge_client.api.world import events_of, world
from tests.edge_client.formats.call_templates import family, needs_templates
from tests.edge_client.formats.written_messages import WEATHER

pytestmark = [pytest.mark.api, pytest.mark.grpc]

Json = dict[str, Any]

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Genève", "days": "3"}}\n</tool_call>'
BEGUN = "<think>\n"
THINKS = TEMPLATE + "{{ '<think>\n' }}"
ANSWER = f"Let me see.\n</think>\n\nI look.\n{CALL}"
ARGUMENTS = '{"city": "Genève", "days": 3}'


async def ask(address: str, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "The weather?"}], "tools": [WEATHER], **fields}
    async with httpx.AsyncClient(timeout=60) as client:
        url, headers = f"http://{address}/v1/chat/completions", {"authorization": f"Bearer {TOKEN}"}
        answer = await client.post(url, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


async def test_reasoning_and_calls_are_told_apart() -> None:
    async with scripted(lambda prompt: BEGUN + ANSWER, THINKS) as address:
        found = (await ask(address)).json()
        without = (await ask(address, tools=[])).json()
    choice = found["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("I look.", "Let me see.")
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": ARGUMENTS}
    thought = "Let me see.\n</think>"
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(thought)
    plain = without["choices"][0]
    assert (plain["message"]["content"], plain["finish_reason"]) == (f"I look.\n{CALL}", "stop")


@pytest.mark.parametrize(("stop", "finish"), [("ève", "stop"), ("</tool_call>", "tool_calls")])
async def test_a_call_that_a_stop_string_cuts_off_is_not_to_be_run(stop: str, finish: str) -> None:
    async with scripted(lambda prompt: CALL) as address:
        whole = (await ask(address, stop=stop)).json()["choices"][0]
        last = events_of((await ask(address, stop=stop, stream=True)).text)[-1]["choices"][0]
    assert whole["finish_reason"] == last["finish_reason"] == finish
    assert len(whole["message"]["tool_calls"]) == 1


async def test_a_call_that_is_cut_off_shows_none_of_its_notation() -> None:
    async with scripted(lambda prompt: CALL) as address:
        for length in (4, 11, 25, 40, len(CALL) - 5):
            whole = (await ask(address, max_tokens=length)).json()["choices"][0]
            chunks = events_of((await ask(address, max_tokens=length, stream=True)).text)
            deltas = [each["choices"][0]["delta"] for each in chunks if each["choices"]]
            assert (whole["message"]["content"] or "", whole["finish_reason"]) == ("", "length")
            assert "".join(each.get("content") or "" for each in deltas) == ""


@needs_templates
async def test_a_format_holds_the_content_behind_a_thought_that_the_prompt_has_begun() -> None:
    messages = [{"role": "user", "content": "abc"}]
    async with world(template="{{ messages[0].content }}<think>\n") as found:
        body = {"messages": messages, "response_format": {"type": "json_object"}}
        spec = await found.api.pairs.first.read(ChatCompletion, body)
    letters = family("gemma3")
    matcher = Grammars(letters.tokens).matcher(spec.requests[0].sampling.grammar)
    for text, fits in (("hm</think>\n\n{", True), ("hm</think>\n\nhm", False)):
        path = np.array(letters.read(text), np.int32)
        assert (matcher.allowed(path) is not None) == fits
