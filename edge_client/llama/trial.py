"""A draft model's file is tried in a process of its own before this one loads it.

llama.cpp ends the process on files that it did not foresee: an assertion, a bad pointer, memory without end.
A daemon that loads such a file would die with all its texts, and again at its next start. So a file that is
not known is read by `header` first, and then loaded by a child (`trial_child`), for its tokens alone or with
its weights and a decode. What ends the child is told as a sentence. A file that has passed is known by its
place, size, times and inode, in a file of the daemon's state folder, and costs nothing the next time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from common.errors import UserError
from edge_client.llama.files import find_model
from edge_client.llama.header import check_header
from edge_client.llama.settings import LlamaSettings
from edge_client.model_store import write_json
from edge_client.paths import make_private

logger = logging.getLogger(__name__)

CHILD = "edge_client.llama.trial_child"
RULES = 1
"""Raised when a trial finds out more than before: what has passed by older rules is tried again."""

PATIENCE = 60.0
"""Seconds that a child may take, beside those for its bytes."""

SLOWEST = 10e6
"""Bytes a second that the slowest memory card reads: a large model from there may take its minutes."""

MAX_KNOWN = 16  # files; the oldest is forgotten
MAX_RECORD = 1 << 17  # bytes of the record: so many files with the longest names
MAX_WORDS = 4096  # characters of a child's last words


@dataclass(frozen=True, slots=True)
class Asked:
    """What a child shall try."""

    path: str
    weights: bool  # else the tokens alone
    gpu_layers: int
    use_extra_bufts: bool | None

    def as_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Mark:
    """What a file was when it passed. Whoever writes into it changes one of these."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int
    library: str  # the release of llama-cpp-python, and RULES
    accelerated: bool  # with layers on an accelerator, whose code is another
    weights: bool  # it was loaded whole

    def covers(self, wanted: Mark) -> bool:
        """Whether nothing is left to be tried. Loaded whole, its tokens were read, too."""
        return wanted in (self, replace(self, weights=False))


class Trials:
    """Which files have passed, kept at `record`, whose folder is made; None keeps nothing. Any thread may
    ask."""

    def __init__(self, record: Path | None = None, patience: float = PATIENCE) -> None:
        self._record = record
        self._patience = patience
        self._lock = threading.Lock()

    def ensure(self, settings: LlamaSettings, *, weights: bool) -> None:
        """Return when the file of `settings` may be loaded here. Raises `UserError` that says why it may not.

        The first time of a file takes what loading it takes and some tenths of a second; later ones a `stat`.
        """
        path = Path(find_model(settings.path, settings.models, settings.sha256)).absolute()
        with self._lock:
            wanted = _mark_of(path, bool(settings.gpu_layers), weights)
            known = self._known()
            if (mark := known.get(str(path))) is not None and mark.covers(wanted):
                return
            began = time.monotonic()
            check_header(path)
            _try(
                Asked(str(path), weights, settings.gpu_layers, settings.use_extra_bufts), self._limit(wanted)
            )
            logger.info("%s has passed its trial in %.1f s", path, time.monotonic() - began)
            known.pop(str(path), None)  # the newest stands last
            self._keep({**known, str(path): wanted})

    def _limit(self, wanted: Mark) -> float:
        return self._patience + (wanted.size / SLOWEST if wanted.weights else 0.0)

    def _known(self) -> dict[str, Mark]:
        """What cannot be read is nothing: the worst that follows is another trial."""
        if self._record is None:
            return {}
        try:
            with self._record.open("rb") as file:
                told = json.loads(file.read(MAX_RECORD))
            return {str(name): Mark(**mark) for name, mark in told.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _keep(self, known: Mapping[str, Mark]) -> None:
        if self._record is None:
            return
        newest = list(known.items())[-MAX_KNOWN:]
        with contextlib.suppress(UserError):  # then the writing says it
            make_private(self._record.parent)
        try:
            write_json(self._record, {name: asdict(mark) for name, mark in newest})
        except OSError as error:
            logger.warning(
                "%s cannot be written (%s); the draft model is tried again at the next start",
                self._record,
                error.strerror or error,
            )


def _mark_of(path: Path, accelerated: bool, weights: bool) -> Mark:
    try:
        found = path.stat()
    except OSError as error:
        raise UserError(f"the draft model {path} cannot be read: {error.strerror or error}") from error
    times, place = (found.st_mtime_ns, found.st_ctime_ns), (found.st_ino, found.st_dev)
    return Mark(found.st_size, *times, *place, release(), accelerated, weights)


def release() -> str:
    """The release of llama-cpp-python, and the number of the rules of a trial."""
    try:
        return f"{version('llama-cpp-python')}, rules {RULES}"
    except PackageNotFoundError:  # built by hand, and on the path all the same
        return f"unknown, rules {RULES}"


def _try(asked: Asked, limit: float) -> None:
    """Run a child to its end. Raises `UserError` in its words, or of what became of it."""
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
            "is damaged, or this machine is too slow for it. Fetch it again, or choose a smaller draft model"
        ) from error
    except OSError as error:
        raise UserError(
            f"no process can be started to try {asked.path}: {error.strerror or error}"
        ) from error
    if done.returncode:
        raise UserError(_why(asked.path, done.returncode, done.stdout, done.stderr))


def _why(path: str, code: int, said: str, complained: str) -> str:
    """A child's own sentence, or one about its end."""
    words = said[:MAX_WORDS].strip()
    if code > 0 and words:
        return words
    end = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    lines = complained[-MAX_WORDS:].strip().splitlines()
    last = f" ({lines[-1][:200]})" if lines else ""
    return (
        f"llama.cpp cannot load {path}: the process that tried it {end}{last}. The file is damaged, or this "
        "llama.cpp fails on it; fetch it or convert the model again, or choose another draft model"
    )
