"""Grids of worlds. Every finished cell is on disk at once: an interrupted sweep goes on where it was."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from common.errors import LocalError, UserError
from common.figures import Figures
from simulator.documents import write_whole
from simulator.experiment import Outcome, as_dict, run_experiment
from simulator.files import Experiment
from simulator.world import World

RESULTS, MANIFEST = "results.csv", "manifest.json"
MS = 1000.0  # in a second

AXES: dict[str, Callable[[World, float], World]] = {
    "rtt_ms": lambda world, value: replace(world, link=replace(world.link, rtt=value / MS)),
    "jitter_ms": lambda world, value: replace(world, link=replace(world.link, jitter=value / MS)),
    "mean": lambda world, value: replace(world, draft=replace(world.draft, mean=value)),
    "step_ms": lambda world, value: replace(world, verifier=replace(world.verifier, step_time=value / MS)),
    "draft_ms": lambda world, value: replace(world, device=replace(world.device, draft_time=value / MS)),
    "clients": lambda world, value: replace(world, clients=_whole("clients", value)),
}
"""What a sweep may vary, and how a value gets into a world."""

Cell = dict[str, float]
"""One value per axis."""

Progress = Callable[[int, int, Cell], None]
"""Told (cells done, cells in all, the one just done)."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """An experiment at every point of a grid. Raises `UserError` for an axis that is none."""

    experiment: Experiment
    grid: Mapping[str, tuple[float, ...]]

    def __post_init__(self) -> None:
        for axis, values in self.grid.items():
            if axis not in AXES:
                raise UserError(f"a sweep cannot vary {axis!r}; it can vary {', '.join(AXES)}")
            if not values:
                raise UserError(f"the sweep over {axis} has no values")
        for cell in self.cells():
            self.at(cell)  # an impossible value is refused before hours are spent

    def cells(self) -> list[Cell]:
        axes = list(self.grid)
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def at(self, cell: Cell) -> Experiment:
        """The experiment with the cell's values in its world."""
        world = self.experiment.world
        for axis, value in cell.items():
            world = AXES[axis](world, value)
        return replace(self.experiment, world=world)

    @property
    def digest(self) -> str:
        """Of everything that the results depend on but the grid: two runs may share a folder if it agrees."""
        text = repr((asdict(self.experiment.world), self.experiment.repeats, self.experiment.schemes))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


FIGURES = [field.name for field in fields(Figures)]


def run_sweep(
    sweep: Sweep, folder: Path, workers: int = 0, progress: Progress = lambda done, total, cell: None
) -> Path:
    """Run what is missing in `folder`, and return the table's path.

    Raises `UserError` if the folder holds another sweep, `LocalError` if it cannot be written.
    """
    table = folder / RESULTS
    columns = [*sweep.grid, "scheme", "policy", *FIGURES, "ms_per_token_standard_error"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _claim(folder / MANIFEST, sweep)
        done = _repair(table, columns, sweep)
        cells = sweep.cells()
        finished = sum(_key(cell) in done for cell in cells)
        for cell in cells:
            if _key(cell) in done:
                continue
            outcomes = run_experiment(sweep.at(cell), workers)
            _append(table, [_row(cell, outcome) for outcome in outcomes], columns)
            finished += 1
            progress(finished, len(cells), cell)
    except OSError as error:
        raise LocalError(
            f"the sweep's results cannot be written to {folder}: {error.strerror}; what was finished is kept"
        ) from error
    return table


def read_results(table: Path) -> list[dict[str, Any]]:
    """The rows of a sweep, numbers as numbers. Raises `UserError`."""
    try:
        with table.open(encoding="utf-8", newline="") as file:
            return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the results {table} cannot be read: {error}") from error


def _claim(manifest: Path, sweep: Sweep) -> None:
    """Write the manifest, or check that the one that is there is of the same sweep."""
    if manifest.exists():
        try:
            found = json.loads(manifest.read_text(encoding="utf-8"))["digest"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{manifest} is damaged; give the sweep another folder") from error
        if found != sweep.digest:
            raise UserError(f"{manifest.parent} holds a sweep of another world; give this one another folder")
        return
    try:
        version = metadata.version("forerun")
    except metadata.PackageNotFoundError:
        version = "unknown"
    content = {
        "digest": sweep.digest,
        "version": version,
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {platform.system()}",
        "repeats": sweep.experiment.repeats,
        "world": asdict(sweep.experiment.world),
        "schemes": sweep.experiment.schemes,
    }
    write_whole(manifest, json.dumps(content, indent=2, default=str) + "\n")


def _repair(table: Path, columns: list[str], sweep: Sweep) -> set[tuple[float, ...]]:
    """Cells whose rows are all there. Rows of a cell that was interrupted are dropped."""
    if not table.exists():
        write_whole(table, _as_csv([columns]))
        return set()
    rows = list(csv.reader(io.StringIO(table.read_text(encoding="utf-8"))))
    if not rows or rows[0] != columns:
        raise UserError(f"{table} has other columns than this sweep; give it another folder")
    found: dict[tuple[float, ...], list[list[str]]] = {}
    for row in rows[1:]:
        if len(row) == len(columns):
            found.setdefault(tuple(float(text) for text in row[: len(sweep.grid)]), []).append(row)
    whole = {key: kept for key, kept in found.items() if len(kept) == len(sweep.experiment.schemes)}
    kept_rows = [row for kept in whole.values() for row in kept]
    if len(kept_rows) < len(rows) - 1:
        write_whole(table, _as_csv([columns, *kept_rows]))
    return set(whole)


def _append(table: Path, rows: Sequence[dict[str, Any]], columns: list[str]) -> None:
    text = _as_csv([[row[column] for column in columns] for row in rows])
    with table.open("a", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _as_csv(rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _row(cell: Cell, outcome: Outcome) -> dict[str, Any]:
    return {**cell, "scheme": outcome.scheme, **as_dict(outcome)}


def _key(cell: Cell) -> tuple[float, ...]:
    return tuple(float(value) for value in cell.values())


def _value(text: str | None) -> float | str | bool | None:
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text or "")
    except ValueError:
        return text


def _whole(name: str, value: float) -> int:
    if value != int(value):
        raise UserError(f"{name} is {value}; a whole number was expected")
    return int(value)


def grids(texts: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """From `rtt_ms=0,20,60`, one text per axis. Raises `UserError`."""
    return dict(_grid(text) for text in texts)


def _grid(text: str) -> tuple[str, tuple[float, ...]]:
    axis, equals, values = text.partition("=")
    try:
        numbers = tuple(float(value) for value in values.split(","))
    except ValueError:
        numbers = ()
    if not equals or not numbers:
        raise UserError(f"the axis {text!r} is not understood; write for example rtt_ms=0,20,60")
    return axis, numbers


def panels(
    rows: Sequence[dict[str, Any]], *axes: str
) -> Iterator[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """Rows grouped by the values of `axes` (those that the table has), in order of appearance."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[axis] for axis in axes), []).append(row)
    yield from groups.items()
