"""The picture of a capacity report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from lab.bench.load import SEQUENTIAL, STREAMING
from lab.bench.plots import plot_capacity

pytest.importorskip("matplotlib")

NAMES = (STREAMING, "oracle 0.6", "oracle 0.8", "recorded", SEQUENTIAL)


def report(axis: str = "sessions") -> dict[str, Any]:
    schemes = {
        name: {
            "tokens_per_second": 100.0 + place, "ms_per_token": 10.0, "ms_per_token_p95": 12.0,
            "ttft_ms_p50": 50.0, "ttft_ms_p95": None,
        }
        for place, name in enumerate(NAMES)
    }  # fmt: skip
    return {"benchmark": "capacity", "points": [{axis: each, "schemes": schemes} for each in (8, 1, 32)]}


def test_a_report_is_drawn_and_the_same_twice(tmp_path: Path) -> None:
    out = tmp_path / "capacity.svg"
    plot_capacity(report(), out)
    first = out.read_bytes()
    assert b"<path" in first
    plot_capacity(report(), out)
    assert out.read_bytes() == first


def test_an_empty_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to plot"):
        plot_capacity({"points": []}, tmp_path / "x.png")
