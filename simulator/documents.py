"""Files that people and programs hand over: read with the fault named, written whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import errno
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from common.errors import CapacityError, UserError


def read_text(what: str, path: Path, kind: str = "UTF-8 text") -> str:
    """The text of a file that messages call `what`. Raises `UserError` if it is not to be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{what} {path} is not {kind}: {error.reason}") from error


@contextlib.contextmanager
def csv_reader(what: str, path: Path, verb: str = "is") -> Iterator[csv.DictReader[str]]:
    """The rows of a CSV file that messages call `what` (`verb` goes with it), with or without the byte order
    mark of spreadsheets. Raises `UserError`, also while rows are read."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield csv.DictReader(file)
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{what} {path} {verb} not a CSV file: {error}") from error


def write_whole(path: Path, content: str | bytes) -> None:
    """All of it or nothing: a reader never sees half a file. Raises `OSError`."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)  # a full disk is not helped by half a file
        raise


def write_error(sentence: str, error: OSError) -> UserError | CapacityError:
    """What to raise when a file cannot be written: there is no room, or it lies where it may not."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (CapacityError if is_full else UserError)(f"{sentence}: {error.strerror}")


def cell_number(where: str, row: Mapping[str, str | None], column: str) -> float:
    """A finite number of 0 or more in a row of a CSV file. Raises `UserError` that begins with `where`."""
    text = row.get(column) or ""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        raise UserError(f"{where}: {column} is {text!r}; a number of 0 or more was expected")
    return found
