"""Files that are replaced while a program runs: certificates, tokens, keys, limits.

Who renews them (cert-manager, the kubelet, a script) swaps a link, moves a new file over the old one, or
writes it in place. What counts is that the file at the end of the path is another one, which `stat` tells,
links followed; nothing is watched and nobody is woken. What cannot be used keeps what there was before: a
typing error in a file must not stop a server that runs.
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
"""Of one file. A bundle of a few hundred CAs is below; what is larger is another kind of file."""

ATTEMPTS = 3
"""To read files that are being swapped just then."""

Mark = tuple[tuple[int, ...], ...]


class LiveFiles(Generic[Value]):
    """What is read from `paths` by `read`, and read anew by `refresh` when one of them is another.

    `what` names it in sentences and in the log. `read` raises `UserError` for what cannot be used; so does
    the constructor, and never `refresh`. Any thread may call them: gRPC asks in its own.
    """

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], Value]) -> None:
        self.what = what
        self.num_reloads = 0  # that brought another value
        self.num_failures = 0  # files that could not be used, and are not
        self._paths, self._read = tuple(paths), read
        self._lock = threading.Lock()
        self._mark, self._value = self._read_whole()

    @property
    def value(self) -> Value:
        """As it was read last."""
        return self._value

    def refresh(self) -> bool:
        """Look whether the files are others, and read them if so. Whether the value is a new one."""
        with self._lock:
            found = _mark(self._paths)
            if found == self._mark:
                return False
            self._mark = found  # a file that cannot be used is told once, not at each look
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
        """Of files that were the same before and after."""
        for _ in range(ATTEMPTS):
            before = _mark(self._paths)
            value = self._read()
            if _mark(self._paths) == before:
                return before, value
        raise UserError(f"{self.what} is being replaced again and again; move whole files to their place")


def read_bytes(path: Path, what: str, limit: int = MAX_BYTES) -> bytes:
    """All of a file. Raises `UserError` if it cannot be read or holds more than `limit` bytes."""
    try:
        with path.open("rb") as file:
            found = file.read(limit + 1)
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {error.strerror or error}") from error
    if len(found) > limit:
        raise UserError(f"{what} {path} is larger than {limit} bytes; it is another kind of file")
    return found


def _mark(paths: Sequence[Path]) -> Mark:
    """By which one sees that a file is another: its place, size and times; links are followed."""
    return tuple(map(_mark_of, paths))


def _mark_of(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError as error:
        return (error.errno or -1,)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
