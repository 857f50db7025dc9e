"""An engine's own figures are found wherever the engine is, and one without any has none."""

from __future__ import annotations

import pytest

from cloud_verifier.core.target import TargetInfo
from cloud_verifier.engine.floor import FlooredEngine
from cloud_verifier.engine.stats import Stats, stats_of
from tests.worlds.models import FINGERPRINT, VOCAB, TinyTarget

INFO = TargetInfo("tiny", VOCAB, 64, 64, (), FINGERPRINT)


class Counting(TinyTarget):
    def stats(self) -> Stats:
        return {"graph_steps_total": 2.0}


def test_an_engine_may_tell_figures_and_need_not() -> None:
    assert stats_of(Counting(INFO)) == {"graph_steps_total": 2.0}
    assert stats_of(TinyTarget(INFO)) == {}


def test_a_floor_hides_no_figures() -> None:
    assert stats_of(FlooredEngine(Counting(INFO), 0.01)) == {"graph_steps_total": 2.0}
    assert stats_of(FlooredEngine(TinyTarget(INFO), 0.01)) == {}


@pytest.mark.torch
@pytest.mark.parallel
def test_leading_other_ranks_hides_no_figures() -> None:
    from cloud_verifier.engine.parallel import Leader, LeadingEngine, Ranks

    leader = Leader(Ranks(0, 2, patience=60.0))
    assert stats_of(LeadingEngine(Counting(INFO), leader)) == {"graph_steps_total": 2.0}
    with leader.lock:
        leader.lose(RuntimeError("nobody was there"))
    leader.end()
