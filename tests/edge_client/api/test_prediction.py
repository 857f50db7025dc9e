"""Texts that a client expects: drafted from without the draft model, whatever they hold."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import UnavailableError
from edge_client.api.response import ResponseSpec
from edge_client.formats.openai import ChatCompletion
from edge_client.texts.text_service import Orders
from tests.edge_client.api.world import Letters, World, alone, world

pytestmark = [pytest.mark.api, pytest.mark.grpc]

LENGTH = 60
LONG: dict[str, Any] = {"max_tokens": LENGTH, "ignore_eos": True}
TEXT = alone(**LONG)


def parts(*texts: str) -> dict[str, Any]:
    return {"type": "content", "content": [{"type": "text", "text": text} for text in texts]}


@pytest.mark.parametrize(
    "given",
    [
        {"prediction": {"type": "content", "content": TEXT}},
        {"prediction": parts(TEXT[:20], TEXT[20:])},
        {"forerun": {"reference": TEXT}},
        {"forerun": {"reference": ["", TEXT, "fed"]}},
    ],
)
async def test_an_expected_text_costs_few_target_steps_and_no_draft(given: dict[str, Any]) -> None:
    async with world(step_time=0.01) as found:
        found.seats.failure = UnavailableError("there is no draft model")
        body = await found.chat(**LONG, **given)
    assert body["choices"][0]["message"]["content"] == TEXT
    assert body["forerun"]["target_steps"] < LENGTH / 2
    assert not found.seats.num_taken
    told = body["usage"]["completion_tokens_details"]
    assert told["accepted_prediction_tokens"] > LENGTH / 2


async def test_the_text_does_not_depend_on_what_was_expected() -> None:
    async with world() as found:
        for text in ("", "fedcba" * 40, TEXT[:10] + "c" + TEXT[20:], "no letters"):
            given: dict[str, Any] = {"temperature": 1.2 if "f" in text else 0, "seed": 3}
            body = await found.complete(**LONG, **given, prediction={"type": "content", "content": text})
            assert body["choices"][0]["text"] == alone(**LONG, **given)


async def proposed(found: World, **fields: Any) -> int:
    body = await found.chat(**LONG, **fields, prediction=parts(TEXT))
    told: int = body["forerun"]["proposed"]
    return told


async def test_nothing_is_drafted_from_it_where_nothing_shall_be_drafted() -> None:
    async with world() as found:
        found.seats.failure = UnavailableError("there is no draft model")
        assert await proposed(found)
        assert not await proposed(found, forerun={"speculate": False})
        assert not await proposed(found, forerun={"policy": "off"})
        found.texts.orders = Orders.DRAFT_OFF
        assert not await proposed(found)


async def test_it_is_kept_with_the_text_that_goes_on_after_a_restart() -> None:
    async with world() as found:
        body = {"messages": [{"role": "user", "content": "abc"}], "prediction": parts(TEXT)}
        spec = await found.api.pairs.first.read(ChatCompletion, body)
    again = ResponseSpec.from_json(spec.to_json(), (), frozenset())
    assert again.requests[0].references == (tuple(Letters().tokenize(TEXT, False)),)
