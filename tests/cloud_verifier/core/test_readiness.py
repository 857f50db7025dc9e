"""Readiness says when nobody should come, why, and does not flutter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloud_verifier.core.readiness import Readiness, Standing

ROOM = Standing(draining=False, num_sessions=3, max_sessions=64, num_available=1000, num_slots=1000)


def test_with_room_it_is_ready() -> None:
    assert Readiness().why_not(ROOM) == ""


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (replace(ROOM, draining=True), "it is draining"),
        (replace(ROOM, num_sessions=64), "all 64 sessions that it takes are here"),
        (replace(ROOM, num_available=19), "19 of 1000 KV slots are left"),
    ],
)
def test_without_it_says_why(standing: Standing, words: str) -> None:
    assert Readiness().why_not(standing).startswith(words)


def test_one_that_was_full_is_ready_only_when_there_is_room_for_several() -> None:
    readiness = Readiness()
    seen = [
        (left, readiness.why_not(replace(ROOM, num_available=left)) == "")
        for left in (30, 19, 30, 49, 50, 20)
    ]
    assert seen == [(30, True), (19, False), (30, False), (49, False), (50, True), (20, True)]
