"""Laws of the wide-area benchmark: its settings, its report and plot, and one small run of everything."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from forerun.commands.comparison import MeasuredScheme
from lab.benchmarks.wide_area import (
    COLOCATED,
    DEVICE_ONLY,
    SPEEDUP,
    LinkSetting,
    WideAreaReport,
    main,
    make_parser,
    plot,
    row_of,
    settings_of,
)
from simulator.schemes import FORERUN, SERVER_STREAMING, SYNC_BEST


def options_of(*words: str) -> argparse.Namespace:
    return make_parser().parse_args(["measure", "--out", "x.json", *words])


def test_every_combination_runs_floor_by_floor_the_nearest_first() -> None:
    options = options_of(
        "--rtt", "60", "20", "--floor", "30", "10", "--temperature", "0.8", "--schemes", "tree"
    )
    assert settings_of(options) == [
        LinkSetting(floor, 0.8, rtt) for floor in (30.0, 10.0) for rtt in (20.0, 60.0)
    ]


@pytest.mark.soak
@pytest.mark.torch
@pytest.mark.llama
@pytest.mark.grpc
def test_everything_runs_and_is_not_run_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    words = ["measure", "--out", str(out), "--num-prompts", "1", "--max-tokens", "16", "--blocks", "4", "2"]
    words += ["--floor", "0", "--temperature", "0.8"]
    assert main([*words, "--rtt", "4"]) == 0
    first = out.read_bytes()
    near, far = json.loads(first)["results"]
    for row in (near, far):
        assert row["identical_after_cut"]
        claimed = {name: found["identical"] for name, found in row["schemes"].items()}
        assert claimed.pop("device_only") is None
        assert claimed == dict.fromkeys(
            ["server_streaming", "chain", "tree", "forerun", "sync_best", "colocated"], True
        )
        assert row["schemes"]["device_only"]["bytes_up_per_token"] == 0.0
        assert row["schemes"]["device_only"]["draft_evaluations_per_token"] == 1.0
    assert far["schemes"]["colocated"]["ms_per_token"] == near["schemes"]["sync_best"]["ms_per_token"]
    assert "RTT 0 ms" in capfd.readouterr().err
    assert main([*words, "--rtt", "0", "4"]) == 0
    assert out.read_bytes() == first
    assert "left" not in capfd.readouterr().err


# The report

STATS = {
    "target_steps": 4, "evaluated": 8, "proposed": 12, "drafted": 16, "draft_steps": 8, "draft_time": 0.016,
    "compute_time": 0.12,
}  # fmt: skip
TEXT = [5, 6, 7, 8]


def run(ms: float, tokens: list[int] = TEXT, **stats: float) -> dict[str, Any]:
    """A run: the first token after 100 ms, the others `ms` apart."""
    arrivals = [100.0 + ms * place for place in range(len(tokens))]
    link = {"link_bytes_up": 40, "link_bytes_down": 80}
    return {"text": tokens, "arrivals_ms": arrivals, "stats": {**STATS, **stats}, **link}


def measured(sync_ms: float) -> MeasuredScheme:
    runs = {
        SERVER_STREAMING: [run(30.0), run(30.0)],
        FORERUN: [run(10.0), run(20.0)],
        DEVICE_ONLY: [run(2.0, [5, 9, 9, 9], target_steps=0), run(2.0, target_steps=0)],
        SYNC_BEST: [run(sync_ms), run(sync_ms)],
    }
    return MeasuredScheme(runs, 8, {8: sync_ms, 12: sync_ms + 1})


def report_of(*rtts: float) -> WideAreaReport:
    report = WideAreaReport({"seed": 1})
    for rtt in rtts:
        setting = LinkSetting(30.0, 0.8, rtt)
        report.add(setting, row_of(setting, measured(12.0 + rtt), True), with_colocated=True)
    return report


def test_a_row_has_the_figures_of_every_scheme() -> None:
    row = report_of(0.0).rows[LinkSetting(30.0, 0.8, 0.0)]
    forerun = row["schemes"][FORERUN]
    assert (forerun["ms_per_token"], forerun["ttft_ms"]) == (15.0, 100.0)
    assert forerun["ms_per_token_by_prompt"] == [10.0, 20.0]
    assert (forerun["draft_step_ms"], forerun["target_step_ms"]) == (2.0, 30.0)
    assert (forerun["target_steps_per_token"], forerun["bytes_up_per_token"]) == (1.0, 10.0)
    assert row["sync_search_ms_per_token"] == {"8": 12.0, "12": 13.0}
    assert row[SPEEDUP] == {
        SERVER_STREAMING: 1.0, FORERUN: 2.0, DEVICE_ONLY: 15.0, SYNC_BEST: 2.5, COLOCATED: 2.5
    }  # fmt: skip


def test_a_report_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report = report_of(0.0, 60.0)
    report.write(path)
    assert WideAreaReport.resumed(path, {"seed": 1}, {"machine": "another"}) == report
    new = WideAreaReport({"seed": 1}, {})
    assert WideAreaReport.resumed(tmp_path / "new.json", {"seed": 1}, {}) == new
    with pytest.raises(UserError, match=r"other options \(max_tokens, seed\)"):
        WideAreaReport.resumed(path, {"seed": 2, "max_tokens": 5}, {})
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="not a report"):
        WideAreaReport.resumed(path, {"seed": 1}, {})


# The plot

plots = pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")


@plots
def test_an_empty_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to plot"):
        plot(WideAreaReport({}), tmp_path / "plot.svg")
