"""Laws of sweeps: every point once, nothing lost by an interruption, nothing mixed up with another sweep."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from common.errors import ForerunError, UserError
from forerun.cli import main
from simulator import sweep as sweeps
from simulator.experiment import run_experiment
from simulator.files import Experiment
from simulator.plots import COLOURS, plot_pace
from simulator.schemes import FORERUN, SERVER_STREAMING
from simulator.sweep import RESULTS, Sweep, grids, read_results, run_sweep
from simulator.world import World

EXPERIMENT = Experiment(World(tokens=20), repeats=1, schemes=(SERVER_STREAMING, FORERUN))
GRID = {"rtt_ms": (0.0, 40.0), "mean": (0.5, 0.9)}


def test_every_point_of_the_grid_is_run_once(tmp_path: Path) -> None:
    told: list[int] = []
    table = run_sweep(Sweep(EXPERIMENT, GRID), tmp_path, 1, lambda done, total, cell: told.append(done))
    rows = read_results(table)
    assert told == [1, 2, 3, 4]
    found = [(row["rtt_ms"], row["mean"], row["scheme"]) for row in rows]
    assert len(found) == len(set(found)) == 8
    assert all(row["identical"] is True for row in rows)
    slow = [row["ms_per_token"] for row in rows if row["scheme"] == SERVER_STREAMING]
    assert slow == pytest.approx([30.0] * 4)


def test_an_interrupted_sweep_goes_on_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_sweep(Sweep(EXPERIMENT, GRID), tmp_path / "whole", 1).read_text()
    calls: list[Experiment] = []
    real = run_experiment

    def breaks(experiment: Experiment, workers: int) -> object:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(experiment)
        return real(experiment, workers)

    monkeypatch.setattr(sweeps, "run_experiment", breaks)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(Sweep(EXPERIMENT, GRID), tmp_path / "part", 1)
    monkeypatch.setattr(sweeps, "run_experiment", real)
    table = tmp_path / "part" / RESULTS
    with table.open("a", encoding="utf-8") as file:
        file.write("40.0,0.5,server_streaming,off,3")  # the machine went down within a line
    done: list[int] = []
    run_sweep(Sweep(EXPERIMENT, GRID), tmp_path / "part", 1, lambda n, total, cell: done.append(n))
    assert done == [3, 4]
    assert table.read_text() == whole


def test_half_a_point_is_run_again(tmp_path: Path) -> None:
    table = run_sweep(Sweep(EXPERIMENT, GRID), tmp_path, 1)
    whole = table.read_text()
    table.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    run_sweep(Sweep(EXPERIMENT, GRID), tmp_path, 1)
    assert table.read_text() == whole


def test_a_grid_can_be_extended_by_values_but_not_by_axes(tmp_path: Path) -> None:
    run_sweep(Sweep(EXPERIMENT, {"rtt_ms": (0.0,)}), tmp_path, 1)
    rows = read_results(run_sweep(Sweep(EXPERIMENT, {"rtt_ms": (0.0, 40.0)}), tmp_path, 1))
    assert len(rows) == 4
    with pytest.raises(UserError, match="other columns than this sweep"):
        run_sweep(Sweep(EXPERIMENT, GRID), tmp_path, 1)


def test_two_worlds_do_not_share_a_folder(tmp_path: Path) -> None:
    run_sweep(Sweep(EXPERIMENT, {"rtt_ms": (0.0,)}), tmp_path, 1)
    other = Experiment(World(tokens=21), repeats=1, schemes=EXPERIMENT.schemes)
    with pytest.raises(UserError, match="holds a sweep of another world"):
        run_sweep(Sweep(other, {"rtt_ms": (0.0,)}), tmp_path, 1)


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ForerunError, match=r"cannot be written to .*what was finished is kept"):
        run_sweep(Sweep(EXPERIMENT, GRID), tmp_path / "file" / "below", 1)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["rtt_ms"], "'rtt_ms' is not understood"),
        (["rtt_ms="], "'rtt_ms=' is not understood"),
        (["rtt_ms=a"], "'rtt_ms=a' is not understood"),
        (["colour=1"], "cannot vary 'colour'; it can vary rtt_ms"),
        (["rtt_ms=-1"], "link rtt is -0.001"),
        (["clients=1.5"], "clients is 1.5; a whole number"),
    ],
)
def test_an_axis_that_is_none_is_refused_before_anything_runs(texts: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sweep(EXPERIMENT, grids(texts))


def test_a_plot_has_a_line_per_scheme_and_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib, of the extra `simulation`")
    table = run_sweep(Sweep(EXPERIMENT, GRID), tmp_path, 1)
    out = tmp_path / "pace.svg"
    plot_pace(read_results(table), "rtt_ms", out)
    drawn = out.read_text()
    assert COLOURS[FORERUN] in drawn
    assert COLOURS[SERVER_STREAMING] in drawn


@pytest.mark.parametrize(
    ("x", "name", "message"),
    [("rtt_ms", "p.bmp", "ends in .bmp"), ("speed", "p.png", "did not vary 'speed'; it varied rtt_ms, mean")],
)
def test_a_plot_that_cannot_be_is_refused(tmp_path: Path, x: str, name: str, message: str) -> None:
    rows = [{"rtt_ms": 0.0, "mean": 0.5, "scheme": FORERUN, "ms_per_token": 1.0}]
    with pytest.raises(UserError, match=message):
        plot_pace(rows, x, tmp_path / name)
    with pytest.raises(UserError, match="no finished cell"):
        plot_pace([], "rtt_ms", tmp_path / "p.png")


def test_the_commands_sweep_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = tmp_path / "world.toml"
    world.write_text('tokens = 20\nrepeats = 1\nschemes = ["server_streaming"]\n')
    folder = tmp_path / "out"
    arguments = [
        "simulate",
        "sweep",
        str(world),
        "--axis",
        "rtt_ms=0,20",
        "--out",
        str(folder),
        "--workers",
        "1",
    ]
    assert main(arguments) == 0
    assert "all 2 points" in capsys.readouterr().out
    with (folder / RESULTS).open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2
    assert main(["simulate", "plot", str(tmp_path), "--out", "x.png"]) == 2
    assert "cannot be read" in capsys.readouterr().err
