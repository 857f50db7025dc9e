"""`forerun edge logs`: the daemon's log, from the journal where systemd runs it, else from its file."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from common.errors import UserError
from edge_client import daemon_file
from edge_client.paths import EdgePaths
from forerun.edge_places import add_json, add_place, places
from forerun.service_units import UNIT

OF_THE_JOURNAL = ("active", "activating", "reloading", "deactivating", "failed")
"""States in which the unit's log is the one to read: after a failure more than ever."""

LOOK = 0.25
"""Seconds between two looks at a file that is followed."""


def add_actions(actions: Any) -> None:
    """`logs`."""
    parser = actions.add_parser(
        "logs",
        help="print the daemon's log",
        description="Prints the end of the daemon's log, from the journal if systemd runs it, else its file.",
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on with what is written, until Ctrl-C"
    )
    parser.add_argument(
        "-n", "--lines", type=int, default=100, metavar="N", help="lines from the end (%(default)s)"
    )
    add_place(parser)
    add_json(parser)
    parser.set_defaults(run=_logs)


def _logs(options: argparse.Namespace) -> int:
    if options.lines < 0:
        raise UserError(f"--lines is {options.lines}; it must be 0 or more")
    if _state_of_unit(options.system) in OF_THE_JOURNAL:
        return subprocess.run(_journal(options), check=False).returncode
    file = _log_file(places(options))
    for line in last_lines(file, options.lines):
        _print(line, options.json)
    if options.follow:
        for line in followed(file, _wait):
            _print(line, options.json)
    return 0


def _state_of_unit(system: bool) -> str:
    """As systemd words it; empty where there is none."""
    systemctl = shutil.which("systemctl")
    if systemctl is None or shutil.which("journalctl") is None:
        return ""
    scope = [] if system else ["--user"]
    command = [systemctl, *scope, "is-active", UNIT]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _journal(options: argparse.Namespace) -> list[str]:
    scope = [] if options.system else ["--user"]
    follow = ["--follow"] if options.follow else ["--no-pager"]
    form = "json" if options.json else "cat"
    return ["journalctl", *scope, "--unit", UNIT, "--lines", str(options.lines), "--output", form, *follow]


def _log_file(paths: EdgePaths) -> Path:
    """Raises `UserError` if the daemon writes none."""
    record = daemon_file.read_any(paths.daemon)
    file = Path(record.log_file) if record is not None and record.log_file else paths.log
    if not file.is_file():
        raise UserError(
            f"there is no log at {file}, and systemd does not run the daemon: it logs to standard error; "
            "start it with --log-file to keep that"
        )
    return file


def last_lines(file: Path, count: int) -> Iterator[str]:
    """The end of a file. Raises `UserError` if it cannot be read."""
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            yield from [line.rstrip("\n") for line in deque(lines, maxlen=count)]
    except OSError as error:
        raise UserError(f"the log {file} cannot be read: {error.strerror or error}") from error


def followed(file: Path, wait: Callable[[], bool]) -> Iterator[str]:
    """Lines as they are added, also to a new file under the same name. `wait` pauses; false ends it."""
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(file.open(encoding="utf-8", errors="replace"))
        lines.seek(0, os.SEEK_END)
        begun = ""
        while True:
            begun += lines.readline()
            if begun.endswith("\n"):
                yield begun.rstrip("\n")
                begun = ""
            elif _is_another(file, lines):
                stack.close()
                lines = stack.enter_context(file.open(encoding="utf-8", errors="replace"))
                begun = ""
            elif not wait():
                return


def _is_another(file: Path, lines: TextIO) -> bool:
    """Whether the name now means a new file, or this one was emptied."""
    try:
        there, had = file.stat(), os.fstat(lines.fileno())
    except OSError:
        return False  # between the old one's move and the new one's birth
    return (there.st_ino, there.st_dev) != (had.st_ino, had.st_dev) or there.st_size < lines.tell()


def _wait() -> bool:
    time.sleep(LOOK)
    return True


def _print(line: str, as_json: bool) -> None:
    """With --json a line that is JSON already stays as it is."""
    if as_json and not line.startswith("{"):
        line = json.dumps({"message": line})
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
