"""Tries a model's file in a child process before this process loads it.

A malformed file can end the process in llama.cpp: by an assertion, a bad pointer or exhausted memory. A
daemon that loads such a file would die with all its texts, and again at its next start; a verifier would say
nothing. So a child (`main`) loads an unknown file first, for its tokens alone or with weights and a decode.
It ends with 0 if the file can be used, with 1 and a sentence for a refused file, and by a signal if llama.cpp
crashes. A `UserError` says what ended it. A file that has passed is recorded by place, size, times and inode
in the state folder and is not tried again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.child import die_first, limit
from common.errors import UserError
from common.llama.files import find_model
from common.llama.library import library
from common.llama.model import LlamaModel, LlamaSettings

if TYPE_CHECKING:
    from common.llama.runtime import LlamaRuntime

logger = logging.getLogger(__name__)

CHILD = "common.llama.load_trial"
RULES = 2
"""Version of the trial's checks. A file that has passed an older version is tried again."""

PATIENCE = 120.0
"""Seconds for a child, in addition to the time for its bytes. It yields to other processes."""

SLOWEST = 10e6
"""Bytes a second of the slowest memory card, from which a large model takes minutes."""

MAX_KEPT = 16  # entries of a table; the oldest is forgotten
MAX_TABLE = 1 << 17  # bytes of a table, enough for `MAX_KEPT` entries with the longest names
MAX_WORDS = 4096  # characters of a child's last words

TEXT = "A text of some words, <|and marks|>."
CELLS = 64
MAX_ASKED = 1 << 16  # characters of the request
FREE_MEMORY = 4 << 30  # bytes of addresses: Python, numpy, llama.cpp's buffers and its threads' stacks
COPIES = 3  # of the file: as it is mapped, repacked for the processor, and something over


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
        if self._path is None:
            return
        table = self.load()
        table.pop(name, None)
        table[name] = entry
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = self._path.with_name(f"{self._path.name}.new")
            new.write_text(
                json.dumps(dict(list(table.items())[-MAX_KEPT:]), indent=1) + "\n", encoding="utf-8"
            )
            os.replace(new, self._path)
        except OSError as error:
            logger.warning("%s cannot be written (%s); %s", self._path, error, cost)


class ModelTrials:
    """Tries files and keeps those that passed in the file `record` (None keeps nothing). Thread-safe."""

    def __init__(self, record: Path | None = None) -> None:
        self._record = KeptTable(record)
        self._lock = threading.Lock()

    def ensure(self, settings: LlamaSettings, *, weights: bool) -> None:
        """Return when the file of `settings` may be loaded, else raise `UserError` with the reason."""
        model = Path(find_model(settings.path)).absolute()
        path = Path(find_model(settings.adapter)).absolute() if settings.adapter else model
        with self._lock:
            wanted = mark_of(path) | {
                **({"adapts": [str(model), mark_of(model)]} if settings.adapter else {}),
                "accelerated": bool(settings.gpu_layers),  # layers on an accelerator, which runs other code
                "batch_invariant": settings.batch_invariant,  # other kernels, too
                "weights": weights,  # it was loaded whole
            }
            # A file loaded with its weights has had its tokens read, too.
            if self._record.load().get(str(path)) in (wanted, {**wanted, "weights": True}):
                return
            began = time.monotonic()
            logger.info("> trying %s in a process of its own", path)
            patience = PATIENCE + (model.stat().st_size / SLOWEST if weights else 0.0)
            _try(replace(settings, path=str(model)), weights, patience)
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


def _try(settings: LlamaSettings, weights: bool, patience: float) -> None:
    """Run a child to its end. Raises `UserError` with its message, or with the cause of its end."""
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # its crash handler would start a debugger
    try:
        done = subprocess.run(
            [sys.executable, "-m", CHILD],
            input=json.dumps({"settings": asdict(settings), "weights": weights}),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=patience,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"llama.cpp has not loaded {settings.path} within {patience:.0f} s in a process of its own; the "
            "file is damaged, or this machine is too slow for it. Fetch it again, or choose a smaller model"
        ) from error
    except OSError as error:
        raise UserError(
            f"no process can be started to try {settings.path}: {error.strerror or error}"
        ) from error
    if done.returncode:
        raise UserError(_why(settings.path, done.returncode, done.stdout, done.stderr))


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


# --- the child's side ---------------------------------------------------------------------------------------


def main() -> int:
    with contextlib.suppress(AttributeError, OSError):
        os.nice(5)  # the machine's models come first
    asked = json.loads(sys.stdin.read(MAX_ASKED))
    try:
        try_file(LlamaSettings(**asked["settings"]), weights=asked["weights"])
    except UserError as error:
        print(error)  # noqa: T201  the parent reads it
        return 1
    return 0


def try_file(settings: LlamaSettings, *, weights: bool) -> None:
    """Load and use a file, under lowered limits of this process. Raises `UserError`."""
    die_first()
    limit(RLIMIT_CORE=0)
    # The limit refuses memory for false sizes in the file. Drivers of accelerators reserve far more
    # addresses than they use; with them only `die_first` helps.
    if not library().llama_supports_gpu_offload():
        limit(RLIMIT_AS=FREE_MEMORY + COPIES * os.stat(settings.path).st_size)
    if not weights:
        with LlamaModel(settings, weights=False) as model:
            _use_tokens(model)
        return
    from common.llama.runtime import LlamaRuntime

    # A small context suffices to find a broken file. Several tokens (products of matrices) are decoded in two
    # sequences (a draft tree), then one token.
    small = replace(settings, n_ctx=CELLS, n_seq_max=2, n_batch=CELLS, max_rows=4)
    with LlamaRuntime(small) as runtime:
        tokens = _use_tokens(runtime)[:4]
        count = len(tokens)
        _decode(runtime, tokens, list(range(count)), [0] * count)
        runtime.seq_copy(0, 1, 0, -1)
        _decode(runtime, [tokens[0], tokens[-1]], [count, count], [0, 1])
        _decode(runtime, tokens[:1], [count + 1], [1])


def _use_tokens(model: LlamaModel) -> list[int]:
    """Read all parts of the vocabulary. Return the ids of some text."""
    model.token_table()
    _ = model.chat_template, model.eos_ids, model.description
    return [*model.begin_ids, *model.tokenize(TEXT, True)] or [0]


def _decode(runtime: LlamaRuntime, tokens: list[int], positions: list[int], sequences: list[int]) -> None:
    runtime.batch.fill(tokens, positions, sequences, [0] * (len(tokens) - 1) + [1])
    code = runtime.decode()
    if code:
        raise UserError(
            f"llama.cpp loads {runtime.path} and cannot evaluate it (code {code}); the file is damaged, or "
            "memory is short. Fetch it again, or choose a smaller model"
        )
    if not math.isfinite(runtime.logits(1).max()):  # the largest of logits with a NaN is NaN
        raise UserError(
            f"{runtime.settings.adapter or runtime.path} gives logits that are no numbers; its training has "
            "failed, or the file is damaged; take another"
        )


if __name__ == "__main__":
    sys.exit(main())
