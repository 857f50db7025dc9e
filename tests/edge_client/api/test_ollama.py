"""Programs that speak Ollama's API get its objects: one a line, the last with `done`."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from edge_client.formats.fields import Fields
from edge_client.formats.message import ArgumentsAdded, CallBegun, MessagePart
from edge_client.formats.ollama import OllamaChat
from edge_client.formats.parsed_request import ChatPrompt
from tests.edge_client.api.world import Filling, World, alone, world
from tests.edge_client.formats.test_dialects import ENDED, USAGE, message_of, ollama, said, streamed, thought

pytestmark = [pytest.mark.api, pytest.mark.grpc]

GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 20}
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}


PARTS: list[MessagePart] = [
    *(thought("hm"), said("I "), said("look")),
    *(CallBegun(0, "weather"), ArgumentsAdded(0, '{"city": '), ArgumentsAdded(0, '"Oslo"}')),
    CallBegun(1, "time"),
]


def test_the_whole_message_is_that_of_the_stream() -> None:
    found = ollama().whole([(message_of(PARTS), ENDED)], USAGE)
    message = found.pop("message")
    *chunks, last = streamed(ollama(), [PARTS])
    assert (message["content"], message["thinking"]) == ("I look", "hm")
    assert message["tool_calls"] == [
        call for each in chunks for call in each["message"].get("tool_calls", [])
    ]
    del last["message"]
    assert found == last


def test_arguments_that_are_no_object_are_still_told() -> None:
    message = message_of([CallBegun(0, "f"), ArgumentsAdded(0, "[1")])
    found = ollama().whole([(message, ENDED)], USAGE)
    assert "[1" in json.dumps(found["message"]["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize(
    ("results", "order"), [(["", "", ""], [0, 1, 2]), (["weather", "time", "time"], [1, 0, 2])]
)
def test_a_result_has_the_id_of_its_call_which_clients_leave_out(
    results: list[str], order: list[int]
) -> None:
    """Templates such as Mistral's refuse a result without an id."""
    names = ("time", "weather", "time")
    calls: list[Any] = [{"function": {"name": each, "arguments": {}}} for each in names]
    told = [{"role": "tool", "content": "", "tool_name": each} for each in results]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": calls}, *told]
    prompt = OllamaChat.parse(Fields({"messages": messages})).prompt
    assert isinstance(prompt, ChatPrompt)
    ids = [each["id"] for each in prompt.messages[1]["tool_calls"]]
    assert len(set(ids)) == 3
    assert [each["tool_call_id"] for each in prompt.messages[2:]] == [ids[at] for at in order]


async def post(found: World, path: str, **fields: Any) -> httpx.Response:
    return await found.client.post(path, json={"model": "default", "options": GREEDY, **fields})


async def chat(found: World, **fields: Any) -> httpx.Response:
    return await post(found, "/api/chat", messages=[{"role": "user", "content": "bad"}], **fields)


def lines_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_a_text_is_streamed_unless_it_is_asked_whole(path: str) -> None:
    key = {
        "/api/chat": ("messages", [{"role": "user", "content": "bad"}]),
        "/api/generate": ("prompt", "bad"),
    }
    name, prompt = key[path]

    def told(each: dict[str, Any]) -> str:
        return str(each["message"]["content"] if path == "/api/chat" else each["response"])

    async with world() as found:
        lines = lines_of(await post(found, path, **{name: prompt}))
        whole = (await post(found, path, **{name: prompt}, stream=False)).json()
    assert "".join(map(told, lines)) == told(whole) == alone("bad")
    assert [each["done"] for each in lines] == [*[False] * (len(lines) - 1), True]
    assert whole["done"]
    assert whole["eval_count"] == lines[-1]["eval_count"] > 0
    assert whole["prompt_eval_count"] == 3


async def test_options_are_those_of_other_endpoints() -> None:
    options = {"temperature": 1.0, "top_k": 3, "top_p": 0.9, "min_p": 0.01, "repeat_penalty": 1.2, "seed": 5}
    penalties = {"presence_penalty": 0.1, "frequency_penalty": 0.2}
    async with world() as found:
        ours = await found.chat("bad", max_tokens=12, **options, **penalties)
        asked = {"num_predict": 12, "num_ctx": 2048, **options, **penalties}
        theirs = (await chat(found, options=asked, stream=False)).json()
        cut = (await chat(found, options={**asked, "num_predict": 2}, stream=False)).json()
    assert theirs["message"]["content"] == ours["choices"][0]["message"]["content"]
    assert cut["done_reason"] == "length"
    assert cut["eval_count"] == 2


async def test_generate_renders_the_chat_of_one_question_unless_it_is_raw() -> None:
    template = "{% for message in messages %}{{ message.role[0] }}{{ message.content }}{% endfor %}"
    async with world(template=template) as found:
        asked = await post(found, "/api/generate", prompt="a", system="f", stream=False)
        raw = await post(found, "/api/generate", prompt="a", raw=True, stream=False)
    assert asked.json()["response"] == alone("fa"), "the roles' letters are none of the target's"
    assert raw.json()["response"] == alone("a") != alone("fa")


async def test_think_is_a_switch_of_the_template() -> None:
    template = "{{ 'a' if enable_thinking else 'b' }}{{ 'f' if reasoning_effort == 'high' else '' }}"
    async with world(template=template) as found:
        told = [(await chat(found, think=each, stream=False)).json() for each in (True, False, "high")]
    assert [each["message"]["content"] for each in told] == [alone("a"), alone("b"), alone("af")]


async def test_a_request_without_a_prompt_loads_the_model() -> None:
    async with world() as found:
        for path, fields in (
            ("/api/chat", {"messages": []}),
            ("/api/chat", {}),
            ("/api/generate", {"prompt": ""}),
            ("/api/generate", {}),
        ):
            answer = await found.client.post(path, json={"model": "default", **fields})
            unloaded = await found.client.post(path, json={"model": "default", "keep_alive": "0s", **fields})
            assert unloaded.json()["done_reason"] == "unload"
            unknown = await found.client.post(path, json={"model": "other", **fields})
            assert (answer.json()["done_reason"], answer.json()["done"]) == ("load", True)
            assert unknown.status_code == 404
            assert isinstance(unknown.json()["error"], str)


async def test_what_cannot_be_done_is_refused_in_words() -> None:
    user = {"role": "user", "content": "a"}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("/api/chat", {"messages": [{**user, "images": ["aGk="]}]}),
        ("/api/chat", {"messages": "abc"}),
        ("/api/chat", {"messages": [user], "think": 3}),
        ("/api/chat", {"messages": [user], "format": "yaml"}),
        ("/api/chat", {"messages": [user], "format": "json", "forerun": {"regex": "a+"}}),
        ("/api/chat", {"messages": [user], "options": {"mirostat": 2}}),
        ("/api/chat", {"messages": [user], "logprobs": True}),
        ("/api/generate", {"prompt": "a", "template": "{{ .Prompt }}"}),
        ("/api/generate", {"prompt": "a", "context": [1]}),
        ("/api/show", {"model": 3}),
    ]
    async with world() as found:
        for path, body in cases:
            answer = await found.client.post(path, json=body)
            assert (answer.status_code, answer.json().keys()) == (400, {"error"}), body
            assert isinstance(answer.json()["error"], str)


async def test_models_are_found_by_autodiscovery() -> None:
    async with world(endpoints=Filling) as found:
        get = found.client.get
        version = (await get("/api/version")).json()["version"]
        models = (await get("/api/tags")).json()["models"]
        listed = [each["id"] for each in (await get("/v1/models")).json()["data"]]
        running = (await get("/api/ps")).json()["models"]
        show = [
            (await found.client.post("/api/show", json={name: models[0]["name"]})).json()
            for name in ("model", "name")
        ]
        unknown = await found.client.post("/api/show", json={"model": "other"})
    assert [int(each) for each in version.split(".")] > [0, 6, 4], "VS Code's least"
    assert [each["name"] for each in models] == [each for each in listed if each != "default"]
    for each in models:
        assert each["model"] == each["name"]
        assert {"modified_at", "size", "digest", "details"} <= set(each)
        assert {"format", "family", "families", "parameter_size", "quantization_level"} <= set(
            each["details"]
        )
    assert [each["name"] for each in running] == [each["name"] for each in models[:2]], "not the draft alone"
    assert show[0] == show[1]
    info = show[0]["model_info"]
    assert info[f"{info['general.architecture']}.context_length"] == 512
    assert unknown.status_code == 404


@pytest.mark.parametrize(
    ("template", "endpoints", "has"),
    [
        ("{{ messages }}", {}, {"completion", "tools"}),
        ("{% if tools %}{{ tools }}{% endif %}", {}, {"completion", "tools"}),
        ("{{ enable_thinking }}", {}, {"completion", "tools", "thinking"}),
        ("{{ messages }}", {"endpoints": Filling}, {"completion", "tools", "insert"}),
        ("", {}, {"completion"}),
    ],
)
async def test_capabilities_are_those_of_the_target(template: str, endpoints: Any, has: set[str]) -> None:
    async with world(template=template, **endpoints) as found:
        answer = await found.client.post("/api/show", json={"model": "default"})
    assert set(answer.json()["capabilities"]) == has


async def test_a_stream_that_is_silent_for_long_gets_no_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ollama's clients read each line as JSON."""
    monkeypatch.setattr("edge_client.api.text_streams.KEEP_ALIVE_TIME", 0.001)
    async with world(step_time=0.01) as found:
        lines_of(await chat(found))
