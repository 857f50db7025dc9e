"""Laws of plots: what was asked for is on them, and what cannot be drawn is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from forerun.cli import main
from simulator.plots import (
    plot_capacity,
    plot_pace,
    plot_speedup,
)
from simulator.schemes import COLOCATED, FORERUN, SERVER_STREAMING
from simulator.sweep import FIGURES
from simulator.tables import Row
from tests import wording

pytestmark = pytest.mark.slow


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


# Kinds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plot", "rows", "arguments"),
    [
        (plot_pace, surface(), ()),
        (plot_pace, [row(FORERUN, 10.0, profile=name) for name in ("wifi", "lte")], ("profile",)),
        (plot_speedup, surface(), ()),
        (plot_speedup, surface(with_colocated=False), ()),
        (plot_capacity, [row(FORERUN, 10.0, clients=count) for count in (1.0, 8.0)], ()),
    ],
)
def test_a_plot_is_drawn(
    plot: Callable[..., None], rows: list[Row], arguments: tuple[str, ...], tmp_path: Path
) -> None:
    plot(rows, tmp_path / "plot.png", *arguments)
    assert (tmp_path / "plot.png").stat().st_size > 10_000


# Refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plot", "rows", "arguments"),
    [
        (plot_pace, [], ()),
        (plot_capacity, [row(FORERUN, 10.0, rtt_ms=rtt) for rtt in (1.0, 8.0)], ()),
        (plot_pace, surface(), ("speed",)),
        (plot_speedup, surface()[:3], ()),
        (plot_speedup, surface(), (FORERUN, "profile")),
        (plot_speedup, surface(), (FORERUN, "mean")),
        (plot_speedup, surface(), (FORERUN, "speed")),
        (plot_speedup, surface()[1:], ()),
        (plot_speedup, surface(), ("pearl",)),
        (plot_pace, [row(FORERUN, 1.0, rtt_ms=1.0, loss=float(loss)) for loss in range(9)], ()),
    ],
)
def test_a_plot_that_cannot_be_is_refused(
    tmp_path: Path, plot: Callable[..., None], rows: list[Row], arguments: tuple[str, ...]
) -> None:
    with wording.raises(UserError):
        plot(rows, tmp_path / "p.png", *arguments)
    assert list(tmp_path.iterdir()) == []


# The command ----------------------------------------------------------------------------------------------


def test_the_command_draws_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = tmp_path / "world.toml"
    world.write_text('tokens = 20\nrepeats = 1\nschemes = ["server_streaming", "forerun"]\n')
    folder = str(tmp_path / "out")
    axes = ["--axis", "rtt_ms=0,40", "--axis", "mean=0.5,0.9", "--axis", "clients=1,2"]
    assert main(["simulate", "sweep", str(world), *axes, "--out", folder, "--workers", "1"]) == 0
    for kind in ("pace", "speedup", "capacity"):
        out = tmp_path / f"{kind}.png"
        point = [] if kind == "speedup" else ["--at", "mean=0.9"]
        assert main(["simulate", "plot", folder, "--kind", kind, *point, "--out", str(out)]) == 0
        assert out.stat().st_size > 10_000
    for away in ("colour=1", "mean=0.7"):
        capsys.readouterr()
        assert main(["simulate", "plot", folder, "--at", away, "--out", "x.png"]) == 2
        wording.keep(capsys.readouterr().err)
