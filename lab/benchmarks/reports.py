"""Provides shared parts of the programs: options, resumable reports, and the end of a command."""

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
from forerun.prompts import bundled, some_of
from lab.bench.report import add_report
from simulator.documents import read_text, write_error, write_whole
from training.options import read_prompts

Row = dict[str, Any]
Key = TypeVar("Key")


@dataclass(slots=True)
class Report(ABC, Generic[Key]):
    """Holds measurements, row by row. `settings` are the options that all rows have in common."""

    settings: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=dict)  # where the first row was measured
    rows: dict[Key, Row] = field(default_factory=dict)

    @staticmethod
    @abstractmethod
    def key_of(row: Mapping[str, Any]) -> Key:
        """Return a row's key. Raises `KeyError` for a row of another benchmark."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a report. Raises `UserError` for a file that is no report."""
        try:
            document = json.loads(read_text("the report", path))
            rows = {cls.key_of(row): row for row in document["results"]}
            return cls(document["settings"], document["machine"], rows)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is not a report of this benchmark; give another file") from error

    @classmethod
    def resumed(cls, path: Path | None, settings: dict[str, Any], machine: dict[str, Any]) -> Self:
        """Return the existing report, to continue it, or a new one. Raises `UserError` if options differ."""
        if path is None or not path.exists():
            return cls(settings, machine)
        report = cls.read(path)
        names = sorted({*settings, *report.settings})
        other = [name for name in names if settings.get(name) != report.settings.get(name)]
        if other:
            raise UserError(f"{path} was measured with other options ({', '.join(other)}); give another file")
        return report

    def write(self, path: Path) -> None:
        """Write all of the report or nothing. Raises `UserError`, `CapacityError`."""
        content = {"settings": self.settings, "machine": self.machine, "results": list(self.rows.values())}
        try:
            write_whole(path, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise write_error(f"the report cannot be written to {path}", error) from error


def add_prompts(parser: argparse.ArgumentParser, count: int) -> None:
    """Add `--prompts` and `--num-prompts`, for `prompts_from`."""
    words = "a JSON list of texts, or JSON lines with `prompt`, instead of the bundled ones"
    parser.add_argument("--prompts", type=Path, metavar="FILE", help=words)
    words = "number of prompts (%(default)s)"
    parser.add_argument("--num-prompts", type=int, default=count, metavar="N", help=words)


def prompts_from(options: argparse.Namespace, first: int = 0) -> list[str]:
    """Return the chosen prompts, without the `first` ones. Raises `UserError`."""
    texts = read_prompts(options.prompts) if options.prompts else bundled()
    if first < 0:
        raise UserError(f"--first-prompt is {first}; it must be 0 or more")
    return some_of(texts[first:], options.num_prompts)


def parser_of(name: str, words: str | None) -> argparse.ArgumentParser:
    """Return a parser of `python -m benchmarks.NAME` with `--json` and `--out`, for `finish`."""
    parser = plain_parser_of(name, words)
    add_report(parser)
    return parser


def plain_parser_of(name: str, words: str | None) -> argparse.ArgumentParser:
    """Return a parser of `python -m benchmarks.NAME`."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=words,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def carry_out(name: str, options: argparse.Namespace) -> int:
    """Run `options.run`; return the exit status. Errors begin with `name`."""
    try:
        options.run(options)
    except ForerunError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        return 130
    return 0
