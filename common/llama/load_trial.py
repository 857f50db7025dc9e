"""Tries a model's file in a child process before this process loads it.

A malformed file can end the process in llama.cpp: by an assertion, a bad pointer or exhausted memory. A
daemon that loads such a file would die with all its texts, and again at its next start; a verifier would say
nothing. So a child (`load_trial_child`) loads an unknown file first, for its tokens alone or with weights and
a decode. A `UserError` says what ended the child. A file that has passed is recorded by place, size, times
and inode in the state folder and is not tried again.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.llama.files import find_model
from common.llama.model import LlamaSettings

logger = logging.getLogger(__name__)

CHILD = "common.llama.load_trial_child"
RULES = 1
"""Version of the trial's checks. A file that has passed an older version is tried again."""

PATIENCE = 60.0
"""Seconds for a child, in addition to the time for its bytes."""

SLOWEST = 10e6
"""Bytes a second of the slowest memory card, from which a large model takes minutes."""

MAX_KEPT = 16  # entries of a table; the oldest is forgotten
MAX_TABLE = 1 << 17  # bytes of a table, enough for `MAX_KEPT` entries with the longest names
MAX_WORDS = 4096  # characters of a child's last words


class KeptTable:
    """Keeps the latest JSON objects by name in the file `path`; None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def load(self) -> dict[str, Any]:
        """Return the table. An unreadable file counts as empty, so its work is done again."""
        if self._path is None:
            return {}
        try:
            with self._path.open("rb") as file:
                table = json.loads(file.read(MAX_TABLE))
        except (OSError, ValueError):
            return {}
        return table if isinstance(table, dict) else {}

    def keep(self, name: str, entry: object, cost: str) -> None:
        """Make `entry` the newest. If the file cannot be written, log the `cost`."""
        table = self.load()
        table.pop(name, None)
        self._write({**table, name: entry}, cost)

    def drop(self, name: str, cost: str) -> None:
        """Remove an entry. If the file cannot be written, log the `cost`."""
        table = self.load()
        if table.pop(name, None) is not None:
            self._write(table, cost)

    def _write(self, table: dict[str, Any], cost: str) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = self._path.with_name(f"{self._path.name}.new")
            new.write_text(
                json.dumps(dict(list(table.items())[-MAX_KEPT:]), indent=1) + "\n", encoding="utf-8"
            )
            os.replace(new, self._path)
        except OSError as error:
            logger.warning("%s cannot be written (%s); %s", self._path, error, cost)


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """Describes a child's task."""

    path: str
    weights: bool  # load the weights too, else the tokens alone
    gpu_layers: int
    batch_invariant: bool  # as in `LlamaSettings`

    def as_json(self) -> str:
        return json.dumps(asdict(self))


class ModelTrials:
    """Tries files and keeps those that passed in the file `record` (None keeps nothing). Thread-safe."""

    def __init__(self, record: Path | None = None) -> None:
        self._record = KeptTable(record)
        self._lock = threading.Lock()

    def ensure(self, settings: LlamaSettings, *, weights: bool) -> None:
        """Return when the file of `settings` may be loaded, else raise `UserError` with the reason."""
        path = Path(find_model(settings.path)).absolute()
        with self._lock:
            wanted = mark_of(path) | {
                "accelerated": bool(settings.gpu_layers),  # layers on an accelerator, which runs other code
                "batch_invariant": settings.batch_invariant,  # other kernels, too
                "weights": weights,  # it was loaded whole
            }
            # A file loaded with its weights has had its tokens read, too.
            if self._record.load().get(str(path)) in (wanted, {**wanted, "weights": True}):
                return
            began = time.monotonic()
            logger.info("> trying %s in a process of its own", path)
            _try(
                TrialRequest(str(path), weights, settings.gpu_layers, settings.batch_invariant),
                PATIENCE + (wanted["size"] / SLOWEST if weights else 0.0),
            )
            logger.info("%s has passed its trial in %.1f s", path, time.monotonic() - began)
            cost = "the model is tried again at the next start"
            self._record.keep(str(path), wanted, cost)


def mark_of(path: Path) -> dict[str, Any]:
    """Return a file's identity and llama.cpp's release. Every write to the file changes it."""
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"the model {path} cannot be read: {error.strerror or error}") from error
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
        "device": status.st_dev,
        "library": release(),
    }


def release() -> str:
    """Return the release of llama-cpp-python with the version of the trial's checks."""
    try:
        return f"{version('llama-cpp-python')}, rules {RULES}"
    except PackageNotFoundError:  # built by hand
        return f"unknown, rules {RULES}"


def _try(asked: TrialRequest, limit: float) -> None:
    """Run a child to its end. Raises `UserError` with its message, or with the cause of its end."""
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # its crash handler would start a debugger
    try:
        done = subprocess.run(
            [sys.executable, "-m", CHILD],
            input=asked.as_json(),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=limit,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"llama.cpp has not loaded {asked.path} within {limit:.0f} s in a process of its own; the file "
            "is damaged, or this machine is too slow for it. Fetch it again, or choose a smaller model"
        ) from error
    except OSError as error:
        raise UserError(
            f"no process can be started to try {asked.path}: {error.strerror or error}"
        ) from error
    if done.returncode:
        raise UserError(_why(asked.path, done.returncode, done.stdout, done.stderr))


def _why(path: str, code: int, said: str, complained: str) -> str:
    """Return a child's own message, or one about its end."""
    words = said[:MAX_WORDS].strip()
    if code > 0 and words:
        return words
    end = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    lines = complained[-MAX_WORDS:].strip().splitlines()
    last = f" ({lines[-1][:200]})" if lines else ""
    return (
        f"llama.cpp cannot load {path}: the process that tried it {end}{last}. The file is damaged, or this "
        "llama.cpp fails on it; fetch it or convert the model again, or choose another model"
    )
