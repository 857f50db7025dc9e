"""Runs grids of worlds. Each finished cell is on disk at once: an interrupted sweep can be continued."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from common.errors import UserError
from simulator.arrivals import Poisson
from simulator.documents import read_text, write_error, write_whole
from simulator.experiment import (
    Pool,
    SchemeOutcome,
    as_dict,
    num_parts,
    num_runs,
    percentiles,
    run_experiments,
)
from simulator.figures import KINDS, PERCENTS, Figures, Measures
from simulator.files import Experiment
from simulator.profiles import profile
from simulator.tables import SCHEME, TEXTS, Key, Row, Table, Value, axes_of, read_rows
from simulator.world import World

RESULTS, LATENCIES, MANIFEST = "results.csv", "latencies.csv", "manifest.json"
FIGURES = (
    "policy",
    *(field.name for field in fields(Figures)),
    "ms_per_token_standard_error",
    *(field.name for field in fields(Measures)),
)
PERCENTILES = tuple(f"p{percent:g}" for percent in PERCENTS)
MS = 1000.0  # in a second


def _with_rtt(world: World, value: float) -> World:
    if world.link.trace is not None:
        raise UserError("the axis rtt_ms does nothing where the world's link replays a trace")
    return replace(world, link=replace(world.link, rtt=value / MS))


def _with_rate(world: World, value: float) -> World:
    if not isinstance(world.arrivals, Poisson):
        raise UserError(
            "the axis rate_per_s needs a world whose sessions begin at random: give it an [arrivals] with "
            "rate_per_s and sessions"
        )
    return replace(world, arrivals=replace(world.arrivals, rate=value))


def _with_clients(world: World, value: float) -> World:
    if not value.is_integer():
        raise UserError(f"clients is {value}; a whole number was expected")
    return replace(world, clients=int(value))


NUMBERS: dict[str, Callable[[World, float], World]] = {
    "rtt_ms": _with_rtt,
    "jitter_ms": lambda world, value: replace(world, link=replace(world.link, jitter=value / MS)),
    "loss": lambda world, value: replace(world, link=replace(world.link, loss=value)),
    "mean": lambda world, value: replace(world, draft=replace(world.draft, mean=value)),
    "step_ms": lambda world, value: replace(world, verifier=replace(world.verifier, step_time=value / MS)),
    "draft_ms": lambda world, value: replace(
        world, device=replace(world.device, draft_time=value / MS, draft_times=())
    ),
    "clients": _with_clients,
    "rate_per_s": _with_rate,
}
WORDS: dict[str, Callable[[World, str], World]] = {
    "profile": lambda world, value: replace(world, link=profile(value)),
    "association": lambda world, value: replace(world, association=value),
}
AXES = (*WORDS, *NUMBERS)
"""What a sweep may vary, in the order in which it gets into a world: a profile's link first, so that another
axis may change it."""

Cell = dict[str, Value]
"""One value per axis."""


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """Reports a sweep's progress. `runs` are those that were missing when it began."""

    runs_done: int
    runs: int
    cells_done: int
    cells: int
    cell: Cell | None = None  # the one just finished, if it was told for that


Progress = Callable[[SweepProgress], None]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Holds an experiment at every point of a grid. Raises `UserError` for an unknown axis."""

    experiment: Experiment
    grid: Mapping[str, tuple[Value, ...]]
    name: str = ""  # of the world, for people

    def __post_init__(self) -> None:
        for axis, values in self.grid.items():
            if axis not in AXES:
                raise UserError(f"a sweep cannot vary {axis!r}; it can vary {', '.join(AXES)}")
            if not values:
                raise UserError(f"the sweep over {axis} has no values")
            if len(set(values)) < len(values):
                raise UserError(f"the axis {axis} has a value twice: {', '.join(map(shown, values))}")
        for cell in self.cells():
            self.at(cell)  # an impossible value is refused before hours are spent

    def cells(self) -> list[Cell]:
        axes = list(self.grid)
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def at(self, cell: Cell) -> Experiment:
        """Return the experiment with the cell's values in its world."""
        world = self.experiment.world
        for axis in AXES:
            if axis in cell:
                value = cell[axis]
                world = WORDS[axis](world, value) if isinstance(value, str) else NUMBERS[axis](world, value)
        return replace(self.experiment, world=world)

    @property
    def digest(self) -> str:
        """Return a digest of all inputs of the results but the grid: equal digests may share a folder."""
        text = repr((asdict(self.experiment.world), self.experiment.repeats, self.experiment.schemes))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def tables(self, folder: Path) -> tuple[Table, Table]:
        """Return the tables of latencies and of results: a cell is finished when the latter has it."""
        schemes = len(self.experiment.schemes)
        return (
            Table(folder / LATENCIES, (*self.grid, SCHEME, "kind", *PERCENTILES), schemes * len(KINDS)),
            Table(folder / RESULTS, (*self.grid, SCHEME, *FIGURES), schemes),
        )


def run_sweep(
    sweep: Sweep, folder: Path, workers: int = 0, progress: Progress = lambda standing: None
) -> Path:
    """Run what is missing in `folder`, and return the path of the results.

    The files do not depend on `workers`.
    Raises `UserError` if the folder holds another sweep or cannot be written, `CapacityError` if it is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _claim(folder, sweep)
        tables = sweep.tables(folder)
        done = _mend(tables)
        _note_grid(folder / MANIFEST, sweep)
        missing = [cell for cell in sweep.cells() if tuple(cell.values()) not in done]
        if missing:
            _run(sweep, missing, tables, workers, progress)
    except OSError as error:
        kept = (
            "; what was finished is kept, and the same command continues it"
            if _has_finished_cells(folder)
            else ", and no point of it is finished"
        )
        raise write_error(f"the sweep's results cannot be written to {folder}{kept}", error) from error
    return folder / RESULTS


def read_results(folder: Path) -> list[Row]:
    """Read a row per finished cell and scheme. Raises `UserError`."""
    return read_rows(folder / RESULTS, (SCHEME, *FIGURES))


def caption_of(folder: Path) -> str:
    """Say of which world and seeds the results are, and how many points of the last grid are finished; ""
    without a manifest that says so. Raises `UserError`."""
    about = _read_manifest(folder / MANIFEST) if (folder / MANIFEST).exists() else {}
    if "grid" not in about:
        return ""
    wanted = set(itertools.product(*about["grid"].values()))
    num_done = len(wanted & {tuple(row[axis] for axis in about["grid"]) for row in read_results(folder)})
    repeats, seed = about["repeats"], about["seed"]
    seeds = f"{repeats} seeds from {seed}" if repeats > 1 else f"seed {seed}"
    return ", ".join(filter(None, (about["name"], seeds, f"{num_done} of {len(wanted)} points")))


def shown(value: Value) -> str:
    """Format a value for people."""
    return value if isinstance(value, str) else f"{value:g}"


# Running --------------------------------------------------------------------------------------------------


def _run(
    sweep: Sweep, missing: list[Cell], tables: Sequence[Table], workers: int, progress: Progress
) -> None:
    cells = len(sweep.cells())
    finished = cells - len(missing)
    experiments = [sweep.at(cell) for cell in missing]
    runs = sum(map(num_runs, experiments))
    runs_done = 0

    def told(done: int) -> None:
        nonlocal runs_done
        runs_done = done
        progress(SweepProgress(runs_done, runs, finished, cells))

    with Pool(workers, sum(map(num_parts, experiments))) as pool:
        for cell, outcomes in zip(missing, run_experiments(experiments, pool, told), strict=True):
            for table, rows in zip(tables, _rows(cell, outcomes), strict=True):
                table.append(rows)
            finished += 1
            progress(SweepProgress(runs_done, runs, finished, cells, cell))


def _rows(cell: Cell, outcomes: Sequence[SchemeOutcome]) -> tuple[list[Row], list[Row]]:
    """Return the rows of both tables."""
    latencies = [
        {**cell, SCHEME: outcome.scheme, "kind": kind, **percentiles(outcome, kind)}
        for outcome in outcomes
        for kind in KINDS
    ]
    return latencies, [{**cell, SCHEME: outcome.scheme, **as_dict(outcome)} for outcome in outcomes]


# The folder -----------------------------------------------------------------------------------------------


def _claim(folder: Path, sweep: Sweep) -> None:
    """Write the manifest, or check that the one that is there is of the same sweep."""
    path = folder / MANIFEST
    content = _manifest(sweep)
    if not path.exists():
        if (folder / RESULTS).exists():
            raise UserError(f"{folder} holds results without {MANIFEST}; give this sweep another folder")
        write_whole(path, json.dumps(content, indent=2, default=str) + "\n")
        return
    document = _read_manifest(path)
    if document["digest"] != content["digest"]:
        raise UserError(f"{folder} holds a sweep of another world; give this one another folder")
    if document["version"] != content["version"]:
        raise UserError(
            f"{folder} holds a sweep by version {document['version']}, and this is {content['version']}; "
            "give this one another folder"
        )


def _note_grid(path: Path, sweep: Sweep) -> None:
    """Have the manifest say which points were asked for last."""
    document, content = _read_manifest(path), _manifest(sweep)
    latest = {name: content[name] for name in ("name", "grid")}
    if not latest.items() <= document.items():
        write_whole(path, json.dumps({**document, **latest}, indent=2, default=str) + "\n")


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_text("the manifest", path))
        return {**document, "digest": document["digest"], "version": document["version"]}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged; give the sweep another folder") from error


def _manifest(sweep: Sweep) -> dict[str, Any]:
    """Return the origin of the results."""
    try:
        version = metadata.version("forerun")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return {
        "digest": sweep.digest,
        "version": version,
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {platform.system()}",
        "processors": os.cpu_count(),
        "seed": sweep.experiment.world.seed,
        "repeats": sweep.experiment.repeats,
        "name": sweep.name,
        "grid": {axis: list(values) for axis, values in sweep.grid.items()},
        "axes": list(sweep.grid),
        "schemes": sweep.experiment.schemes,
        "world": asdict(sweep.experiment.world),
    }


def _mend(tables: Sequence[Table]) -> set[Key]:
    """Drop what is not whole in every table, and tell which cells are."""
    loaded = [table.load() for table in tables]
    done = set(loaded[0]).intersection(*loaded[1:])
    for table, cells in zip(tables, loaded, strict=True):
        table.keep(rows for key, rows in cells.items() if key in done)
    return done


def _has_finished_cells(folder: Path) -> bool:
    """Tell whether a line follows the header: a cell's results are written last, and all at once."""
    try:
        return (folder / RESULTS).read_bytes().count(b"\n") > 1
    except OSError:
        return False


# The command line -----------------------------------------------------------------------------------------


def grids(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Parse grids such as `rtt_ms=0,20,60` or `profile=wifi,lte`, one text per axis. Raises `UserError`."""
    grid: dict[str, tuple[Value, ...]] = {}
    for axis, values in map(axis_values, texts):
        if axis in grid:
            raise UserError(f"the axis {axis} is given twice; write all its values in one")
        grid[axis] = values
    return grid


def axis_values(text: str) -> tuple[str, tuple[Value, ...]]:
    """Read one axis and its values. Raises `UserError`."""
    axis, equals, rest = text.partition("=")
    parts = [part.strip() for part in rest.split(",")]
    values: tuple[Value, ...] = ()
    try:
        values = tuple(parts) if axis in TEXTS else tuple(float(part) for part in parts)
    except ValueError:
        pass
    if not equals or not values or not all(parts):
        raise UserError(
            f"the axis {text!r} is not understood; write for example rtt_ms=0,20,60 or profile=wifi,lte"
        )
    return axis, values


def panels(rows: Sequence[Row], *axes: str) -> Iterator[tuple[Key, list[Row]]]:
    """Group rows by the values of `axes` (those that the table has), in order of appearance."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[axis] for axis in axes), []).append(row)
    yield from groups.items()


def rows_at(rows: Sequence[Row], wanted: Sequence[str]) -> list[Row]:
    """Return the rows at the `wanted` values, or all if it is empty. Raise `UserError`."""
    kept = list(rows)
    for axis, values in map(axis_values, wanted):
        known = axes_of(rows[0].keys()) if rows else [axis]
        if axis not in known:
            raise UserError(f"--at {axis}: the sweep did not vary it; it varied {', '.join(known)}")
        kept = [row for row in kept if row[axis] in values]
    return kept
