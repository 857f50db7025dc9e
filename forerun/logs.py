"""A server's log on standard error: a line an event, for people or for programs, written by a thread of its
own.

Standard error may be a pipe that nobody reads for a while. Whoever logs goes on all the same: lines wait in
memory, and those above a limit are lost and counted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Iterator
from logging.handlers import QueueHandler
from typing import Any, TextIO

OURS = ("cloud_verifier", "edge_client", "common", "forerun")
"""The loggers that `--log-level` is about; the libraries' warnings are shown in any case."""

TALKATIVE = ("torchao", "torch.utils._pytree")
"""Loggers that warn whenever torchao is imported, of CUDA libraries that only other machines have."""

PLAIN = re.compile(r"[A-Za-z0-9._:/@+-]+")
"""What a word may be made of."""

MAX_WAITING = 10_000
"""Lines in memory: a few megabytes."""


def hush_libraries() -> None:
    """Let those that warn of nothing speak of errors only. gRPC's core writes to standard error by itself, in
    a form of its own, and listens to this variable alone, before it is imported."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a record says in single values, beside its words: `extra={"fields": {...}}`."""
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def timestamp(record: logging.LogRecord) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """Time, the level's first letter, the words, then `name=value`. Only ASCII, whatever a value holds."""

    def format(self, record: logging.LogRecord) -> str:
        said = [timestamp(record), record.levelname[:1], record.getMessage()]
        said += [f"{name}={_as_word(value)}" for name, value in fields_of(record).items()]
        lines = [" ".join(said)]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines).encode("ascii", "backslashreplace").decode()


class JsonFormatter(logging.Formatter):
    """An object a line: `time`, `level`, `logger`, `message`, then the values. Only ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


FORMATS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}
"""By their names on the command line."""


class _Waiting(QueueHandler):
    """Takes a record and returns at once. Formatting is the other thread's work."""

    def __init__(self, waiting: queue.Queue[Any]) -> None:
        super().__init__(waiting)
        self.lines = waiting
        self.num_lost = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """With its arguments put in: they may change before it is written."""
        record.msg, record.args = record.getMessage(), None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.lines.put_nowait(record)
        except queue.Full:
            self.num_lost += 1


PATIENCE = 5.0
"""Seconds that the end waits for the last lines to get away."""


class _Writer(logging.StreamHandler[TextIO]):
    """Writes what waits, in a thread of its own, and says when lines were lost."""

    def __init__(self, out: TextIO, waiting: _Waiting) -> None:
        super().__init__(out)
        self._waiting = waiting
        self._num_told = 0
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """When all is written, or when nobody has read it for too long."""
        with contextlib.suppress(queue.Full):
            self._waiting.lines.put(None, timeout=PATIENCE)
        self._thread.join(PATIENCE)

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if lost := self._waiting.num_lost - self._num_told:
            self._num_told += lost
            words = "log lines were lost: nobody read them fast enough"
            said = logging.LogRecord(__name__, logging.WARNING, __file__, 0, words, None, None)
            said.fields = {"lines": lost}
            super().emit(said)

    def _write_all(self) -> None:
        while (record := self._waiting.lines.get()) is not None:
            self.handle(record)


@contextlib.contextmanager
def writing(level: str | None, style: str, out: TextIO | None = None) -> Iterator[None]:
    """Within this, all that is logged goes to `out` (standard error), and everything is out at the end.

    Args: level, what our own parts log at least (None: info), and if it is given the libraries, too, which
    else log warnings; style, one of `FORMATS`.
    """
    waiting = _Waiting(queue.Queue(MAX_WAITING))
    writer = _Writer(out or sys.stderr, waiting)
    writer.setFormatter(FORMATS[style]())
    root, ours = logging.getLogger(), [logging.getLogger(name) for name in OURS]
    before = root.handlers[:], root.level, [each.level for each in ours]
    root.handlers[:] = [waiting]
    root.setLevel((level or "warning").upper())
    for each in ours:
        each.setLevel((level or "info").upper())
    writer.start()
    try:
        yield
    finally:
        writer.stop()
        root.handlers[:], root.level = before[0], before[1]
        for each, old in zip(ours, before[2], strict=True):
            each.setLevel(old)


def _as_word(value: object) -> str:
    """As it is if it is one plain word, else as JSON: what others have chosen cannot look like a field."""
    if isinstance(value, str) and PLAIN.fullmatch(value):
        return value
    return json.dumps(value, default=str)
