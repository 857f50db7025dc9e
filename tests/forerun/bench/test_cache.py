"""Chats share no beginning; what was seen is worth something, and changes no text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.errors import UserError
from forerun.bench.cache import CachePlan, chats_of
from forerun.bench.formula import FORMULA
from forerun.cli import main


def test_chats_have_the_length_asked_for_and_no_common_beginning() -> None:
    plan = CachePlan(FORMULA, history=100, answer=10, question=20, chats=4)
    chats = chats_of(plan, [list(range(50)), list(range(50, 80))])
    assert [len(chat.opening) for chat in chats] == [90] * 4
    assert [len(chat.question) for chat in chats] == [20] * 4
    assert len({chat.opening[:1] for chat in chats}) == 4


@pytest.mark.parametrize("wrong", [{"history": 8, "answer": 8}, {"chats": 0}, {"question": 0}])
def test_what_is_no_chat_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        CachePlan(FORMULA, **wrong)


@pytest.mark.grpc
def test_a_second_turn_comes_sooner_where_the_first_was_seen(capfd: pytest.CaptureFixture[str]) -> None:
    """A step takes 20 ms and reads 1,024 tokens of a session that is alone: 2,100 of them take three, the
    second turn of a chat that was seen one."""
    words = ["--target", FORMULA, "--history", "2100", "--answer", "4", "--question", "4", "--chats", "3"]
    assert main(["bench", "cache", *words, "--step-floor", "20", "--no-pin", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["texts"] == 3
    assert report["texts_different"] == 0
    assert report["ttft_ratio"] > 1.0
    assert report["ttft_ms"]["second_turn_unseen"]["p50"] >= 60.0
