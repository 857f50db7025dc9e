"""Text completions: prompts as text or tokens, OpenAI's older shape."""

from __future__ import annotations

from typing import Any

import pytest

from tests.edge_client.api.world import alone, events_of, world

pytestmark = [pytest.mark.api, pytest.mark.grpc]

NEUTRAL: dict[str, Any] = {
    "n": 1,
    "best_of": 1,
    "echo": False,
    "suffix": "",
    "store": False,
    "service_tier": "auto",
    "user": "somebody",
    "top_k": -1,
    "top_p": 1,
    "min_p": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "response_format": {"type": "text"},
}
"""What clients send though it changes nothing."""


@pytest.mark.parametrize("prompt", ["abc", ["abc"], [1, 2, 3], [[1, 2, 3]]])
async def test_a_prompt_is_text_or_tokens(prompt: Any) -> None:
    async with world() as found:
        body = await found.complete(prompt)
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"][0]["text"] == alone()
    assert body["usage"]["prompt_tokens"] == 3


async def test_sixteen_tokens_are_written_where_nothing_is_said() -> None:
    async with world() as found:
        answer = await found.client.post(
            "/v1/completions", json={"prompt": "abc", "temperature": 0, "ignore_eos": True}
        )
    assert answer.json()["usage"]["completion_tokens"] == 16


async def test_a_stream_brings_the_same_text() -> None:
    async with world() as found:
        events = events_of((await found.post(stream=True)).text)
    assert "".join(event["choices"][0]["text"] for event in events) == alone()
    assert events[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    assert {event["object"] for event in events} == {"text_completion"}


async def test_null_counts_as_absent() -> None:
    nothing = dict.fromkeys(
        (
            "stop",
            "seed",
            "logit_bias",
            "user",
            "stream",
            "stream_options",
            "forerun",
            "n",
            "best_of",
            "suffix",
        )
    )
    async with world() as found:
        body = await found.complete(**nothing)
    assert body["choices"][0]["text"] == alone()


async def test_values_that_change_nothing_are_taken() -> None:
    async with world() as found:
        body = await found.complete(**NEUTRAL)
    assert body["choices"][0]["text"] == alone()


async def test_a_number_of_tokens_may_be_written_as_a_float() -> None:
    async with world() as found:
        body = await found.complete(max_tokens=5.0, ignore_eos=True)
    assert body["usage"]["completion_tokens"] == 5
