"""Through the API: what a model writes arrives as reasoning, content and calls, and goes back as history."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest

from common.grammar import Grammars
from edge_client.formats.call_style import call_style
from edge_client.formats.detokenizer import TextSpan
from edge_client.formats.families import HERMES_CALLS, family_of
from edge_client.formats.message import Message, MessageForm
from edge_client.formats.message_reader import MessageReader
from edge_client.formats.openai import ChatCompletion
from edge_client.formats.response_template import load_template
from tests.clients.scripted import TEMPLATE, scripted
from tests.edge_client.api.served import TOKEN
from tests.edge_client.api.world import events_of, world
from tests.edge_client.formats.call_templates import FAMILIES, family
from tests.edge_client.formats.written_messages import TOOLS, WEATHER

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


# Templates --------------------------------------------------------------------------------------------------

USER = {"role": "user", "content": "hello"}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_as_a_template_writes_it_is_read(name: str) -> None:
    """What stands in the history of a chat is what the model is to write."""
    source = FAMILIES[name][0]
    template, own = family(name).template, family_of(source)
    style = call_style(template, family(name).controls)
    arguments = {"city": "Paris", "days": 3}
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    messages: list[Json] = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    tools = list(TOOLS)

    def rendered(listed: list[Json], is_prompt: bool) -> str:
        settings = {"tools": tools, "add_generation_prompt": is_prompt}
        return template.render(own.messages(source, style.shown(listed, tools), settings), settings)

    written = rendered(messages, is_prompt=False)
    form = own.template(source) if style.is_own else _with_hermes(own.template(source))
    told = load_template(form).prefix(written) or written.rpartition(USER["content"])[2]
    message, reader = Message(), MessageReader(MessageForm(form, "", TOOLS))
    message.add(reader.feed([TextSpan(told, None)]))
    message.add(reader.finish())
    assert [(each.name, json.loads(each.arguments)) for each in message.calls] == [("get_weather", arguments)]
    assert message.thought == ""


def _with_hermes(template: Json) -> Json:
    return {**template, "fields": {**template["fields"], "tool_calls": HERMES_CALLS}}
