"""Reads and writes files of people and programs: reading names faults, writing is all or nothing."""

from __future__ import annotations

import contextlib
import csv
import errno
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from common.errors import CapacityError, UserError


def read_text(what: str, path: Path, kind: str = "UTF-8 text") -> str:
    """Return the text of a file that messages call `what`. Raises `UserError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{what} {path} is not {kind}: {error.reason}") from error


@contextlib.contextmanager
def csv_reader(
    what: str, path: Path, needed: Sequence[str], verb: str = "is"
) -> Iterator[csv.DictReader[str]]:
    """Read the rows of a CSV file that messages call `what` (`verb` goes with it), with or without a byte
    order mark. Raises `UserError`, also while rows are read, or if a column is missing."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            for column in needed:
                if column not in columns:
                    names = ", ".join(columns) or "none"
                    raise UserError(f"{what} {path}, line 1: no column {column!r} among {names}")
            yield reader
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{what} {path} {verb} not a CSV file: {error}") from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write all of the file or nothing: a reader never sees half of it. Raises `OSError`."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)  # a full disk is not helped by half a file
        raise


def write_error(sentence: str, error: OSError) -> UserError | CapacityError:
    """Return the error to raise when a file cannot be written: no space, or a forbidden place."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (CapacityError if is_full else UserError)(f"{sentence}: {error.strerror}")


def cell_number(where: str, row: Mapping[str, str | None], column: str) -> float:
    """Read a finite number >= 0 of a row of a CSV file. Raises `UserError` that begins with `where`."""
    text = row.get(column) or ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"{where}: {column} is {text!r}; a number of 0 or more was expected")
    return value
