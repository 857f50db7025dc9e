"""Reads and writes the run file, by which client commands find the running daemon. A ready daemon writes it.

After a crash the file stays, and the kernel may reuse the process id. So the file also holds the process's
start time, and the record of another process counts as none.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from common.config.merge import Loaded
from common.errors import UserError
from edge_client.process.paths import EdgePaths, write_private
from edge_client.settings import EdgeConfig, load_config

PROC = Path("/proc/self")
PS = "/bin/ps"
LONGEST_PS = 5.0  # seconds

HOW_TO_START = "start one with: forerun edge --draft FILE (forerun models lists what fits)"
"""Said wherever a command finds no daemon."""


@dataclass(frozen=True, slots=True)
class DaemonRecord:
    """Describes the running daemon."""

    pid: int
    process_start: str  # of `process_start`; with `pid` it names one process for ever
    started_at: float  # seconds since 1970, for people
    listen: str  # HOST:PORT, the port as bound, or unix:PATH
    version: str
    token_file: str = ""  # of the API; empty: it asks for none
    tls_cert: str = ""  # of the API, if it speaks TLS; clients trust this certificate and no other
    log_file: str = ""  # empty: standard error
    flags: str = ""  # settings of its command line, as JSON; empty: unknown


def this_process(*, started_at: float, listen: str, version: str, **more: str) -> DaemonRecord:
    """Return the record of this process. Raise `UserError` if this system reports no process times."""
    start = process_start(os.getpid())
    if start is None:
        raise UserError("this system reports no start time of processes; /proc on Linux or ps is needed")
    return DaemonRecord(os.getpid(), start, started_at, listen, version, **more)


def write(path: Path, record: DaemonRecord) -> None:
    """Write the record in full or not at all, for its owner alone. Raise `UserError` if that fails."""
    try:
        write_private(path, json.dumps(asdict(record)).encode())
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error


def read(path: Path) -> DaemonRecord | None:
    """Return the running daemon's record; None if no daemon runs. Raise `UserError` for an unreadable or
    foreign file."""
    record = read_any(path)
    return record if record is not None and is_alive(record) else None


def read_any(path: Path) -> DaemonRecord | None:
    """Return the record as `read` does, even of a daemon that has died without removing its file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror or error}; use the user account of the daemon"
        ) from error
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); remove it and start the daemon again") from error
    if not _is_record(content):
        raise UserError(f"{path} was written by another version; remove it and start the daemon again")
    return DaemonRecord(
        **{each.name: content[each.name] for each in fields(DaemonRecord) if each.name in content}
    )


def daemons_config(paths: EdgePaths, file: Path | None) -> Loaded[EdgeConfig]:
    """Return the running daemon's configuration, its command line included. Without a running daemon, or with
    a `file`, return that of files and environment. Raise `UserError`."""
    record, flags = read(paths.daemon) if file is None else None, {}
    if record is not None and record.flags:
        given = json.loads(record.flags)
        flags, file = given["flags"], given["config"] and Path(given["config"])
    return load_config(flags, os.environ, paths.files_read(file))


def _is_record(content: Any) -> bool:
    """Return whether all fields are present; a newer version may add others."""
    if not isinstance(content, dict):
        return False
    content = {"flags": "", **content}  # an older version did not write them
    kinds = {each.name: str for each in fields(DaemonRecord)} | {"pid": int, "started_at": int | float}
    return all(isinstance(content.get(name), kind) for name, kind in kinds.items()) and content["pid"] > 0


def refuse_second(path: Path) -> None:
    """Raise `UserError` if a daemon runs already: two would share a journal, a token and a socket."""
    record = read(path)
    if record is not None:
        raise UserError(
            f"an edge daemon runs already, as process {record.pid} at {record.listen}; "
            "stop it with: forerun edge stop"
        )


def is_alive(record: DaemonRecord) -> bool:
    """Return whether the recorded process still runs."""
    return process_start(record.pid) == record.process_start


def remove(path: Path, record: DaemonRecord) -> None:
    """Remove the daemon's own file at its end, but not a successor's."""
    try:
        if read_any(path) == record:
            path.unlink(missing_ok=True)
    except (UserError, OSError):
        pass  # a file that stays is recognised as stale


def process_start(pid: int) -> str | None:
    """Return when a process started, in words unique to it under this id; None if none runs.

    Linux gives the boot's id and the clock ticks since; elsewhere `ps` gives the time to the second.
    """
    if PROC.is_dir():
        return _start_on_linux(pid)
    try:
        done = subprocess.run(
            [PS, "-o", "lstart=", "-p", str(pid)],
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_PS,
            env={"LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _start_on_linux(pid: int) -> str | None:
    """Read fields 3 and 22 of /proc/PID/stat; the name in field 2 may hold spaces and parentheses."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    after_name = stat.rpartition(")")[2].split()
    state, ticks = after_name[0], after_name[19]
    return None if state in ("Z", "X") else f"{boot}:{ticks}"


LOOK = 0.05
"""Seconds between two checks whether the process has ended."""


def stop(record: DaemonRecord, timeout: float, kind: signal.Signals = signal.SIGTERM) -> bool:
    """End the very process of the record and wait at most `timeout` seconds; return whether it has ended.
    Raise `UserError` for another user's process."""
    try:
        if is_alive(record):
            os.kill(record.pid, kind)
    except ProcessLookupError:
        return True
    except PermissionError as error:
        raise UserError(f"process {record.pid} is another user's; stop the daemon as that user") from error
    until = time.monotonic() + timeout
    while is_alive(record):
        if time.monotonic() >= until:
            return False
        time.sleep(LOOK)
    return True
