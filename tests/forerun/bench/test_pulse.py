"""A pulse counts what came since the last look, and how long who is still waiting has waited."""

from __future__ import annotations

import pytest

from forerun.bench.job import TextRun
from forerun.bench.pulse import Pulse


def test_tokens_gaps_and_texts_are_told_once() -> None:
    pulse = Pulse()
    text = pulse.opened(10.0)
    pulse.began(0.5)
    pulse.arrived(text, 1, 10.5)
    pulse.arrived(text, 3, 10.7)
    pulse.ended(text, TextRun(0, 10.0, finished=True, difference=2))
    told = pulse.take(11.0)
    assert (told["tokens"], told["texts"], told["different"], told["active"]) == (4, 1, 1, 0)
    assert told["gap_ms"]["max"] == pytest.approx(500.0)
    assert told["ttft_ms"]["p50"] == pytest.approx(500.0)
    assert pulse.take(12.0)["tokens"] == 0


def test_who_has_not_been_served_yet_waits_longest() -> None:
    pulse = Pulse()
    pulse.opened(10.0)
    quick = pulse.opened(10.0)
    pulse.arrived(quick, 1, 10.2)
    assert pulse.take(13.0)["longest_wait_ms"] == pytest.approx(3000.0)
    assert pulse.take(14.0)["longest_wait_ms"] == pytest.approx(4000.0)  # and goes on waiting


def test_a_long_wait_that_is_over_is_told_too() -> None:
    pulse = Pulse()
    text = pulse.opened(10.0)
    pulse.arrived(text, 1, 15.0)
    pulse.arrived(text, 1, 15.1)
    assert pulse.take(15.2)["longest_wait_ms"] == pytest.approx(5000.0)


def test_refusals_and_failures_are_kept_apart() -> None:
    pulse = Pulse()
    pulse.ended(pulse.opened(1.0), TextRun(0, 1.0, refused=True, error="full"))
    pulse.ended(pulse.opened(1.0), TextRun(1, 1.0, error="lost"))
    told = pulse.take(2.0)
    assert (told["refused"], told["failed"], told["texts"]) == (1, 1, 0)
