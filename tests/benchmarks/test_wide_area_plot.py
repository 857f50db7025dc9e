"""Laws of the wide-area plot: a panel per floor and temperature, a line per scheme with the target's text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.wide_area_plot import plot
from benchmarks.wide_area_report import DEVICE_ONLY, SPEEDUP, Report, Setting
from common.errors import UserError
from forerun.schemes import FORERUN, SERVER_STREAMING
from simulator import canvas
from simulator.palette import COLOURS

pytest.importorskip("matplotlib", reason="plots need matplotlib, of the extra `simulation`")


def row(setting: Setting, **speedups: float) -> dict[str, Any]:
    axes = {"floor_ms": setting.floor_ms, "temperature": setting.temperature, "rtt_ms": setting.rtt_ms}
    return {**axes, SPEEDUP: speedups}


def test_panels_lines_and_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(canvas.FONTS, "svg.fonttype", "none")
    settings = [
        Setting(floor, temperature, rtt)
        for floor in (10.0, 30.0)
        for temperature in (0.0, 0.8)
        for rtt in (60.0, 0.0)
    ]
    ratios = {SERVER_STREAMING: 1.0, FORERUN: 2.5, DEVICE_ONLY: 20.0}
    out = tmp_path / "plot.svg"
    plot(Report({}, {}, {each: row(each, **ratios) for each in settings}), out)
    svg = out.read_text(encoding="utf-8")
    for floor in (10, 30):
        for temperature in ("0", "0.8"):
            assert f">target step {floor} ms, temperature {temperature}<" in svg
    assert COLOURS[FORERUN] in svg
    assert f">{FORERUN}<" in svg
    assert COLOURS[DEVICE_ONLY] not in svg
    assert svg.count("the draft alone, its own text: 20 times") == 4


def test_an_empty_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to plot"):
        plot(Report({}), tmp_path / "plot.svg")
