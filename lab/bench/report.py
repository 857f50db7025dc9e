"""Holds what the benchmarks share: options, the machine's description, tables, reports and errors."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config.command_line import add_options
from common.config.setting import setting
from common.errors import ForerunError, UserError
from forerun import terminal
from forerun.cli import version_of
from forerun.options import write_out
from forerun.terminal import ProgressBar
from training.options import check_out

SCHEMA = 1
"""Version of the reports; it grows when a key changes its meaning."""

PACKAGES = ("torch", "transformers", "llama-cpp-python", "grpcio", "numpy")
HIDDEN = ("run", "command", "action", "json", "out", "plot", "log_level")


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Declares where the report goes. Raises `UserError` before the measurement."""

    json: bool = setting(False, "print the report as JSON instead of a table")
    out: Path | None = setting(None, "file for the report as JSON", "FILE")

    def __post_init__(self) -> None:
        if self.out is not None:
            check_out(self.out)


def parser_of(name: str, words: str | None) -> argparse.ArgumentParser:
    """Return a parser of `python -m lab.benchmarks.NAME` with `--json` and `--out`, for `finish`."""
    parser = plain_parser_of(name, words)
    add_options(parser, ReportOptions)
    return parser


def plain_parser_of(name: str, words: str | None) -> argparse.ArgumentParser:
    """Return a parser of `python -m lab.benchmarks.NAME`."""
    return argparse.ArgumentParser(
        prog=f"python -m lab.benchmarks.{name}",
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


class Machine:
    """Describes the machine of a measurement. Its load average shows other work."""

    def __init__(self) -> None:
        self._load_before = _load_average()

    def told(self) -> dict[str, Any]:
        """Return JSON with the load averages of the minute before the run and of its last minute."""
        return {
            "processor": _processor(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
            "load_average": [self._load_before, _load_average()],
            **{name: version_of(name) for name in PACKAGES},
        }


def settings_of(options: Any) -> dict[str, Any]:
    """Return the options as JSON."""
    return {
        name: _plain(value)
        for name, value in vars(options).items()
        if name not in HIDDEN and value is not None
    }


def finish(options: Any, report: Any, lines: Sequence[str]) -> None:
    """Write the report to --out, and print it or its table. Raise `UserError` or `CapacityError`."""
    text = json.dumps(report, indent=2)
    if options.out is not None:
        write_out("the report", options.out, text + "\n")
    print(text if options.json else "\n".join(lines))


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> list[str]:
    """Format rows as a table for a terminal, with a column for each key or each of `columns`."""
    columns = list(columns or dict.fromkeys(key for row in rows for key in row))
    return terminal.table(columns, ([_cell(row.get(key)) for key in columns] for row in rows))


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


@contextmanager
def progress_bar(unit: str) -> Iterator[Callable[[float, float, str], None]]:
    """Yield a function that shows progress: units done, units in total, current work."""
    with ProgressBar(sys.stderr) as bar:

        def progress(done: float, total: float, text: str) -> None:
            bar.show(done, total, text)
            bar.note(f"{done:g} of {total:g} {unit}: {text}")

        yield progress


def _plain(value: Any) -> Any:
    """Convert a value to JSON; a local file or folder keeps only its name."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bool | int | float):
        return value
    path = Path(str(value))
    return path.resolve().name if path.is_absolute() and path.exists() else str(value)


def _processor() -> str:
    """Return the processor's name on Linux, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _load_average() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None  # Windows has none
