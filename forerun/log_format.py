"""Writes a server's log to standard error in its own thread: one line an event, as text or JSON.

Standard error may be a pipe that is not read for a while. Logging never blocks: lines wait in memory, and
lines above a limit are lost and counted.
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

OURS = ("cloud_verifier", "edge_client", "common", "forerun", "schemes")
"""Loggers that `--log-level` controls; the libraries' warnings are always shown."""

TALKATIVE = ("torchao", "torch.utils._pytree")
"""Loggers that warn at every import of torchao of CUDA libraries that this machine does not need."""

PLAIN = re.compile(r"[A-Za-z0-9._:/@+-]+")
"""Pattern of a value that needs no quotes."""

MAX_WAITING = 10_000
"""Most lines in memory, a few megabytes."""


def hush_libraries() -> None:
    """Silence needless warnings of libraries. gRPC's core writes to standard error by itself; only this
    variable controls it, before its import."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)


def timestamp(record: logging.LogRecord) -> str:
    """Format a record's time as ISO 8601 in UTC, to the millisecond."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """Formats a line: time, the level's first letter, the message, then `name=value`, all in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        said = [timestamp(record), record.levelname[:1], record.getMessage()]
        said += [f"{name}={_as_word(value)}" for name, value in getattr(record, "fields", {}).items()]
        lines = [" ".join(said)]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines).encode("ascii", "backslashreplace").decode()


class JsonFormatter(logging.Formatter):
    """Formats an object a line: `time`, `level`, `logger`, `message`, then the values, all in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


FORMATS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}
"""Formatters by their names on the command line."""


class _PendingLines(QueueHandler):
    """Takes a record and returns at once. Formatting is the other thread's work."""

    def __init__(self, waiting: queue.Queue[Any]) -> None:
        super().__init__(waiting)
        self.lines = waiting
        self.num_lost = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Format the message at once, as its arguments may change before it is written."""
        record.msg, record.args = record.getMessage(), None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.lines.put_nowait(record)
        except queue.Full:
            self.num_lost += 1


PATIENCE = 5.0
"""Seconds to wait at the end for the last lines."""


class _LogThread(logging.StreamHandler[TextIO]):
    """Writes waiting lines in its own thread, and reports lost lines."""

    def __init__(self, out: TextIO, waiting: _PendingLines) -> None:
        super().__init__(out)
        self._waiting = waiting
        self._num_told = 0
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return when all is written, or after `PATIENCE` without a reader."""
        with contextlib.suppress(queue.Full):
            self._waiting.lines.put(None, timeout=PATIENCE)
        self._thread.join(PATIENCE)

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if lost := self._waiting.num_lost - self._num_told:
            self._num_told += lost
            words = "log lines were lost: the reader was too slow"
            said = logging.LogRecord(__name__, logging.WARNING, __file__, 0, words, None, None)
            said.fields = {"lines": lost}
            super().emit(said)

    def _write_all(self) -> None:
        while (record := self._waiting.lines.get()) is not None:
            self.handle(record)


@contextlib.contextmanager
def writing(level: str | None, style: str, out: TextIO | None = None) -> Iterator[None]:
    """Write the log to `out` (standard error) within this context, and flush it at the end.

    Args: level, the lowest level of our own loggers (None: info) and, if given, of the libraries (None:
    warning); style, one of `FORMATS`.
    """
    waiting = _PendingLines(queue.Queue(MAX_WAITING))
    writer = _LogThread(out or sys.stderr, waiting)
    writer.setFormatter(FORMATS[style]())
    root, ours = logging.getLogger(), [logging.getLogger(name) for name in OURS]
    handlers, levels = root.handlers[:], [(each, each.level) for each in (root, *ours)]
    root.handlers[:] = [waiting]
    root.setLevel((level or "warning").upper())
    for each in ours:
        each.setLevel((level or "info").upper())
    writer.start()
    try:
        yield
    finally:
        writer.stop()
        root.handlers[:] = handlers
        for each, old in levels:
            each.setLevel(old)


def _as_word(value: object) -> str:
    """Return a plain word unchanged, else JSON, so that no foreign value can look like a field."""
    if isinstance(value, str) and PLAIN.fullmatch(value):
        return value
    return json.dumps(value, default=str)
