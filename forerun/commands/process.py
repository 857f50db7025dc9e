"""Implements `forerun edge status`, `stop` and `logs`, which act on the running daemon from outside.

The log comes from the journal where systemd runs the daemon, else from its file.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config.command_line import add_command
from common.config.setting import setting
from common.errors import ForerunError, UserError
from edge_client.process import run_file as daemon_file
from edge_client.process.paths import EdgePaths
from edge_client.process.run_file import DaemonRecord
from forerun.commands.daemon_table import STATUS_PATH, duration, status_lines
from forerun.commands.service import UNIT
from forerun.options import DaemonOptions, PlaceOption

RUNNING, NOT_RUNNING, UNKNOWN = 0, 3, 4
"""Exit codes of `status`, as LSB defines them for init scripts."""

STOPPED, NONE_RAN, STILL_RUNS = 0, 1, 4
"""Exit codes of `stop`."""


@dataclass(frozen=True, kw_only=True)
class StopOptions(DaemonOptions):
    """Declares how the daemon is stopped."""

    timeout: float = setting(60.0, "seconds to wait for its end", "S")
    kill: bool = setting(False, "end it by force; running completions are lost")


@dataclass(frozen=True, kw_only=True)
class LogsOptions(PlaceOption):
    """Declares which part of the log is printed."""

    follow: bool = setting(False, "keep printing new lines until Ctrl-C", alias="-f")
    lines: int = setting(100, "number of lines from the end", "N", alias="-n", low=0)


def add_actions(actions: Any) -> None:
    """Add `status`, `stop` and `logs`."""
    status = """Show whether the daemon runs, and its own status report.
Exit code 0 if it runs, 3 if not, 4 if it runs and does not answer."""
    words = "show whether the daemon runs, and its own status report"
    add_command(actions, "status", words, _status, DaemonOptions, status)
    stop = """End the daemon with SIGTERM and wait until it is gone.
Exit code 0 if it has ended, 1 if none ran, 4 if it still runs."""
    add_command(actions, "stop", "end the daemon", _stop, StopOptions, stop)
    logs = "Print the end of the daemon's log, from the journal if systemd runs it, else from its file."
    add_command(actions, "logs", "print the daemon's log", _logs, LogsOptions, logs)


def _status(options: DaemonOptions) -> int:
    state, code = _found(options.paths)
    if options.json:
        print(json.dumps(state, indent=1))
    else:
        print(_in_words(state))
    return code


def _found(paths: EdgePaths) -> tuple[dict[str, Any], int]:
    """Return the daemon's state and the exit code. `status` is running, unresponsive, stopped or stale."""
    record = daemon_file.read_any(paths.daemon)
    if record is None:
        return {"status": "stopped"}, NOT_RUNNING
    if not daemon_file.is_alive(record):
        return {"status": "stale", "pid": record.pid}, NOT_RUNNING
    from edge_client.process.client import client_of  # here: HTTP takes a while to import

    state = {
        "status": "running",
        "pid": record.pid,
        "listen": record.listen,
        "version": record.version,
        "token_file": record.token_file,
        "uptime": round(max(0.0, time.time() - record.started_at), 1),  # seconds
    }
    try:
        told = client_of(record).get(STATUS_PATH)
    except ForerunError as error:
        return {**state, "status": "unresponsive", "error": str(error)}, UNKNOWN
    page = {"page": _page(record)} if told.get("page") else {}
    return {**state, **page, "api": told}, RUNNING


def _page(record: DaemonRecord) -> str:
    """Return the page's address. A shell fills in the token, which is not printed: screens are shared."""
    scheme = "https" if record.tls_cert else "http"
    token = f"#token=$(cat {shlex.quote(record.token_file)})" if record.token_file else ""
    return f"{scheme}://{record.listen}/{token}"


def _in_words(state: dict[str, Any]) -> str:
    if state["status"] == "stopped":
        return f"not running; {daemon_file.HOW_TO_START}"
    if state["status"] == "stale":
        ended = f"process {state['pid']} ended without saying so (its log may show why)"
        return f"not running; {ended}; {daemon_file.HOW_TO_START}"
    line = f"running as process {state['pid']} at {state['listen']} for {duration(state['uptime'])}"
    if state["token_file"]:
        line += f"\nprograms send the token in {state['token_file']}"
    if state.get("page"):
        line += f"\nthe page: {state['page']}"
    if state["status"] == "unresponsive":
        return f"{line}\nbut it does not answer: {state['error']}"
    return "\n".join([line, *(f"  {each}" for each in status_lines(state["api"]))])


def _stop(options: StopOptions) -> int:
    record = daemon_file.read(options.paths.daemon)
    told: dict[str, Any]
    if record is None:
        told, words, code = {"stopped": False, "running": False}, "not running", NONE_RAN
    else:
        ended = daemon_file.stop(record, options.timeout, signal.SIGKILL if options.kill else signal.SIGTERM)
        told = {"stopped": ended, "running": not ended, "pid": record.pid}
        still = f"process {record.pid} still runs after {options.timeout:g} s; wait, or use --kill"
        words = f"process {record.pid} has ended" if ended else still
        code = STOPPED if ended else STILL_RUNS
    print(json.dumps(told) if options.json else words)
    return code


OF_THE_JOURNAL = ("active", "activating", "reloading", "deactivating", "failed")
"""States of the unit in which its journal is the log to read, also after a failure."""


def _logs(options: LogsOptions) -> int:
    if _state_of_unit(options.system) in OF_THE_JOURNAL:
        return subprocess.run(_journal(options), check=False).returncode
    follow = ["-F"] if options.follow else []  # also to a new file under the same name
    command = ["tail", "-n", str(options.lines), *follow, str(_log_file(options.paths))]
    return subprocess.run(command, check=False).returncode


def _state_of_unit(system: bool) -> str:
    """Return the unit's state by systemd; empty without systemd."""
    systemctl = shutil.which("systemctl")
    if systemctl is None or shutil.which("journalctl") is None:
        return ""
    scope = [] if system else ["--user"]
    command = [systemctl, *scope, "is-active", UNIT]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _journal(options: LogsOptions) -> list[str]:
    scope = [] if options.system else ["--user"]
    follow = ["--follow"] if options.follow else ["--no-pager"]
    return ["journalctl", *scope, "--unit", UNIT, "--lines", str(options.lines), "--output", "cat", *follow]


def _log_file(paths: EdgePaths) -> Path:
    """Return the log file's path. Raise `UserError` if the daemon writes no file."""
    record = daemon_file.read_any(paths.daemon)
    file = Path(record.log_file) if record is not None and record.log_file else paths.log
    if not file.is_file():
        raise UserError(
            f"there is no log at {file}, and systemd does not run the daemon, which logs to standard error; "
            "start it with --log-file to keep a log"
        )
    return file
