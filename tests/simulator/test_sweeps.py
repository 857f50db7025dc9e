"""Laws of sweeps: every point once, nothing lost by an interruption, nothing mixed up with another sweep."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from common.errors import CapacityError, UserError
from simulator import sweep as sweeps
from simulator.arrivals import Poisson
from simulator.experiment import Pool, SchemeOutcome, run_experiments
from simulator.files import Experiment
from simulator.link_spec import LinkSpec, Trace
from simulator.profiles import PROFILES
from simulator.schemes import FORERUN, SERVER_STREAMING
from simulator.sweep import (
    LATENCIES,
    MANIFEST,
    RESULTS,
    Sweep,
    SweepProgress,
    caption_of,
    grids,
    read_results,
    run_sweep,
)
from simulator.world import World

EXPERIMENT = Experiment(World(tokens=20), repeats=1, schemes=(SERVER_STREAMING, FORERUN))
GRID = {"rtt_ms": (0.0, 40.0), "mean": (0.5, 0.9)}
FILES = (RESULTS, LATENCIES)


def contents(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in FILES]


def test_every_point_of_the_grid_is_run_once(tmp_path: Path) -> None:
    told: list[SweepProgress] = []
    run_sweep(Sweep(EXPERIMENT, GRID), tmp_path, 1, told.append)
    rows = read_results(tmp_path)
    assert [each.cells_done for each in told if each.cell] == [1, 2, 3, 4]
    assert [each.runs_done for each in told if not each.cell] == list(range(1, 9))
    assert {each.runs for each in told} == {8}
    found = [(row["rtt_ms"], row["mean"], row["scheme"]) for row in rows]
    assert len(found) == len(set(found)) == 8
    assert all(row["identical"] is True for row in rows)
    slow = [row["ms_per_token"] for row in rows if row["scheme"] == SERVER_STREAMING]
    assert slow == pytest.approx([30.0] * 4)


def test_an_interrupted_sweep_goes_on_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sweep(Sweep(EXPERIMENT, GRID), tmp_path / "whole", 1)

    def breaks(experiments: Sequence[Experiment], pool: Pool, told: Any) -> Iterator[list[SchemeOutcome]]:
        found = run_experiments(experiments, pool, told)
        yield next(found)
        yield next(found)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps, "run_experiments", breaks)
    part = tmp_path / "part"
    with pytest.raises(KeyboardInterrupt):
        run_sweep(Sweep(EXPERIMENT, GRID), part, 1)
    monkeypatch.undo()
    with (part / RESULTS).open("a", encoding="utf-8") as file:
        file.write("40.0,0.5,server_streaming,off,3")  # the machine went down within a line
    told: list[SweepProgress] = []
    run_sweep(Sweep(EXPERIMENT, GRID), part, 1, told.append)
    assert [each.cells_done for each in told if each.cell] == [3, 4]
    assert contents(part) == contents(tmp_path / "whole")


HEED_INTERRUPTS = """
import signal, sys
from forerun.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
"""`python -m forerun`, also where a shell lets its background jobs, and what they start, ignore Ctrl-C."""


def test_ctrl_c_leaves_at_once_and_keeps_what_is_finished(tmp_path: Path) -> None:
    """A real interrupt of a real command, whose second point would take an hour."""
    world = tmp_path / "world.toml"
    world.write_text('tokens = 20\nrepeats = 2\nschemes = ["server_streaming", "forerun"]\n')
    out = tmp_path / "out"
    command = [sys.executable, "-c", HEED_INTERRUPTS, "simulate", "sweep", str(world), "--out", str(out)]
    with subprocess.Popen(
        [*command, "--axis", "clients=1,5000", "--workers", "2"], stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stderr is not None
        try:
            assert child.stderr.readline() == "… 1 of 2: clients 1\n"
            child.send_signal(signal.SIGINT)
            _, rest = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 130
    assert "Traceback" not in rest
    assert [row["scheme"] for row in read_results(out)] == [SERVER_STREAMING, FORERUN]


def test_a_worker_that_the_system_ends_is_a_sentence() -> None:
    with pytest.raises(CapacityError, match="probably because memory ran out"), Pool(2) as pool:
        list(pool.map([("exit", _Fatal())] * 2))


class _Fatal(World):
    """Ends the process that is handed it."""

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return os._exit, (1,)


def test_a_grid_can_be_extended_by_values_but_not_by_axes(tmp_path: Path) -> None:
    """Names and numbers survive a resume."""
    run_sweep(Sweep(EXPERIMENT, {"profile": ("lan",), "loss": (0.0, 0.05)}), tmp_path, 1)
    told: list[SweepProgress] = []
    grid: dict[str, tuple[float | str, ...]] = {"profile": ("lan", "5g"), "loss": (0.0, 0.05)}
    run_sweep(Sweep(EXPERIMENT, grid), tmp_path, 1, told.append)
    assert [each.cells_done for each in told if each.cell] == [3, 4]
    places = {(row["profile"], row["loss"]) for row in read_results(tmp_path)}
    assert places == {("lan", 0.0), ("lan", 0.05), ("5g", 0.0), ("5g", 0.05)}
    with pytest.raises(UserError, match="other columns than this sweep"):
        run_sweep(Sweep(EXPERIMENT, GRID), tmp_path, 1)
    other = Experiment(World(tokens=21), repeats=1, schemes=EXPERIMENT.schemes)
    with pytest.raises(UserError, match="holds a sweep of another world"):
        run_sweep(Sweep(other, grid), tmp_path, 1)


def test_a_caption_names_world_and_seeds_and_counts_the_points_asked_for_last(tmp_path: Path) -> None:
    assert caption_of(tmp_path) == ""
    sweep = Sweep(EXPERIMENT, {"rtt_ms": (0.0, 40.0)}, "far.toml")
    run_sweep(sweep, tmp_path, 1)
    assert [each.strip() for each in caption_of(tmp_path).split(",")] == [
        "far.toml",
        f"seed {EXPERIMENT.world.seed}",
        "2 of 2 points",
    ]
    run_sweep(Sweep(EXPERIMENT, {"rtt_ms": (0.0, 40.0, 60.0)}, "far.toml"), tmp_path, 1)
    assert "3 of 3 points" in caption_of(tmp_path)
    results = tmp_path / RESULTS
    results.write_text("".join(results.read_text().splitlines(keepends=True)[:-2]))
    assert "2 of 3 points" in caption_of(tmp_path)


def test_results_of_another_version_or_without_a_manifest_are_not_mixed(tmp_path: Path) -> None:
    sweep = Sweep(EXPERIMENT, {"rtt_ms": (0.0,)})
    run_sweep(sweep, tmp_path, 1)
    manifest = tmp_path / MANIFEST
    found = json.loads(manifest.read_text())
    assert {"version", "machine", "seed", "digest", "axes"} <= set(found)
    manifest.write_text(json.dumps({**found, "version": "0.0"}))
    with pytest.raises(UserError, match=r"holds a sweep by version 0\.0"):
        run_sweep(sweep, tmp_path, 1)
    manifest.write_text("{")
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        run_sweep(sweep, tmp_path, 1)
    manifest.unlink()
    with pytest.raises(UserError, match=r"holds results without manifest\.json"):
        run_sweep(sweep, tmp_path, 1)


@pytest.mark.parametrize(
    ("damage", "to_plot", "to_sweep"),
    [
        (b"0.0,serv", "line 4: it is half written", None),
        (b"\0" * 40, "line 4: it is half written", None),
        (b"\xff\xfe,1\n\x80junk\nmore\n", "line 4: it has 2 values", "line 4: it has 2 values"),
        (b"40.0,forerun\n" * 2, "line 4: it has 2 values", "delete it and what follows"),
    ],
)
def test_a_damaged_table_is_named_and_a_damaged_end_is_mended(
    tmp_path: Path, damage: bytes, to_plot: str, to_sweep: str | None
) -> None:
    sweep = Sweep(EXPERIMENT, {"rtt_ms": (0.0,)})
    table = run_sweep(sweep, tmp_path, 1)
    whole = table.read_bytes()
    table.write_bytes(whole + damage)
    with pytest.raises(UserError, match=rf"results\.csv are damaged in {to_plot}"):
        read_results(tmp_path)
    if to_sweep is not None:
        with pytest.raises(UserError, match=to_sweep):
            run_sweep(sweep, tmp_path, 1)
    else:
        run_sweep(sweep, tmp_path, 1)
        assert table.read_bytes() == whole


def test_a_profile_replaces_the_link_and_other_axes_change_it() -> None:
    sweep = Sweep(EXPERIMENT, grids(["rtt_ms=7", "profile=lte, starlink"]))
    links = [sweep.at(cell).world.link for cell in sweep.cells()]
    assert [link.rtt for link in links] == [0.007, 0.007]
    assert [link.jitter for link in links] == [PROFILES["lte"].jitter, PROFILES["starlink"].jitter]
    assert links[1].handovers == PROFILES["starlink"].handovers


def test_the_rate_of_arrivals_is_an_axis_where_they_are_drawn() -> None:
    drawn = Experiment(World(arrivals=Poisson(1.0, 3)), 1, EXPERIMENT.schemes)
    sweep = Sweep(drawn, {"rate_per_s": (0.5, 4.0)})
    assert [sweep.at(cell).world.arrivals for cell in sweep.cells()] == [Poisson(0.5, 3), Poisson(4.0, 3)]
    with pytest.raises(UserError, match=r"rate_per_s needs a world whose sessions begin at random"):
        Sweep(EXPERIMENT, {"rate_per_s": (1.0,)})
    traced = LinkSpec(trace=Trace("t", (0.0,), (0.05,)))
    with pytest.raises(UserError, match="the axis rtt_ms does nothing"):
        Sweep(Experiment(World(link=traced), 1, EXPERIMENT.schemes), {"rtt_ms": (1.0,)})


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["rtt_ms"], "'rtt_ms' is not understood"),
        (["rtt_ms=a"], "'rtt_ms=a' is not understood"),
        (["profile=carrier-pigeon"], "no network profile 'carrier-pigeon'"),
        (["colour=1"], "cannot vary 'colour'; it can vary profile, association"),
        (["rtt_ms=-1"], "link rtt is -0.001"),
        (["rtt_ms=20,20.0"], "the axis rtt_ms has a value twice"),
        (["rtt_ms=20", "rtt_ms=40"], "the axis rtt_ms is given twice"),
        (["clients=1.5"], "clients is 1.5; a whole number"),
    ],
)
def test_an_axis_that_is_none_is_refused_before_anything_runs(texts: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sweep(EXPERIMENT, grids(texts))
