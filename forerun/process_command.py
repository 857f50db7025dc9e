"""`forerun edge status`, `stop` and `logs`: the running daemon, seen and ended from outside."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import time
from typing import Any

from common.errors import ForerunError
from edge_client import daemon_file
from edge_client.daemon_file import DaemonRecord
from forerun.daemon_words import status_lines
from forerun.edge_places import add_json, add_place, places
from forerun.top_table import duration

STATUS_PATH = "/v1/status"
RUNNING, NOT_RUNNING, UNKNOWN = 0, 3, 4
"""Exit codes of `status`, as LSB has them for init scripts."""

STOPPED, NONE_RAN, STILL_RUNS = 0, 1, 4
"""Exit codes of `stop`."""


def add_actions(actions: Any) -> None:
    """`status` and `stop`."""
    status = actions.add_parser(
        "status",
        help="whether the daemon runs, and what it says of itself",
        description="Tells whether the daemon runs and what it says of itself. "
        "Exit code 0 if it runs, 3 if not, 4 if it runs and does not answer.",
    )
    add_place(status)
    add_json(status)
    status.set_defaults(run=_status)
    ending = actions.add_parser(
        "stop",
        help="end the daemon",
        description="Ends the daemon with SIGTERM and waits until it is gone. "
        "Exit code 0 if it has ended, 1 if none ran, 4 if it still runs.",
    )
    ending.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds to wait (%(default)s)"
    )
    ending.add_argument("--kill", action="store_true", help="end it by force: running completions are lost")
    add_place(ending)
    add_json(ending)
    ending.set_defaults(run=_stop)


# status -----------------------------------------------------------------------------------------------------


def _status(options: argparse.Namespace) -> int:
    found, code = _found(options)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print(_in_words(found))
    return code


def _found(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """What is known of the daemon, and the exit code. `status` is running, unresponsive, stopped or stale."""
    record = daemon_file.read_any(places(options).daemon)
    if record is None:
        return {"status": "stopped"}, NOT_RUNNING
    if not daemon_file.is_alive(record):
        return {"status": "stale", "pid": record.pid}, NOT_RUNNING
    from edge_client.local_client import client_of  # here: HTTP takes a while to import

    found = {"status": "running", **_of_record(record)}
    try:
        told = client_of(record).get(STATUS_PATH)
    except ForerunError as error:
        return {**found, "status": "unresponsive", "error": str(error)}, UNKNOWN
    has_page = isinstance(told, dict) and told.get("page")
    page = {"page": _page(record)} if has_page else {}
    return {**found, **page, "api": told}, RUNNING


def _page(record: DaemonRecord) -> str:
    """Its address, for a shell to put the token in, which is not printed: screens are shared."""
    scheme = "https" if record.tls_cert else "http"
    token = f"#token=$(cat {shlex.quote(record.token_file)})" if record.token_file else ""
    return f"{scheme}://{record.listen}/{token}"


def _of_record(record: DaemonRecord) -> dict[str, Any]:
    return {
        "pid": record.pid,
        "listen": record.listen,
        "version": record.version,
        "token_file": record.token_file,
        "uptime": round(max(0.0, time.time() - record.started_at), 1),  # seconds
    }


def _in_words(found: dict[str, Any]) -> str:
    if found["status"] == "stopped":
        return "not running"
    if found["status"] == "stale":
        return f"not running; process {found['pid']} ended without saying so (its log may tell why)"
    line = f"running as process {found['pid']} at {found['listen']} for {duration(found['uptime'])}"
    if found["token_file"]:
        line += f"\nprograms show it the token in {found['token_file']}"
    if found.get("page"):
        line += f"\nthe page: {found['page']}"
    if found["status"] == "unresponsive":
        return f"{line}\nbut it does not answer: {found['error']}"
    told = found["api"] if isinstance(found["api"], dict) else {"status": found["api"]}
    return "\n".join([line, *(f"  {each}" for each in status_lines(told))])


# stop -------------------------------------------------------------------------------------------------------


def _stop(options: argparse.Namespace) -> int:
    from edge_client.stopping import stop

    record = daemon_file.read(places(options).daemon)
    if record is None:
        _tell(options, {"stopped": False, "running": False}, "not running")
        return NONE_RAN
    ended = stop(record, options.timeout, signal.SIGKILL if options.kill else signal.SIGTERM)
    told = {"stopped": ended, "running": not ended, "pid": record.pid}
    if not ended:
        words = f"process {record.pid} still runs after {options.timeout:g} s; wait, or use --kill"
        _tell(options, told, words)
        return STILL_RUNS
    _tell(options, told, f"process {record.pid} has ended")
    return STOPPED


def _tell(options: argparse.Namespace, told: dict[str, Any], words: str) -> None:
    print(json.dumps(told) if options.json else words)
