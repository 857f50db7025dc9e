"""Stores tables of a sweep: appended cell by cell, mended after an interruption, checked when read."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from simulator.documents import write_whole

Row = dict[str, Any]
"""By column; a number that there is none of is None."""

Value = float | str
Key = tuple[Value, ...]
"""One value per axis: which cell a row belongs to."""

SCHEME = "scheme"
"""The first column after the axes."""

TEXTS = ("profile", "association", SCHEME, "policy", "kind")
FLAGS = ("identical",)
"""Columns that hold something else than numbers."""


@dataclass(frozen=True, slots=True)
class Table:
    """Stores a CSV file with the same number of rows for each cell."""

    path: Path
    columns: tuple[str, ...]
    rows_per_cell: int

    def load(self) -> dict[Key, list[Row]]:
        """Return the cells whose rows are all there, in the order of the file; none if there is no file.

        An interruption may leave a damaged last line, which is ignored. Raises `UserError` for
        other damage and for other columns, `OSError`.
        """
        if not self.path.exists():
            return {}
        columns, rows, damage, is_last = _scan(self.path.read_bytes())
        if columns != self.columns:
            raise UserError(f"{self.path} has other columns than this sweep; give it another folder")
        if damage and not is_last:
            raise UserError(
                f"the results {self.path} are damaged in {damage}; delete it and what follows, or give the "
                "sweep another folder"
            )
        by_key: dict[Key, list[Row]] = {}
        for row in rows:
            by_key.setdefault(tuple(row[axis] for axis in axes_of(columns)), []).append(row)
        return {key: kept for key, kept in by_key.items() if len(kept) == self.rows_per_cell}

    def keep(self, cells: Iterable[Sequence[Row]]) -> None:
        """Make these rows the whole file, which is untouched if they already are. Raises `OSError`."""
        text = _as_csv([self.columns, *(self._values(row) for rows in cells for row in rows)])
        if not self.path.exists() or self.path.read_bytes() != text.encode():
            write_whole(self.path, text)

    def append(self, rows: Sequence[Row]) -> None:
        """Append a cell. It is on disk on return; after an `OSError` the file is restored, if possible."""
        content = memoryview(_as_csv([self._values(row) for row in rows]).encode())
        with self.path.open("ab", buffering=0) as file:  # a buffer would be written after all at the end
            before = file.seek(0, os.SEEK_END)
            try:
                while content:
                    content = content[file.write(content) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(before)
                raise

    def _values(self, row: Row) -> list[Any]:
        return [row.get(column) for column in self.columns]


def axes_of(columns: Collection[str]) -> list[str]:
    """Return the axes of a sweep by its columns."""
    names = list(columns)
    return names[: names.index(SCHEME)] if SCHEME in names else []


def read_rows(path: Path, needed: Collection[str]) -> list[Row]:
    """Return all rows of a table with the columns `needed`. Raises `UserError` that names line and fault."""
    try:
        columns, rows, damage, _ = _scan(path.read_bytes())
    except OSError as error:
        raise UserError(f"the results {path} cannot be read: {error.strerror}") from error
    missing = [name for name in needed if name not in columns]
    if missing:
        raise UserError(
            f"the results {path} have no column {missing[0]!r}: this version of `forerun simulate sweep` did "
            "not write them"
        )
    if damage:
        raise UserError(
            f"the results {path} are damaged in {damage}; the same `forerun simulate sweep` again mends a "
            "half-written end"
        )
    return rows


def _scan(content: bytes) -> tuple[tuple[str, ...], list[Row], str, bool]:
    """Columns, the rows up to the first damaged line, what is wrong with that, and whether it is the last."""
    *lines, unended = content.split(b"\n")
    columns, rows = tuple(_texts(lines[0])) if lines else (), list[Row]()
    for number, line in enumerate(lines[1:], 2):
        try:
            rows.append(_row(columns, line))
        except ValueError as error:
            return columns, rows, f"line {number}: {error}", number == len(lines) and not unended
    return columns, rows, f"line {len(lines) + 1}: it is half written" if unended else "", True


def _row(columns: Sequence[str], line: bytes) -> Row:
    texts = _texts(line)
    if len(texts) != len(columns):
        raise ValueError(f"it has {len(texts)} values where the header has {len(columns)}")
    return {column: _value(column, text) for column, text in zip(columns, texts, strict=True)}


def _texts(line: bytes) -> list[str]:
    """Cells of a line; unreadable bytes become marks that no number and no column has."""
    return next(csv.reader([line.decode(errors="replace")]), [])


def _value(column: str, text: str) -> Any:
    if column in TEXTS:
        return text
    if column in FLAGS:
        if text not in ("True", "False"):
            raise ValueError(f"{column} is {text!r} where True or False was expected")
        return text == "True"
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{column} is {text!r} where a number was expected") from None


def _as_csv(rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
