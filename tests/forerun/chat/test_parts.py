"""Chunks become parts; what is none of a daemon's is said so."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import CapacityError, LocalError, PeerError, UnavailableError, UserError
from forerun.chat.parts import (
    Difference,
    Ended,
    Guess,
    Mode,
    Note,
    Part,
    Retract,
    Run,
    Text,
    read_parts,
)


def parts(ours: Any = None, **choice: Any) -> list[Part]:
    return list(read_parts({"choices": [choice], **({} if ours is None else {"forerun": ours})}))


def test_text_of_both_endpoints_is_told_by_writer() -> None:
    origins = {"origins": [["ab", "drafted", 2], ["c", "server", 1]]}
    expected = [Text((Run("ab", "drafted", 2), Run("c", "server", 1)))]
    assert parts(origins, delta={"content": "abc"}) == expected
    assert parts(origins, text="abc") == expected
    assert parts(text="abc") == [Text((Run("abc", "", 1),))]
    assert parts(delta={"role": "assistant", "content": ""}) == []


def test_the_end_has_the_figures() -> None:
    assert parts({"tokens": 3}, delta={}, finish_reason="stop") == [Ended("stop", {"tokens": 3})]


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ({"mode": "ahead", "notes": ["nothing is drafted: no file"]}, [Note("nothing is drafted: no file")]),
        ({"mode": "device-only", "why": "no server"}, [Mode("device-only", "no server")]),
        ({"guess": {"start": 3, "texts": ["a", "b"]}}, [Guess(3, ("a", "b"))]),
        ({"retract": 0}, [Retract(0)]),
        ({"difference": {"place": 2, "device": "x", "target": "y"}}, [Difference("x", "y")]),
    ],
)
def test_what_openai_has_no_words_for(ours: Any, expected: list[Part]) -> None:
    assert parts(ours, delta={}) == expected


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"message": "m", "type": "invalid_request_error"}, UserError),
        ({"message": "m", "type": "rate_limit_error"}, CapacityError),
        ({"message": "m", "type": "server_error", "code": "verifier_unavailable"}, UnavailableError),
        ({"message": "m", "type": "server_error", "code": "internal_error"}, LocalError),
        ("what", PeerError),
    ],
)
def test_an_error_is_raised_as_what_it_is(told: object, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        list(read_parts({"error": told}))


@pytest.mark.parametrize("chunk", [7, {"choices": 7}, {"choices": [{}], "forerun": {"guess": {"start": 1}}}])
def test_nonsense_is_the_daemons_fault(chunk: object) -> None:
    with pytest.raises(PeerError):
        list(read_parts(chunk))
