"""What the parts of `forerun bench` share: options, the machine, how a report is written."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import demo_models
from common.errors import UserError
from forerun.bench.formula import FORMULA
from forerun.bench.job import Drafts
from simulator.documents import write_error, write_whole

SCHEMA = 1
"""Of the reports; it grows when a key changes its meaning."""

PACKAGES = ("torch", "transformers", "grpcio", "numpy")
HIDDEN = ("run", "command", "action", "json", "out", "plot", "log_level")


def add_target(parser: argparse.ArgumentParser) -> None:
    """The verifier's model and how it runs."""
    option = parser.add_argument
    option(
        "--target",
        default=str(demo_models.TARGET_DIR),
        metavar="PATH",
        help=f"folder or hub id, or `{FORMULA}`: no model, its texts are computed (%(default)s)",
    )
    option("--device", default="cpu", help="of the target: cpu or cuda (%(default)s)")
    option("--threads", type=int, default=1, metavar="N", help="of torch in the verifier (%(default)s)")
    add_load(parser)


def add_load(parser: argparse.ArgumentParser) -> None:
    """Who runs where."""
    option = parser.add_argument
    option(
        "--verifier",
        default="",
        metavar="OPTIONS",
        help="further options of `forerun verify`, in one argument: --verifier '--max-rows 512'",
    )
    option(
        "--client-processes",
        type=int,
        default=1,
        metavar="N",
        help="that the clients are dealt to (%(default)s)",
    )
    option(
        "--pin",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="verifier and clients to a core each, on Linux (%(default)s)",
    )


def add_report(parser: argparse.ArgumentParser) -> None:
    """Where the report goes."""
    parser.add_argument("--json", action="store_true", help="print the report instead of a table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report there, too")


def check_out(options: argparse.Namespace) -> None:
    """Before minutes are spent. Raises `UserError`."""
    out = options.out
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"--out is {out}; a file in a folder that exists was expected")


class Machine:
    """What the figures depend on beyond the settings. Other work on the machine shows in the load."""

    def __init__(self) -> None:
        self._load_before = _load_average()

    def told(self) -> dict[str, Any]:
        """JSON, with the load averages of the minute before the run and of its last minute."""
        return {
            "processor": _processor(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
            "load_average": [self._load_before, _load_average()],
            **{name: _version(name) for name in PACKAGES},
        }


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options as JSON."""
    return {
        name: _plain(value)
        for name, value in vars(options).items()
        if name not in HIDDEN and value is not None
    }


def finish(options: argparse.Namespace, report: dict[str, Any], lines: Sequence[str]) -> None:
    """Write the report where it should go, and print it or its table. Raises `UserError`, `CapacityError`."""
    text = json.dumps(report, indent=2)
    if options.out is not None:
        try:
            write_whole(options.out, text + "\n")
        except OSError as error:
            raise write_error(f"the report cannot be written to {options.out}", error) from error
    print(text if options.json else "\n".join(lines))


def drafts_option(text: str) -> Drafts:
    """For argparse, which knows errors of its own."""
    try:
        return Drafts.parse(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _plain(value: Any) -> Any:
    """As JSON; a local file or folder without where it lies here."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bool | int | float):
        return value
    path = Path(str(value))
    return path.resolve().name if path.is_absolute() and path.exists() else str(value)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """As Linux names it; elsewhere its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _load_average() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None  # Windows has none
