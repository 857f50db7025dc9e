"""What benchmarks that take hours share: a report that is gone on with, and the end of their command."""

from __future__ import annotations

import argparse
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from common.errors import ForerunError, UserError
from simulator.documents import read_text, write_error, write_whole

Row = dict[str, Any]
Key = TypeVar("Key")


@dataclass(slots=True)
class Report(ABC, Generic[Key]):
    """What was measured, row by row. `settings` are the options that all rows have in common."""

    settings: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=dict)  # where the first row was measured
    rows: dict[Key, Row] = field(default_factory=dict)

    @staticmethod
    @abstractmethod
    def key_of(row: Mapping[str, Any]) -> Key:
        """What a row is found by. Raises `KeyError` for a row of another benchmark."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises `UserError` for a file that is none."""
        try:
            found = json.loads(read_text("the report", path))
            rows = {cls.key_of(row): row for row in found["results"]}
            return cls(found["settings"], found["machine"], rows)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is not a report of this benchmark; give another file") from error

    @classmethod
    def resumed(cls, path: Path | None, settings: dict[str, Any], machine: dict[str, Any]) -> Self:
        """The one that is there, to go on with, or a new one. Raises `UserError` if other options made it."""
        if path is None or not path.exists():
            return cls(settings, machine)
        report = cls.read(path)
        names = sorted({*settings, *report.settings})
        other = [name for name in names if settings.get(name) != report.settings.get(name)]
        if other:
            raise UserError(f"{path} was measured with other options ({', '.join(other)}); give another file")
        return report

    def write(self, path: Path) -> None:
        """All of it or nothing. Raises `UserError`, `CapacityError`."""
        content = {"settings": self.settings, "machine": self.machine, "results": list(self.rows.values())}
        try:
            write_whole(path, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise write_error(f"the report cannot be written to {path}", error) from error


def carry_out(name: str, options: argparse.Namespace) -> int:
    """Do what `options.run` says; the exit status. Errors begin with `name`."""
    try:
        options.run(options)
    except ForerunError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        return 130
    return 0
