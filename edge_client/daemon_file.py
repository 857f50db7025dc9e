"""What tells client commands of the running daemon: one small file, written when it is ready to serve.

A process id alone is no proof: after a crash the file stays, and the kernel gives the number to another
process. So the file also holds when that process started, in the kernel's own words, and a record whose
process is gone, or is another one by now, counts as no record.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from common.errors import UserError

PROC = Path("/proc/self")
PS = "/bin/ps"
LONGEST_PS = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class DaemonRecord:
    """The running daemon."""

    pid: int
    process_start: str  # of `process_start`; with `pid` it names one process for ever
    started_at: float  # seconds since 1970, for people
    listen: str  # HOST:PORT, the port as bound, or unix:PATH
    version: str
    token_file: str = ""  # of the API; empty: it asks for none
    tls_cert: str = ""  # of the API, if it speaks TLS; clients trust this certificate and no other
    log_file: str = ""  # empty: standard error
    flags: str = ""  # settings that its command line gave, as JSON; empty: not told


def this_process(
    *,
    started_at: float,
    listen: str,
    version: str,
    token_file: str = "",
    tls_cert: str = "",
    log_file: str = "",
    flags: str = "",
) -> DaemonRecord:
    """The record of the process that asks. Raises `UserError` if this system does not tell process times."""
    start = process_start(os.getpid())
    if start is None:
        raise UserError("this system tells no start time of processes; /proc on Linux or ps is needed")
    return DaemonRecord(
        os.getpid(), start, started_at, listen, version, token_file, tls_cert, log_file, flags
    )


def write(path: Path, record: DaemonRecord) -> None:
    """Whole or not at all, for its owner alone. Raises `UserError` if it cannot be written."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # of mode 0600
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as out:
                json.dump(asdict(record), out)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error


def read(path: Path) -> DaemonRecord | None:
    """The daemon that runs; None if there is no file, or its process is no more.

    Raises `UserError` if the file cannot be read or is not ours.
    """
    record = read_any(path)
    return record if record is not None and is_alive(record) else None


def read_any(path: Path) -> DaemonRecord | None:
    """As `read`, also of a daemon that is gone without having removed its file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror or error}; ask as the user that runs the daemon"
        ) from error
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); remove it and start the daemon again") from error
    if not _is_record(found):
        raise UserError(f"{path} was written by another version; remove it and start the daemon again")
    known = {field.name: found[field.name] for field in fields(DaemonRecord) if field.name in found}
    return DaemonRecord(**known)


def _is_record(found: Any) -> bool:
    """Whether all fields are there; others, of a newer version, may be too."""
    if not isinstance(found, dict) or not isinstance(found.get("pid"), int) or found["pid"] < 1:
        return False
    numbers = isinstance(found.get("started_at"), int | float)
    texts = {field.name for field in fields(DaemonRecord)} - {"pid", "started_at"}
    found = {"flags": "", **found}  # an older version did not tell them
    return numbers and all(isinstance(found.get(name), str) for name in texts)


def refuse_second(path: Path) -> None:
    """Raise `UserError` if a daemon runs already: two would share a journal, a token and a socket."""
    record = read(path)
    if record is not None:
        raise UserError(
            f"an edge daemon runs already, as process {record.pid} at {record.listen}; "
            "stop it with: forerun edge stop"
        )


def is_alive(record: DaemonRecord) -> bool:
    """Whether the very process still runs."""
    return process_start(record.pid) == record.process_start


def remove(path: Path, record: DaemonRecord) -> None:
    """At the daemon's end: its own file only, not that of one which has taken its place."""
    try:
        if read_any(path) == record:
            path.unlink(missing_ok=True)
    except (UserError, OSError):
        pass  # a file that stays is recognised as stale


def process_start(pid: int) -> str | None:
    """When a process started, in words that no other process with this id will ever have; None if none runs.

    On Linux the boot's id and the clock ticks since; elsewhere what `ps` prints, to the second.
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
    """Fields 3 and 22 of /proc/PID/stat; the name in field 2 may hold spaces and parentheses."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    after_name = stat.rpartition(")")[2].split()
    state, ticks = after_name[0], after_name[19]
    return None if state in ("Z", "X") else f"{boot}:{ticks}"
