"""Plays request bodies that are wrong somewhere, for every endpoint; `test_bodies` says how many.

Each body is a good one with some of its values replaced, doubled or left out, at any depth. Whatever comes,
the daemon answers in time, with a text or with an error that has the endpoint's shape, and never with 500.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import httpx

from edge_client.texts.text_service import TextSettings
from tests.edge_client.api.world import Filling, World, world

PATIENCE = 60.0
"""Seconds within which each request must be answered, also on a busy machine."""

AT_ONCE = 8

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": "a"}'}}
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "seed": 1, "stream": True}
CHAT = {
    "model": "",
    "messages": [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "c"},
        {"role": "tool", "tool_call_id": "c", "content": "d"},
    ],
    "max_tokens": 4,
    "n": 2,
    "stop": ["ab"],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "stream_options": {"include_usage": True},
    "logit_bias": {"1": 2},
    "reasoning_effort": "low",
    "chat_template_kwargs": {"a": 1},
    "forerun": {"origins": True, "policy": "tree", "fallback": "wait"},
    **SAMPLING,
}
RESPONSE = {
    "model": "",
    "instructions": "a",
    "input": [
        {"type": "message", "role": "developer", "content": "a"},
        {"role": "user", "content": [{"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "c"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "namespace": "n", "arguments": '{"x": "a"}'},
        {"type": "function_call_output", "call_id": "c", "output": "d"},
        {"type": "custom_tool_call", "call_id": "e", "name": "g", "input": "d"},
        {"type": "custom_tool_call_output", "call_id": "e", "output": [{"type": "input_text", "text": "b"}]},
    ],
    "max_output_tokens": 4,
    "tools": [
        {"type": "function", **FUNCTION},
        {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": "a"}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "g"}]},
    "parallel_tool_calls": False,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
    "store": True,
    "truncation": "disabled",
    "metadata": {"a": "b"},
    **SAMPLING,
}

MESSAGES_PATH = "/v1/messages"
"""Begins the paths whose errors have Anthropic's shape."""

OPTIONS = {"num_predict": 4, "num_ctx": 9, "top_k": 3, "min_p": 0.1, "repeat_penalty": 1.1, "stop": ["ab"]}
OLLAMA = {"model": "default:latest", "options": {**OPTIONS, "seed": 1}, "keep_alive": "5m", "think": True}
MESSAGES = {
    "model": "claude-opus-5-5",
    "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "system", "content": "c", "clear_at": "never", "output_config": {"effort": "low"}},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "d", "signature": "s"},
                {"type": "text", "text": "e"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"x": "a"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "is_error": True,
                    "content": [{"type": "tool_reference", "tool_name": "g"}, {"type": "text", "text": "f"}],
                }
            ],
        },
    ],
    "max_tokens": 4,
    "top_k": 5,
    "stop_sequences": ["ab"],
    "tools": [
        {"name": "f", "description": "d", "input_schema": SCHEMA},
        {"name": "g", "input_schema": SCHEMA, "defer_loading": True},
        {"type": "web_search_20260318", "name": "web_search"},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "low"},
    "metadata": {"user_id": "u"},
    "context_management": {"edits": []},
    **SAMPLING,
}

GOOD: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [CHAT],
    "/v1/completions": [{"prompt": "abc", "max_tokens": 4, "logprobs": 2, "n": 2, **SAMPLING}],
    "/infill": [
        {
            "input_prefix": "ab",
            "input_suffix": "cd",
            "input_extra": [{"filename": "a", "text": "def", "time": 1}],
            "prompt": "e",
            "n_predict": 4,
            "samplers": ["top_k", "infill"],
            "response_fields": ["content", "timings/prompt_n"],
            "temperature": 0.5,
            "stream": True,
        }
    ],
    "/api/chat": [
        {
            "messages": [
                {"role": "user", "content": "a", "images": []},
                {
                    "role": "assistant",
                    "thinking": "b",
                    "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
                },
                {"role": "tool", "tool_name": "f", "content": "c"},
            ],
            "tools": CHAT["tools"],
            "stream": True,
            **OLLAMA,
        },
        {"messages": [], "model": "default"},
    ],
    "/api/generate": [
        {"prompt": "abc", "system": "d", "context": [], "images": [], "template": "", **OLLAMA},
        {"prompt": "abc", "suffix": "def", "stream": False, **OLLAMA},
        {"prompt": "abc", "raw": True, "stream": False, **OLLAMA},
    ],
    "/api/show": [{"model": "default", "verbose": True}, {"name": "default:latest"}],
    "/v1/responses": [RESPONSE, {"input": "abc", "max_output_tokens": 4}],
    MESSAGES_PATH: [MESSAGES],
    f"{MESSAGES_PATH}/count_tokens": [MESSAGES],
    "/v1/apply-template": [{"messages": CHAT["messages"], "tools": CHAT["tools"]}],
    "/v1/tokenize": [{"content": "abc", "parse_special": True}],
    "/v1/detokenize": [{"tokens": [1, 2]}],
}
"""Good bodies by path, which together have all fields that are read."""

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 17, 2**31, 2**63, 2**64, -(2**63) - 1, 0.5, 1.0, -0.0, 1e308),
    *("", "a", "abc", "auto", "none", "required", "text", "function", "\x00", "\ufdd0", "é🙂", "x" * 3000),
    *([], [[]], [None], ["a"], [1], {}, {"a": None}, {"type": "text"}, {"type": "function"}, {"text": "a"}),
    *([{}] * 3, ["a"] * 2000, {"type": ["string"]}, {"name": "f"}, {"$ref": "#"}, {"type": "image_url"}),
]
"""Values that a field may get instead of its own."""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a JSON value, with each of its keys or indices."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def draw(seed: int) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of this seed."""
    random = Random(seed)
    path = random.choice(list(GOOD))
    body = copy.deepcopy(random.choice(GOOD[path]))
    for _ in range(random.choice((1, 1, 1, 2, 3, 5))):
        spots = list(places(body))
        if not spots:
            break
        holder, key = random.choice(spots)
        match random.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case 2:
                holder[key] = {"a": holder[key]} if random.random() < 0.5 else [holder[key]]
            case 3:
                other, name = random.choice(spots)
                holder[key] = copy.deepcopy(other[name]) if name in _keys(other) else None
            case _:
                holder[key] = copy.deepcopy(random.choice(ODD))
    return path, body


def _keys(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


def check(path: str, body: dict[str, Any], answer: httpx.Response) -> str:
    """Return a word for an answer. Raises `AssertionError` for one that no client may get."""
    said = f"{answer.status_code} to {json.dumps(body)[:2000]}: {answer.text[:500]}"
    assert answer.status_code in (200, 400, 404, 413, 429), said
    if answer.status_code != 200:
        told = answer.json()
        assert ("type" in told) == path.startswith(MESSAGES_PATH), said
        words = told["error"] if isinstance(told["error"], str) else told["error"]["message"]
        assert words, said
        assert "defect" not in words, said
    else:
        assert "a defect of this daemon" not in answer.text, said
    return f"{path} {answer.status_code}"


async def play(first: int, count: int, daemon: World) -> Counter[str]:
    """Send the bodies of these seeds, some at once. Return how many got which answer."""
    tally, seeds = Counter[str](), iter(range(first, first + count))

    async def client() -> None:
        for seed in seeds:
            path, body = draw(seed)
            try:
                async with asyncio.timeout(PATIENCE):
                    answer = await daemon.client.post(path, content=json.dumps(body).encode())
                tally[check(path, body, answer)] += 1
            except TimeoutError as error:
                raise AssertionError(f"seed {seed}: {path} was not answered: {body}") from error
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {path} {error}") from error

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(client())
    return tally


async def run(first: int, count: int) -> Counter[str]:
    """Play so many seeds against one daemon, which must have nothing left to do afterwards."""
    async with world(settings=TextSettings(max_waiting=10_000), endpoints=Filling) as daemon:
        return await play(first, count, daemon)
