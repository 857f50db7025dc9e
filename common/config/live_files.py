"""Reread files that are replaced while a program runs: certificates, tokens, keys, limits.

A renewer (cert-manager, the kubelet, a script) swaps a link, moves a new file over the old one, or writes it
in place. `stat` on the path, links followed, shows that the file has changed; nothing is watched. If the new
file cannot be used, the previous value stays: a typing error must not stop a running server.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from common.errors import UserError

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

MAX_BYTES = 1 << 20
"""Most bytes of one file. A bundle of a few hundred CAs is smaller; a larger file is of another kind."""

ATTEMPTS = 3
"""Attempts to read files that are being swapped."""

Mark = tuple[tuple[int, ...], ...]


class LiveFiles(Generic[Value]):
    """The value is read from `paths` by `read`, and `refresh` reads it anew when a file was replaced.

    `what` names the value in messages and in the log. `read` raises `UserError` for unusable files, and so
    does the constructor, but never `refresh`. Thread-safe, since gRPC calls `refresh` in its own threads.
    """

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], Value]) -> None:
        self.what = what
        self.num_reloads = 0  # reloads that brought a new value
        self.num_failures = 0  # newer files that could not be used
        self._paths, self._read = tuple(paths), read
        self._lock = threading.Lock()
        self._mark, self._value = self._read_whole()

    @property
    def value(self) -> Value:
        """Return the value as it was read last."""
        return self._value

    def refresh(self) -> bool:
        """Read files that were replaced since the last look, and tell whether the value is a new one."""
        with self._lock:
            mark = _mark(self._paths)
            if mark == self._mark:
                return False
            self._mark = mark  # an unusable file is reported once, not at each look
            try:
                self._mark, self._value = self._read_whole()
            except UserError as error:
                self.num_failures += 1
                logger.warning("! %s is not read anew, the one before stays: %s", self.what, error)
                return False
            self.num_reloads += 1
        logger.info("%s was read anew", self.what)
        return True

    def _read_whole(self) -> tuple[Mark, Value]:
        for _ in range(ATTEMPTS):
            before = _mark(self._paths)
            value = self._read()
            if _mark(self._paths) == before:
                return before, value
        raise UserError(f"{self.what} is being replaced again and again; move whole files to their place")


def read_bytes(path: Path, what: str, limit: int = MAX_BYTES) -> bytes:
    """Read a file. Raises `UserError` if it cannot be read or holds more than `limit` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise UserError(f"{what} {path} is larger than {limit} bytes; it is another kind of file")
    return data


def _mark(paths: Sequence[Path]) -> Mark:
    """Return the properties that show a changed file: its inode, size and times; links are followed."""
    return tuple(map(_mark_of, paths))


def _mark_of(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError as error:
        return (error.errno or -1,)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
