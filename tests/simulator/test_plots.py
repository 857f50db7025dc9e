"""Laws of plots: what was asked for is on them, a scheme keeps its colour, nothing half-drawn is left."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import CapacityError, UserError
from forerun.cli import main
from simulator.historical import HISTORICAL
from simulator.measures import PERCENTS
from simulator.palette import COLOURS, LABELS, MARKERS, SPARE, TITLES, styles
from simulator.plots import (
    plot_bytes,
    plot_capacity,
    plot_latency,
    plot_pace,
    plot_speedup,
    plot_validation,
    plot_waste,
)
from simulator.schemes import CLAIRVOYANT, COLOCATED, DEVICE_ONLY, FORERUN, SERVER_STREAMING, SYNC_BEST
from simulator.sweep import AXES, FIGURES
from simulator.tables import Row

pytest.importorskip("matplotlib", reason="plots need matplotlib, of the extra `simulation`")


def row(scheme: str, pace: float, **axes: Any) -> Row:
    """A point of a sweep, its other figures made up."""
    return {**axes, "scheme": scheme, **dict.fromkeys(FIGURES, 1.0), "policy": "x", "ms_per_token": pace}


def surface(with_colocated: bool = True) -> list[Row]:
    """Forerun crosses server streaming at 120 ms, and a draft beside the target at 60 ms."""
    rows = []
    for rtt, mean in itertools.product((0.0, 60.0, 200.0), (0.5, 0.9)):
        rows += [
            row(SERVER_STREAMING, 24.0, rtt_ms=rtt, mean=mean),
            row(FORERUN, 12.0 + 0.1 * rtt - mean, rtt_ms=rtt, mean=mean),
        ]
        rows += [row(COLOCATED, 17.5, rtt_ms=rtt, mean=mean)] * with_colocated
    return rows


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Calls a function that plots, and gives the SVG with its words as text."""
    from simulator import canvas

    monkeypatch.setitem(canvas.FONTS, "svg.fonttype", "none")

    def draw(plot: Callable[..., None], rows: list[Row], *arguments: Any) -> str:
        out = tmp_path / "plot.svg"
        plot(rows, out, *arguments)
        return out.read_text(encoding="utf-8")

    return draw


# Colours --------------------------------------------------------------------------------------------------


def test_every_scheme_has_a_colour_and_a_marker_of_its_own() -> None:
    named = {SERVER_STREAMING, SYNC_BEST, "chain", FORERUN, CLAIRVOYANT, COLOCATED, DEVICE_ONLY, *HISTORICAL}
    assert named == set(COLOURS) == set(MARKERS)
    assert len(set(COLOURS.values()) | {colour for colour, _ in SPARE}) == len(COLOURS) + len(SPARE)
    assert len(set(MARKERS.values())) == len(MARKERS)


# Linear RGB as people without a kind of cones see it: Machado, Oliveira and Fernandes 2009, severity 1.
SIGHTS = {
    "all cones": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}


def lab(colour: str, sight: str) -> np.ndarray:
    """CIE L*a*b* of a colour as seen."""
    encoded = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(SIGHTS[sight] @ linear, 0, 1) / (0.9505, 1.0, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_are_told_apart_by_everyone(sight: str) -> None:
    """A distance of 2.3 is just noticeable; lines in a legend need several times that."""
    seen = {name: lab(colour, sight) for name, colour in {**COLOURS, "paper": "#ffffff"}.items()}
    near = {(a, b): np.linalg.norm(seen[a] - seen[b]) for a, b in itertools.combinations(seen, 2)}
    assert min(near.values()) > 18, min(near, key=near.__getitem__)


def test_a_policy_with_settings_looks_the_same_in_every_plot() -> None:
    alone = styles(["sync:4"])["sync:4"]
    assert styles([FORERUN, "sync:4", SERVER_STREAMING])["sync:4"] == alone
    crowd = styles(f"sync:{block}" for block in range(1, len(SPARE) + 1))
    assert len(set(crowd.values())) == len(SPARE)


def test_every_axis_of_a_sweep_has_its_words() -> None:
    assert set(LABELS) == set(TITLES) == set(AXES)


# Kinds ----------------------------------------------------------------------------------------------------


def test_pace_has_a_line_per_scheme_and_a_panel_per_value(drawn: Callable[..., str]) -> None:
    svg = drawn(plot_pace, surface())
    for words in ("network round trip, ms", "acceptance 0.5", "acceptance 0.9", "ms per token, mean"):
        assert words in svg
    assert "95th percentile" in svg
    for scheme in (SERVER_STREAMING, FORERUN, COLOCATED):
        assert f">{scheme}<" in svg
        assert COLOURS[scheme] in svg


def test_pace_takes_profiles_to_the_right(drawn: Callable[..., str]) -> None:
    svg = drawn(plot_pace, [row(FORERUN, 10.0, profile=name) for name in ("wifi", "lte")], "profile")
    assert svg.index(">wifi<") < svg.index(">lte<")
    assert "network profile" in svg


def test_speedup_has_both_contours_where_they_are(drawn: Callable[..., str]) -> None:
    svg = drawn(plot_speedup, surface())
    assert "forerun as fast as server streaming" in svg
    assert "forerun as fast as a draft beside the target" in svg
    assert ">1.0<" in svg
    assert COLOURS[COLOCATED] in svg


def test_speedup_names_no_contour_that_is_not_there(drawn: Callable[..., str]) -> None:
    near = [each for each in surface(with_colocated=False) if each["rtt_ms"] < 100]
    svg = drawn(plot_speedup, near)
    assert "forerun, times as fast as server streaming" in svg
    assert "forerun as fast as" not in svg


def test_speedup_takes_a_draft_beside_the_target_with_a_policy_of_its_own(drawn: Callable[..., str]) -> None:
    name = f"{COLOCATED}:tree"
    rows = [{**each, "scheme": name if each["scheme"] == COLOCATED else each["scheme"]} for each in surface()]
    svg = drawn(plot_speedup, rows)
    assert f"forerun as fast as {name}" in svg
    assert styles([name])[name].colour in svg
    both = drawn(plot_speedup, rows + [each for each in surface() if each["scheme"] == COLOCATED])
    assert "forerun as fast as a draft beside the target" in both
    assert name not in both  # it is one of those among which the best was searched


@pytest.mark.parametrize("pace", [0.5, 24.0, 400.0])
def test_speedup_draws_extremes(drawn: Callable[..., str], pace: float) -> None:
    rows = surface(with_colocated=False)
    for each in rows:
        if each["scheme"] == FORERUN:
            each["ms_per_token"] = pace
    assert "times as fast as server streaming" in drawn(plot_speedup, rows)


def test_points_without_a_pace_are_left_out(drawn: Callable[..., str]) -> None:
    """As a sweep over texts of a single token reads back."""
    rows = surface(with_colocated=False)
    for each in rows[:2]:
        each.update(dict.fromkeys(name for name in FIGURES if name not in ("policy", "identical")))
    for plot in (plot_pace, plot_waste):
        assert COLOURS[FORERUN] in drawn(plot, rows)
    with pytest.raises(UserError, match=r"the point \('server_streaming', 0.0, 0.5\) are too short"):
        drawn(plot_speedup, rows)


def test_latency_has_a_panel_per_profile(drawn: Callable[..., str]) -> None:
    names = [f"p{percent:g}" for percent in PERCENTS]
    values = {name: 3.0 * place for place, name in enumerate(names)}
    rows = [
        {"profile": profile, "scheme": FORERUN, "kind": kind, **values}
        for profile in ("wifi", "lte")
        for kind in ("gap", "window")
    ]
    svg = drawn(plot_latency, rows)
    for words in (">wifi<", ">lte<", "share at most so long, %", "left edge: 1 or less", COLOURS[FORERUN]):
        assert words in svg
    assert "gap between two tokens, ms" in svg


def test_capacity_needs_a_crowd(drawn: Callable[..., str]) -> None:
    svg = drawn(plot_capacity, [row(FORERUN, 10.0, clients=count) for count in (1.0, 8.0)])
    assert ">clients<" in svg
    assert "10 to 90 %" in svg
    with pytest.raises(UserError, match="needs a sweep over clients or rate_per_s; this one varied rtt_ms"):
        drawn(plot_capacity, [row(FORERUN, 10.0, rtt_ms=rtt) for rtt in (1.0, 8.0)])


@pytest.mark.parametrize(
    ("plot", "words"), [(plot_waste, "draft tokens sent"), (plot_bytes, "bytes up")], ids=("waste", "bytes")
)
def test_bars_are_in_the_schemes_colours(
    drawn: Callable[..., str], plot: Callable[..., None], words: str
) -> None:
    svg = drawn(plot, [row(scheme, 10.0, rtt_ms=20.0) for scheme in (SERVER_STREAMING, FORERUN)])
    for part in (words, "per token of text", COLOURS[FORERUN], COLOURS[SERVER_STREAMING]):
        assert part in svg


def test_validation_shows_the_bands_and_each_policy(drawn: Callable[..., str]) -> None:
    measured = {"setting": "s", "rtt_ms": 20.0, "measured_ms_per_token": 20.0}
    rows = [
        {**measured, "policy": policy, "predicted_ms_per_token": pace}
        for policy, pace in (("off", 20.0), ("adaptive", 23.0), ("sync:4", 18.0))
    ]
    svg = drawn(plot_validation, rows)
    for words in ("within 8 %", "within 20 %", "measured, ms per token", ">sync:4<", COLOURS[FORERUN]):
        assert words in svg
    with pytest.raises(UserError, match="no setting was both simulated and measured"):
        drawn(plot_validation, [])


# Refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plot", "rows", "arguments", "message"),
    [
        (plot_pace, [], (), "there is nothing to plot"),
        (plot_pace, surface(), ("speed",), "did not vary 'speed'; it varied rtt_ms, mean"),
        (plot_speedup, surface()[:3], (), "has a single rtt_ms"),
        (plot_speedup, surface(), (FORERUN, "profile"), "cannot have profile .*--x may be rtt_ms, jitter_ms"),
        (plot_speedup, surface(), (FORERUN, "mean"), "mean to the right: it runs upwards already"),
        (plot_speedup, surface(), (FORERUN, "speed"), "did not vary 'speed'"),
        (plot_speedup, surface()[1:], (), r"no finished point for .*run the same sweep again"),
        (plot_speedup, surface(), ("pearl",), "needs the scheme pearl; the sweep has server_streaming"),
        (
            plot_waste,
            [row(FORERUN, 1.0, rtt_ms=float(rtt)) for rtt in range(7)],
            (),
            r"would have 7 panels.*--at rtt_ms=0",
        ),
    ],
)
def test_a_plot_that_cannot_be_is_refused(
    tmp_path: Path, plot: Callable[..., None], rows: list[Row], arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        plot(rows, tmp_path / "p.png", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.bmp; use one of \.png, \.svg, \.pdf"):
        plot_pace(surface(), tmp_path / "p.bmp")


def test_a_full_disk_leaves_no_half_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CapacityError, match=r"the plot cannot be written to .*: No space left"):
        plot_pace(surface(), tmp_path / "p.png")
    assert list(tmp_path.iterdir()) == []


# The command ----------------------------------------------------------------------------------------------


def test_the_command_draws_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = tmp_path / "world.toml"
    world.write_text('tokens = 20\nrepeats = 1\nschemes = ["server_streaming", "forerun"]\n')
    folder = str(tmp_path / "out")
    axes = ["--axis", "rtt_ms=0,40", "--axis", "mean=0.5,0.9", "--axis", "clients=1,2"]
    assert main(["simulate", "sweep", str(world), *axes, "--out", folder, "--workers", "1"]) == 0
    for kind in ("pace", "speedup", "latency", "capacity", "waste", "bytes"):
        out = tmp_path / f"{kind}.png"
        point = [] if kind == "speedup" else ["--at", "mean=0.9"]
        assert main(["simulate", "plot", folder, "--kind", kind, *point, "--out", str(out)]) == 0
        assert out.stat().st_size > 10_000
    assert main(["simulate", "plot", folder, "--at", "colour=1", "--out", "x.png"]) == 2
    assert "the sweep did not vary it; it varied rtt_ms, mean, clients" in capsys.readouterr().err
    assert main(["simulate", "plot", folder, "--at", "mean=0.7", "--out", "x.png"]) == 2
    assert "there is nothing to plot" in capsys.readouterr().err
