"""Whatever a model writes or a client sends back, each response is JSON and each stream has its end."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import httpx
import pytest

from common.messages import TokenLogprobs
from edge_client.formats.anthropic import AnthropicMessages
from edge_client.formats.detokenizer import TextSpan, TokenOrigin
from edge_client.formats.dialect import Dialect
from edge_client.formats.json_text import json_text, read_json, well_formed
from edge_client.formats.ollama import OllamaChat
from edge_client.formats.openai import ChatCompletion, Completion, logprob_entries
from edge_client.formats.responses import Responses
from tests.clients.scripted import scripted
from tests.edge_client.api.served import TOKEN
from tests.edge_client.api.world import Letters, world

pytestmark = [pytest.mark.api, pytest.mark.grpc]

Json = dict[str, Any]

SCHEMA = {"type": "object", "properties": {"days": {"type": "integer"}, "at": {"type": "array"}}}
FUNCTION = {"name": "get", "description": "d", "parameters": SCHEMA}
USER = {"role": "user", "content": "go"}


def refuse(word: str) -> NoReturn:
    raise AssertionError(f"JSON has no {word}")


def strictly(data: bytes | str) -> Any:
    """The value of JSON in UTF-8, as readers take it that are stricter than Python's."""
    text = data.decode() if isinstance(data, bytes) else data
    return json.loads(text, parse_constant=refuse)


def events(data: bytes) -> list[Json]:
    """The events of a stream, without its comments."""
    lines = [line.removeprefix(b"data: ") for line in data.splitlines() if line.startswith((b"data: ", b"{"))]
    return [strictly(line) for line in lines if line != b"[DONE]"]


PATH = "/v1/chat/completions"
ASKED: Json = {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION}]}

Said = tuple[str, list[tuple[str, Any]]]
"""The content, and calls with their arguments."""


def whole(body: Json) -> Said:
    message = body["choices"][0]["message"]
    calls = [each["function"] for each in message.get("tool_calls", [])]
    return message["content"] or "", [(each["name"], strictly(each["arguments"])) for each in calls]


def streamed(found: list[Json]) -> Said:
    deltas = [each["choices"][0]["delta"] for each in found]
    pieces = [call["function"] for each in deltas for call in each.get("tool_calls", [])]
    names = [each["name"] for each in pieces if "name" in each]
    text = "".join(each["arguments"] for each in pieces)
    content = "".join(each.get("content") or "" for each in deltas)
    return content, [(name, strictly(text)) for name in names]


def history(arguments: Any) -> list[Json]:
    """The call as a client sends it back."""
    call = {"id": "c", "type": "function", "function": {"name": "get", "arguments": json.dumps(arguments)}}
    told = {"role": "tool", "tool_call_id": "c", "content": "cut \ud83d"}
    return [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, told]


def call_of(*, arguments: str, name_first: bool = True) -> str:
    parts = ['"name": "get"', f'"arguments": {arguments}']
    return f"<tool_call>{{{', '.join(parts if name_first else parts[::-1])}}}</tool_call>"


HALVES: dict[str, tuple[str, Json]] = {
    "a value": (call_of(arguments=r'{"a": "\ud83d"}'), {"a": "\ud83d"}),
    "a value before the name": (call_of(arguments=r'{"a": "é\udc00"}', name_first=False), {"a": "é\udc00"}),
    "a key": (call_of(arguments=r'{"\ud83d": [1]}', name_first=False), {"\ud83d": [1]}),
    "arguments in a string": (call_of(arguments=r'"{\"a\": \"\ud83d\"}"'), {"a": "\ud83d"}),
    "a value of another type": (call_of(arguments=r'{"at": "[\"\\ud83d\"]"}'), {"at": ["\ud83d"]}),
    "both halves": (call_of(arguments=r'{"a": "\ud83d\ude00"}', name_first=False), {"a": "😀"}),
}


async def post(address: str, path: str, body: Json, **headers: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json", **headers}
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(f"http://{address}{path}", content=json.dumps(body), headers=headers)


async def both(text: str) -> list[Said]:
    """What a text is as a whole response, as a stream, and as a named stream that is read again."""
    async with scripted(lambda prompt: text) as address:
        answer = await post(address, PATH, {**ASKED, "stream": False})
        stream = await post(address, PATH, {**ASKED, "stream": True}, **{"x-conversation-id": "t"})
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}) as client:
            again = await client.get(f"http://{address}/v1/stream?conv_id=t")
    assert (answer.status_code, stream.status_code) == (200, 200), answer.text
    assert again.content == stream.content
    found = events(stream.content)
    assert found[-1]["choices"][0]["finish_reason"] is not None
    return [whole(strictly(answer.content)), streamed(found)]


@pytest.mark.parametrize(("text", "arguments"), HALVES.values(), ids=HALVES)
async def test_half_a_pair_in_arguments_arrives_and_may_be_sent_back(text: str, arguments: Json) -> None:
    assert await both(text) == [("", [("get", arguments)])] * 2
    prompts = list[str]()

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return "done"

    async with scripted(script) as address:
        answer = await post(address, PATH, {**ASKED, "messages": history(arguments), "stream": False})
    assert answer.status_code == 200, answer.text
    assert whole(strictly(answer.content))[0] == "done"
    assert json.dumps(well_formed(arguments), ensure_ascii=False) in prompts[-1]
    assert "cut \ufffd" in prompts[-1]


class Broken(Exception):
    """A failure to encode an event."""


@pytest.mark.parametrize("dialect", [ChatCompletion, Completion, Responses, AnthropicMessages, OllamaChat])
@pytest.mark.parametrize("name", ["", "talk"])
async def test_a_stream_whose_event_cannot_be_encoded_ends_with_an_error(
    dialect: type[Dialect], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    framed = dialect.framed

    def break_third(self: Dialect, number: int, chunk: Json) -> bytes:
        if number == 3:
            monkeypatch.setattr(dialect, "framed", framed)
            raise Broken
        return framed(self, number, chunk)

    monkeypatch.setattr(dialect, "framed", break_third)
    field = "input" if dialect is Responses else dialect.param
    body = {field: "abc" if dialect is Completion else [{"role": "user", "content": "abc"}]}
    headers = {"x-conversation-id": name} if name else {}
    async with world() as found:
        asked = {**body, "max_tokens": 9, "stream": True, "temperature": 0, "options": {"temperature": 0}}
        answer = await found.client.post(dialect.path, json=asked, headers=headers)
        told = events(answer.content)
        assert len(told) == 3
        error = told[-1].get("response", told[-1]).get("error") or told[-1]
        assert "defect" in json.dumps(error)
        if name:
            again = await found.client.get("/v1/stream", params={"conv_id": name})
            assert again.content == answer.content


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"é": "\ud83d", "x": [1.5, float("nan"), {"y": float("-inf")}]},
            r'{"é": "\ud83d", "x": [1.5, null, {"y": null}]}',
        ),
        ("\\\udfff", r'"\\\udfff"'),
        ({"\ud800": "😀"}, r'{"\ud800": "😀"}'),
    ],
)
def test_what_is_written_is_what_json_stringify_writes(value: Any, text: str) -> None:
    assert json_text(value) == text
    assert text.encode()


@pytest.mark.parametrize("text", ["NaN", '{"a": [-Infinity]}', "Infinity"])
def test_what_json_lacks_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match="JSON has no"):
        read_json(text)


def test_a_token_without_any_chance_has_openais_least_log_probability() -> None:
    least = TokenLogprobs(-0.5, ((1, -0.5), (2, float("-inf"))))
    spans = [TextSpan("a", TokenOrigin.SERVER, 1, 1, least)]
    (entry,) = logprob_entries(Letters(), spans)
    assert [each["logprob"] for each in entry["top_logprobs"]] == [-0.5, -9999.0]
