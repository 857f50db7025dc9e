"""While the draft model is being loaded a text begins without it, and drafts as soon as it is there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.errors import UserError
from tests.edge_client.api.world import Seats, World, alone, events_of, world

pytestmark = [pytest.mark.api, pytest.mark.grpc]

LONG: dict[str, Any] = {"max_tokens": 120, "ignore_eos": True}


async def writing(found: World, num_tokens: int) -> None:
    """Until the only text has so many tokens."""
    while not any(len(live.answer.tokens) >= num_tokens for live in found.device.live.values()):  # noqa: ASYNC110
        await asyncio.sleep(0.001)  # readers of the stream alone are told


async def test_it_begins_at_once_and_drafts_when_the_model_comes() -> None:
    seats = Seats()
    seats.loaded.clear()
    async with world(seats=seats, step_time=0.004) as found:
        asking = asyncio.create_task(found.post_chat(stream=True, forerun={"policy": "tree"}, **LONG))
        await writing(found, 20)
        assert seats.num_taken == 0
        seats.loaded.set()
        events = events_of((await asking).text)
    ours = events[-1]["forerun"]
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == alone(**LONG)
    assert ours["accepted"] > 0
    assert ours["target_steps"] < 120
    assert ours["notes"] == []


async def test_a_model_that_cannot_be_loaded_leaves_the_text_to_the_verifier() -> None:
    seats = Seats()
    seats.loaded.clear()
    seats.failure = UserError("the file is broken")
    async with world(seats=seats, step_time=0.004) as found:
        asking = asyncio.create_task(found.chat(**LONG))
        await writing(found, 20)
        seats.loaded.set()
        body = await asking
    assert body["choices"][0]["message"]["content"] == alone(**LONG)
    assert body["forerun"]["notes"] == ["nothing is drafted: the file is broken"]
    assert body["forerun"]["mode"] == "server-only"


async def test_a_text_that_ends_before_takes_no_seat() -> None:
    seats = Seats()
    seats.loaded.clear()
    async with world(seats=seats) as found:
        body = await found.chat(max_tokens=5, ignore_eos=True)
        seats.loaded.set()
        again = await found.chat(max_tokens=5, ignore_eos=True)
    assert body["choices"] == again["choices"]


async def test_the_drafts_own_text_waits_for_it() -> None:
    seats = Seats()
    seats.loaded.clear()
    async with world(seats=seats) as found:
        asking = asyncio.create_task(found.chat(model="tiny-draft", **LONG))
        await asyncio.sleep(0.1)  # longer than a text waits that can begin without
        assert not asking.done()
        seats.loaded.set()
        body = await asking
    assert body["forerun"]["device_tokens"] == 120
