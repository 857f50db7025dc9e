"""Completion in editors: the text between a prefix and a suffix, by the model's own tokens."""

from __future__ import annotations

from typing import Any

import pytest

from tests.edge_client.api.world import Filling, World, alone, events_of, world

pytestmark = [pytest.mark.api, pytest.mark.grpc]

ENDS: dict[str, Any] = {"stop_token_ids": (1, 2, 3)}
"""Of `Filling`: its marks a, b and c end a text."""

PROMPT = "ade" + "bfd" + "c"
"""The prompt of the prefix "de" and the suffix "fd", in letters."""


def written(begun: str = "", **more: Any) -> str:
    return alone(PROMPT + begun, **ENDS, **more).rstrip("abc")


async def infill(found: World, **fields: Any) -> dict[str, Any]:
    body = {"input_prefix": "de", "input_suffix": "fd", "n_predict": 20, "temperature": 0, **fields}
    answer = await found.client.post("/infill", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


SEED = next(seed for seed in range(99) if len(written(temperature=1.0, seed=seed)) > 3)
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": SEED}


async def test_the_text_stands_between_prefix_and_suffix() -> None:
    async with world(endpoints=Filling) as found:
        told = await infill(found, **SAMPLED)
        completed = await found.complete("de", suffix="fd", **SAMPLED)
        events = events_of((await found.post("de", suffix="fd", stream=True, **SAMPLED)).text)
        generated = await found.client.post(
            "/api/generate", json={"prompt": "de", "suffix": "fd", "stream": False, "options": SAMPLED}
        )
    assert told["content"] == written(**SAMPLED)
    assert completed["choices"][0]["text"] == written(**SAMPLED)
    assert "".join(each["choices"][0]["text"] for each in events) == written(**SAMPLED)
    assert completed["choices"][0]["finish_reason"] == "stop"
    assert generated.json()["response"] == written(**SAMPLED)


async def test_the_prompt_of_infill_begins_the_text() -> None:
    async with world(endpoints=Filling) as found:
        told = await infill(found, prompt="f", **SAMPLED)
    assert told["content"] == written("f", **SAMPLED)


async def test_editors_get_the_fields_that_they_read() -> None:
    """llama.vim and llama.vscode read these."""
    async with world(endpoints=Filling) as found:
        told = await infill(found, n_predict=3, ignore_eos=True, **SAMPLED)
        chosen = await infill(
            found,
            response_fields=["content", "timings/prompt_n", "truncated", "tokens_cached", "timings/none"],
        )
    assert told["stop"] is True
    assert told["truncated"] is False
    assert told["tokens_predicted"] == told["timings"]["predicted_n"] == 3
    assert told["timings"]["predicted_per_second"] == pytest.approx(2e3 / told["timings"]["predicted_ms"])
    assert told["stop_type"] == "limit"
    assert told["tokens_evaluated"] == len(PROMPT)
    assert {"prompt_n", "prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second"} <= set(
        told["timings"]
    )
    assert {"generation_settings", "tokens_cached", "model"} <= set(told)
    assert set(chosen) == {"content", "timings/prompt_n", "truncated", "tokens_cached"}
    assert chosen["timings/prompt_n"] + chosen["tokens_cached"] == len(PROMPT)


async def test_a_continuation_of_llama_server_is_that_of_completions() -> None:
    """By a text and by token ids, whole and streamed; `n_predict` -1 is as much as fits."""
    async with world() as found:
        body = {"prompt": "abc", "n_predict": 5, "ignore_eos": True, "return_tokens": True, **SAMPLED}
        told = (await found.client.post("/completion", json=body)).json()
        streamed = (await found.client.post("/completion", json={**body, "stream": True})).text
        same = await found.complete("abc", max_tokens=5, ignore_eos=True, **SAMPLED)
        short = await found.client.post(
            "/completion", json={"prompt": "abc", "max_tokens": 5, "ignore_eos": True}
        )
        own = {"prompt": "abc", "n_predict": -1, "response_fields": []}
        most = (await found.client.post("/completion", json=own)).json()
    events = events_of(f"{streamed}data: [DONE]\n")  # which llama-server sends to OpenAI's clients only
    assert told["content"] == same["choices"][0]["text"] == "".join(each["content"] for each in events)
    assert told["tokens"] == [token for each in events for token in each["tokens"]]
    assert (told["stop_type"], events[-1]["stop"]) == ("limit", True)
    assert len(told["tokens"]) == told["timings"]["predicted_n"] == 5
    assert short.json()["tokens_predicted"] == 5
    assert most["stop_type"] in ("eos", "limit")
    assert most["tokens"] == []


async def test_reading_files_ahead_shows_no_text() -> None:
    """llama.vim sends its files with `n_predict` 0 in the background."""
    async with world(endpoints=Filling) as found:
        extra = [{"filename": "a.py", "text": "def", "time": 3}]
        told = await infill(found, n_predict=0, input_extra=extra)
        nothing = await infill(found, n_predict=0, response_fields=[""])
    assert told["content"] == ""
    assert told["tokens_predicted"] == 0
    assert told["tokens_evaluated"] > len(PROMPT)
    assert nothing == {}


async def test_a_model_without_the_tokens_refuses() -> None:
    async with world() as found:
        answer = await found.client.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "suffix")


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"prompt": [1, 2], "suffix": "b"}, "suffix"),
    ("/v1/completions", {"prompt": "a", "suffix": 3}, "suffix"),
    ("/infill", {"input_prefix": 3}, "input_prefix"),
    ("/infill", {"input_extra": ["a"]}, "input_extra[0]"),
    ("/infill", {"input_extra": [{"text": 1}]}, "input_extra[0].text"),
    ("/infill", {"n_predict": "all"}, "n_predict"),
    ("/infill", {"grammar": "root ::= [a-z]"}, "grammar"),
    ("/infill", {"input_prefix": "a" * 9000}, "input_prefix"),
    ("/completion", {"n_predict": 3}, "prompt"),
    ("/completion", {"prompt": ["a", "b"]}, "prompt"),
    ("/completion", {"prompt": "a", "n_probs": 2}, "n_probs"),
    ("/completion", {"prompt": "a", "n": 2}, "n"),
]


async def test_wrong_fields_are_named() -> None:
    async with world(endpoints=Filling) as found:
        for path, body, param in WRONG:
            answer = await found.client.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
