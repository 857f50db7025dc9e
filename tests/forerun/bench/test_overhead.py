"""What a step takes beyond its floor: from samples that are known, and on a verifier."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.errors import UserError
from forerun.bench.job import Drafts
from forerun.bench.meter import PARTS
from forerun.bench.overhead import OverheadPlan, overhead
from forerun.cli import main


def sample(cycle: float, gap: float) -> dict[str, Any]:
    return {
        "steps": 10, "rows": 640, "cpu_ms": 70.0, "engine_cpu_ms": 20.0,
        "cycle_ms": {"mean": cycle, "p95": cycle}, "gap_ms": {"mean": gap, "p50": gap},
        "scheduler_ms": dict.fromkeys(PARTS, 10.0),
    }  # fmt: skip


def test_the_overhead_is_the_cycle_beyond_the_step() -> None:
    found = overhead(8.0, [sample(9.0, 0.5), sample(8.8, 0.7), sample(20.0, 9.0)])
    assert found["overhead_share"] == 0.125  # of the median sample
    assert found["gap_ms"] == 0.7
    assert found["outside_cpu_ms"] == 5.0
    assert found["scheduler_ms"]["next_step"] == 1.0
    assert found["rows_per_step"] == 64.0


@pytest.mark.parametrize("wrong", [{"sessions": 0}, {"step_ms": 0.0}, {"seconds": 1.0}, {"policy": "none"}])
def test_what_cannot_be_measured_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        OverheadPlan(**wrong)


def test_a_draft_model_cannot_write_the_formulas_texts() -> None:
    with pytest.raises(UserError, match="no model's"):
        OverheadPlan(drafts=(Drafts("recorded"),))


@pytest.mark.grpc
def test_the_command_measures_plain_and_drafting_sessions(
    capfd: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    words = ["--sessions", "2", "--step-ms", "4", "--seconds", "0.9", "--sample", "0.3", "--no-pin", "--json"]
    profile = tmp_path / "profile.txt"
    assert main(["bench", "overhead", *words, "--profile", str(profile)]) == 0
    report = json.loads(capfd.readouterr().out)
    assert set(report["drafts"]) == {"off", "oracle=0.8"}
    for found in report["drafts"].values():
        assert found["cycle_ms"] >= 4.0
        assert found["overhead_share"] >= 0.0
        assert found["texts"] >= 2
        assert found["texts_different"] == found["failed"] == 0
    assert report["drafts"]["off"]["rows_per_step"] == pytest.approx(2.0, abs=1.0)
    assert "on_step_done" in profile.read_text(encoding="utf-8")
