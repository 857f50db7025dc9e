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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.messages import TokenLogprobs
from edge_client.texts.detokenizer import TokenOrigin
from edge_client.texts.text_request import NOTHING, Begun

logger = logging.getLogger(__name__)

SUFFIX = ".jsonl"
MAX_BYTES = 64 * 2**20
"""Bytes of one file at most: four times a stream's bytes in memory."""


@dataclass(frozen=True, slots=True)
class RecordedStream:
    """Describes a stream at the end of the daemon's last run."""

    name: str
    started_at: float  # seconds since 1970
    head: dict[str, Any]  # the request
    frames: tuple[bytes, ...]  # events, each as it was sent
    begun: tuple[Begun, ...]  # the texts in them, by choice; at least one
    ended: frozenset[int]  # choices that have ended
    done: bool  # whether the text is whole


class JournalEntry:
    """Writes one stream's file.

    A write that fails, or that takes only part of a line, removes the file. Otherwise a restart would send
    the text behind the gap a second time. `failure` then says why, and later writes do nothing.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.failure = ""  # why the stream is no longer on disk; empty while it is
        self._path = path
        self._file: FileIO | None = None
        try:
            self._file = FileIO(os.open(path, flags, 0o600), "w")
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def add(
        self,
        frames: Sequence[bytes],
        new: Begun = NOTHING,
        choice: int = 0,
        *,
        ends: bool = False,
        done: bool = False,
    ) -> None:
        """Write events before they are sent, and the tokens that came with them, of this choice.

        They form one record: after a crash either all of them are on disk or none. `ends` ends the choice,
        `done` the stream.
        """
        line: dict[str, Any] = {"f": [frame.decode("utf-8") for frame in frames]}
        if new.tokens:
            line |= {"t": list(new.tokens), "o": [origin.value for origin in new.origins]}
        if any(new.logprobs):  # text that is held back has them when it is sent after a restart
            line["p"] = [each and [each.logprob, each.top] for each in new.logprobs]
        if choice:
            line["c"] = choice
        if ends:
            line["e"] = True
        if done:
            line["done"] = True
        self.write(line)
        if done:
            self.abandon()

    def abandon(self) -> None:
        """Close the file. The stream goes on with the daemon's next start."""
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:  # some file systems report a full disk only here
            self._give_up(error.strerror or str(error))

    def write(self, line: dict[str, Any]) -> None:
        """Hand one line to the kernel, whole."""
        if self._file is None:
            return
        data = json.dumps(line, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"  # as JSON is read
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
        steps: list[Callable[[], object]] = [lambda: self._path.unlink(missing_ok=True)]
        if file is not None:
            steps = [lambda: file.truncate(0), file.close, *steps]
        for step in steps:
            try:
                step()
            except OSError as error:
                logger.warning("! its file cannot be emptied and removed: %s", error.strerror or error)


class Journal:
    """Manages the streams' folder. Raises `UserError` if it cannot be used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise UserError(f"the journal {folder} cannot be written; check its rights, or set api.resume")

    def begin(self, name: str, started_at: float, head: dict[str, Any]) -> JournalEntry:
        """Begin a stream, replacing one of its name. On a full disk the entry has a `failure`."""
        entry = JournalEntry(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        entry.write({"name": name, "at": started_at, "head": head})
        return entry

    def resume(self, name: str) -> JournalEntry:
        """Go on with the file of a stream of `recorded`."""
        return JournalEntry(self._path(name), os.O_WRONLY | os.O_APPEND)

    def remove(self, name: str) -> None:
        """Forget a stream."""
        self._path(name).unlink(missing_ok=True)

    def recorded(self) -> Iterator[RecordedStream]:
        """Yield all streams. An unreadable file is removed with a warning."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            try:
                yield _read(path)
            except (OSError, ValueError, KeyError, TypeError) as error:
                logger.warning("! a stream on disk cannot be read and is dropped: %s", type(error).__name__)
                path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        """Return a path without the client's name, which may be no file name."""
        return self._folder / (hashlib.blake2b(name.encode(), digest_size=16).hexdigest() + SUFFIX)


def _read(path: Path) -> RecordedStream:
    """Read a stream. A cut-off last line is ignored: its event was never sent."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError("it is too large")
    data = path.read_bytes()
    whole, _, torn = data.rpartition(b"\n")
    if torn:
        os.truncate(path, len(whole) + 1)
    head, *lines = (json.loads(line) for line in whole.split(b"\n"))
    return RecordedStream(
        name=head["name"],
        started_at=float(head["at"]),
        head=head["head"],
        frames=tuple(frame.encode() for line in lines for frame in line.get("f", ())),
        begun=tuple(
            _begun(lines, choice) for choice in range(1 + max((_choice(each) for each in lines), default=0))
        ),
        ended=frozenset(_choice(line) for line in lines if line.get("e")),
        done=any(line.get("done") for line in lines),
    )


def _choice(line: dict[str, Any]) -> int:
    return int(line.get("c", 0))


def _begun(lines: Sequence[dict[str, Any]], choice: int) -> Begun:
    own = [line for line in lines if _choice(line) == choice]
    logprobs = [each for line in own for each in line.get("p", [None] * len(line.get("t", ())))]
    return Begun(
        tuple(token for line in own for token in line.get("t", ())),
        tuple(TokenOrigin(each) for line in own for each in line.get("o", ())),
        tuple(each and _logprobs(*each) for each in logprobs) if any(logprobs) else (),
    )


def _logprobs(logprob: float, top: Sequence[tuple[int, float]]) -> TokenLogprobs:
    return TokenLogprobs(logprob, tuple((token, each) for token, each in top))
