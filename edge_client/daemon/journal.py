"""Named streams on disk, so that they outlive the daemon: the request, and every event before it is sent.

Each stream has a file of its own, which only its owner may read: it holds the prompt and the text. The file
is removed when the stream is forgotten. A line is handed to the kernel before the client sees its event. So
what a client has read survives the daemon's death, but not the machine's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from common.errors import UserError
from edge_client.daemon.request import Begun
from edge_client.text import Origin

logger = logging.getLogger(__name__)

SUFFIX = ".jsonl"
MAX_BYTES = 64 * 2**20
"""Of one file: four times what is kept of a stream in memory."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A stream as it was when the daemon ended."""

    name: str
    started_at: float  # seconds since 1970
    head: dict[str, Any]  # what was asked
    frames: tuple[bytes, ...]  # events, each as it was sent
    begun: Begun  # the text in them
    done: bool  # it had come to its end


class Entry:
    """One stream's file, open for writing.

    A write that fails, or that takes only part of a line, removes the file. Otherwise a restart would send
    the text behind the gap a second time. `failure` then says why, and later writes do nothing.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.failure = ""  # why the stream is not on disk any more; empty while it is
        self._path = path
        self._file: FileIO | None = None
        try:
            self._file = FileIO(os.open(path, flags, 0o600), "w")
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def add(self, frame: bytes, tokens: Sequence[int] = (), origins: Sequence[Origin] = ()) -> None:
        """Write an event that is about to be sent, and the tokens that it brings."""
        line: dict[str, Any] = {"f": frame.decode("utf-8")}
        if tokens:
            line |= {"t": list(tokens), "o": [origin.value for origin in origins]}
        self.write(line)

    def finish(self) -> None:
        """The stream has come to its end."""
        self.write({"done": True})
        self.abandon()

    def abandon(self) -> None:
        """The daemon ends; the stream goes on with its next start."""
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:  # some file systems tell of a full disk only here
            self._give_up(error.strerror or str(error))

    def write(self, line: dict[str, Any]) -> None:
        """Hand one line to the kernel, whole."""
        if self._file is None:
            return
        data = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        try:
            if self._file.write(data) != len(data):
                self._give_up("only a part of an event could be written")
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def _give_up(self, why: str) -> None:
        """Empty the file and remove it. If it cannot be removed, the next start drops the empty file."""
        self.failure = why
        file, self._file = self._file, None
        logger.warning("! a stream cannot be kept on disk: %s", why)
        try:
            if file is not None:
                file.truncate(0)
        except OSError as error:
            logger.warning("! its file cannot be emptied: %s", error.strerror or error)
        try:
            if file is not None:
                file.close()
            self._path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("! its file cannot be removed: %s", error.strerror or error)


class Journal:
    """The folder of these files. Raises `UserError` if it cannot be used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise UserError(f"the journal {folder} cannot be written; check its rights, or set api.resume")

    def begin(self, name: str, started_at: float, head: dict[str, Any]) -> Entry:
        """A new stream; an older one of this name is gone. Without room on disk the entry has a `failure`."""
        entry = Entry(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        entry.write({"name": name, "at": started_at, "head": head})
        return entry

    def resume(self, name: str) -> Entry:
        """Go on with the file of a stream that `recorded` has told of."""
        return Entry(self._path(name), os.O_WRONLY | os.O_APPEND)

    def remove(self, name: str) -> None:
        """Forget a stream."""
        self._path(name).unlink(missing_ok=True)

    def recorded(self) -> Iterator[Recorded]:
        """All streams there are. What cannot be read is left out and removed, with a warning."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            try:
                yield _read(path)
            except (OSError, ValueError, KeyError, TypeError) as error:
                logger.warning("! a stream on disk cannot be read and is dropped: %s", type(error).__name__)
                path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        """Names are the client's, and no file names."""
        return self._folder / (hashlib.blake2b(name.encode(), digest_size=16).hexdigest() + SUFFIX)


@dataclass(slots=True)
class _Reading:
    frames: list[bytes] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    done: bool = False

    def take(self, line: dict[str, Any]) -> None:
        self.done = self.done or bool(line.get("done"))
        if "f" in line:
            self.frames.append(line["f"].encode())
        self.tokens += line.get("t", [])
        self.origins += [Origin(each) for each in line.get("o", [])]


def _read(path: Path) -> Recorded:
    """A last line that was cut off is no line: its event was never sent."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError("it is too large")
    data = path.read_bytes()
    whole, _, torn = data.rpartition(b"\n")
    if torn:
        os.truncate(path, len(whole) + 1)
    head, *lines = (json.loads(line) for line in whole.split(b"\n"))
    reading = _Reading()
    for line in lines:
        reading.take(line)
    return Recorded(
        name=head["name"],
        started_at=float(head["at"]),
        head=head["head"],
        frames=tuple(reading.frames),
        begun=Begun(tuple(reading.tokens), tuple(reading.origins)),
        done=reading.done,
    )
