"""What a stream's events say of who wrote, and how times are told."""

from __future__ import annotations

from benchmarks.faults.outages import _spread, origins


def test_an_event_tells_every_writer_of_its_tokens() -> None:
    event = {"choices": [], "forerun": {"origins": [["a", "drafted", 2], ["b", "server", 1]]}}
    assert origins(event) == {"drafted", "server"}
    assert origins({"choices": [], "forerun": {"mode": "waiting"}}) == set()
    assert origins({"choices": []}) == set()


def test_the_longest_and_the_middle_are_told() -> None:
    assert _spread([0.3, 0.1, 0.2004]) == {"p50_s": 0.2, "longest_s": 0.3}
