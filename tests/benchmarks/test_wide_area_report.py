"""Laws of the wide-area report: what it claims of whose text, how it is gone on with, what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.wide_area_report import (
    COLOCATED,
    DEVICE_ONLY,
    SPEEDUP,
    Report,
    Setting,
    is_identical,
    row_of,
    table,
)
from common.errors import UserError
from forerun.schemes import FORERUN, SERVER_STREAMING, SYNC_BEST, Measured

STATS = {
    "target_steps": 4,
    "evaluated": 8,
    "proposed": 12,
    "drafted": 16,
    "draft_steps": 8,
    "draft_time": 0.016,
    "compute_time": 0.12,
}
TEXT = [5, 6, 7, 8]


def run(ms: float, tokens: list[int] = TEXT, **stats: float) -> dict[str, Any]:
    """A `done` event: the first token after 100 ms, the others `ms` apart."""
    arrivals = [100.0 + ms * place for place in range(len(tokens))]
    link = {"link_bytes_up": 40, "link_bytes_down": 80}
    return {"tokens": tokens, "arrivals_ms": arrivals, "stats": {**STATS, **stats}, **link}


def measured(sync_ms: float) -> Measured:
    runs = {
        SERVER_STREAMING: [run(30.0), run(30.0)],
        FORERUN: [run(10.0), run(20.0)],
        DEVICE_ONLY: [run(2.0, [5, 9, 9, 9], target_steps=0), run(2.0, target_steps=0)],
        SYNC_BEST: [run(sync_ms), run(sync_ms)],
    }
    return Measured(runs, 8, {8: sync_ms, 12: sync_ms + 1})


def report_of(*rtts: float) -> Report:
    report = Report({"seed": 1})
    for rtt in rtts:
        setting = Setting(30.0, 0.8, rtt)
        report.add(setting, row_of(setting, measured(12.0 + rtt), True), with_colocated=True)
    return report


def test_a_row_has_the_figures_of_every_scheme() -> None:
    row = report_of(0.0).rows[Setting(30.0, 0.8, 0.0)]
    forerun = row["schemes"][FORERUN]
    assert (forerun["ms_per_token"], forerun["ttft_ms"]) == (15.0, 100.0)
    assert forerun["ms_per_token_by_prompt"] == [10.0, 20.0]
    assert (forerun["draft_step_ms"], forerun["target_step_ms"]) == (2.0, 30.0)
    assert (forerun["target_steps_per_token"], forerun["bytes_up_per_token"]) == (1.0, 10.0)
    assert row["sync_search_ms_per_token"] == {"8": 12.0, "12": 13.0}
    assert row[SPEEDUP] == {
        SERVER_STREAMING: 1.0, FORERUN: 2.0, DEVICE_ONLY: 15.0, SYNC_BEST: 2.5, COLOCATED: 2.5
    }  # fmt: skip


def test_of_the_device_alone_nothing_is_said_but_whose_text_it_is() -> None:
    row = report_of(0.0).rows[Setting(30.0, 0.8, 0.0)]
    alone = row["schemes"][DEVICE_ONLY]
    assert (alone["identical"], alone["text_of"], alone["target_step_ms"]) == (None, "draft", None)
    assert {each["text_of"] for name, each in row["schemes"].items() if name != DEVICE_ONLY} == {"target"}
    assert is_identical(row)


def test_another_text_of_any_other_scheme_is_told() -> None:
    found = measured(12.0)
    found.runs[FORERUN][1]["tokens"] = [5, 6, 7, 9]
    row = row_of(Setting(30.0, 0.8, 0.0), found, True)
    assert not is_identical(row)
    report = Report({}, {}, {Setting(30.0, 0.8, 0.0): {**row, SPEEDUP: {}}})
    assert "NO" in table(report)


def test_a_draft_beside_the_target_knows_the_users_link_by_its_first_token_only() -> None:
    near, far = (row["schemes"][COLOCATED] for row in report_of(0.0, 60.0).rows.values())
    assert (near["ms_per_token"], far["ms_per_token"]) == (12.0, 12.0)
    assert (near["ttft_ms"], far["ttft_ms"]) == (100.0, 160.0)
    assert (far["block"], far["bytes_up_per_token"], far["measured_at_rtt_ms"]) == (8, None, 0.0)


def test_a_report_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report = report_of(0.0, 60.0)
    report.write(path)
    assert Report.resumed(path, {"seed": 1}, {"machine": "another"}) == report


def test_other_options_are_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report_of(0.0).write(path)
    with pytest.raises(UserError, match=r"other options \(max_tokens, seed\)"):
        Report.resumed(path, {"seed": 2, "max_tokens": 5}, {})
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="not a report"):
        Report.resumed(path, {"seed": 1}, {})


def test_a_report_that_is_not_there_is_a_new_one(tmp_path: Path) -> None:
    assert Report.resumed(tmp_path / "new.json", {"seed": 1}, {}) == Report({"seed": 1}, {})


def test_a_table_has_a_line_a_setting_and_a_column_a_scheme() -> None:
    report = report_of(0.0, 60.0)
    del report.rows[Setting(30.0, 0.8, 0.0)]["schemes"][FORERUN]
    name, head, first, second, note = table(report).split("\n")
    assert name == "ms_per_token"
    titles = "floor T RTT streaming best sync forerun co-located device* k identical after a cut"
    assert " ".join(head.split()) == titles
    assert first.split() == ["30", "0.8", "0", "30.00", "12.00", "12.00", "2.00", "8", "yes", "yes"]
    assert second.split() == [
        "30",
        "0.8",
        "60",
        "30.00",
        "72.00",
        "15.00",
        "12.00",
        "2.00",
        "8",
        "yes",
        "yes",
    ]
    assert "not the target's" in note
    assert table(report, SPEEDUP).split("\n")[3].split()[3:8] == ["1.00", "0.42", "2.00", "2.50", "15.00"]
