"""The picture of a capacity report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from forerun.bench.plots import plot_capacity, rows_of, styles_of
from forerun.bench.schemes import CONTINUOUS, PADDED, SEQUENTIAL, STREAMING
from forerun.cli import main

pytest.importorskip("matplotlib")

NAMES = (STREAMING, "oracle 0.6", "oracle 0.8", "recorded", SEQUENTIAL, CONTINUOUS, PADDED)


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


def test_rows_are_in_the_order_of_the_axis() -> None:
    x, rows = rows_of(report())
    assert x == "sessions"
    assert [row[x] for row in rows if row["scheme"] == STREAMING] == [1, 8, 32]


def test_every_scheme_looks_different() -> None:
    found = styles_of(NAMES)
    assert list(found) == list(NAMES)
    assert len({(style.colour, style.line) for style in found.values()}) == len(NAMES)


def test_an_empty_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to plot"):
        plot_capacity({"points": []}, tmp_path / "x.png")


def test_the_command_draws_a_report_and_no_other_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "report.json", tmp_path / "report.png"
    path.write_text(json.dumps(report("sessions_per_second")), encoding="utf-8")
    assert main(["bench", "plot", str(path), "--out", str(out)]) == 0
    assert out.stat().st_size > 1000
    path.write_text("{}", encoding="utf-8")
    assert main(["bench", "plot", str(path), "--out", str(out)]) == 2
    assert "no report of `forerun bench capacity`" in capsys.readouterr().err
