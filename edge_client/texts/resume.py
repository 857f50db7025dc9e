"""Resumes texts. Everything that decides where a text goes on, and that no token comes twice, is here.

    what broke                     the text goes on from               by
    a session with the verifier    the tokens written so far           `WrittenText.num_agreed`
    a reader's connection          the reader's last byte or event     `ReplayStream.read`, `offset_after`
    the daemon                     the last line of the stream's file  `Journal.recorded`, `Begun`

A session's next stream begins at its own committed tokens (`edge_client.core.session`). After a restart the
text is formed again from its first token (`Begun`), and what the earlier run sent is not sent again.

The streams' interface is llama-server's. A client that names its stream (`X-Conversation-Id`) may lose the
connection and resume: it sends the number of bytes read (`GET /v1/stream?conv_id=...&from=N`) or of the last
event (`Last-Event-ID`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from common.errors import UserError
from common.messages import TokenLogprobs
from edge_client.formats.api_error import ApiError
from edge_client.formats.detokenizer import TokenOrigin
from edge_client.formats.dialect import Dialect, Json

logger = logging.getLogger(__name__)

SUFFIX = ".jsonl"
MAX_FILE_BYTES = 64 * 2**20
"""Bytes of one stream's file at most: four times its bytes in memory."""

MAX_BYTES = 16 * 2**20
"""Bytes kept of one stream: a text of some 50,000 tokens. The oldest are dropped first."""


# Tokens -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begun:
    """Holds a part of a text: what an earlier run of the daemon wrote, or what came with an event."""

    tokens: tuple[int, ...] = ()
    origins: tuple[TokenOrigin, ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()  # of each token; empty: of none


NOTHING = Begun()


class WrittenText:
    """Holds a text's tokens, over all its sessions."""

    def __init__(self) -> None:
        self.tokens = list[int]()
        self._origins = list[TokenOrigin]()
        self._logprobs = list[TokenLogprobs | None]()

    def add(self, token: int, origin: TokenOrigin, logprobs: TokenLogprobs | None) -> None:
        self.tokens.append(token)
        self._origins.append(origin)
        self._logprobs.append(logprobs)

    def num_agreed(self, place: int, tokens: Sequence[int]) -> int:
        """Return how many of a session's tokens from `place` on are in the text already."""
        written = self.tokens[place : place + len(tokens)]
        return next((at for at, token in enumerate(written) if tokens[at] != token), len(written))

    def since(self, count: int) -> Begun:
        """Return the part after the first `count` tokens."""
        return Begun(tuple(self.tokens[count:]), tuple(self._origins[count:]), tuple(self._logprobs[count:]))


@dataclass(frozen=True, slots=True)
class StreamPart:
    """Holds chunks of a response that belong together, and the tokens that came with them.

    The tokens are of one choice; their text may still be held back.
    """

    chunks: Sequence[Json]
    new: Begun = NOTHING
    choice: int = 0
    ends: bool = False  # the choice ends
    is_last: bool = False  # nothing follows, because the response is whole or has failed
    failed: bool = False


NO_PART = StreamPart(())


# Streams in memory ------------------------------------------------------------------------------------------


class ReplayStream:
    """Holds one stream's events, and its file on disk if any, for one writer and any number of readers.

    `kind` is its endpoint, which decides how events are separated.
    """

    def __init__(
        self,
        name: str = "",
        max_bytes: int = MAX_BYTES,
        kind: type[Dialect] = Dialect,
    ) -> None:
        self.name = name
        self.kind = kind
        self.kept_from: float | None = None  # monotonic seconds of the end
        self.entry: JournalEntry | None = None
        self.task: asyncio.Task[None] | None = None  # the writer
        self.done = False
        self.total_bytes = 0
        self.num_events = 0
        self._frames = deque[tuple[int, int, bytes]]()  # offset, number of the event or 0, bytes
        self._kept = 0  # bytes
        self._max_bytes = max_bytes
        self._news = asyncio.Event()

    @property
    def is_kept(self) -> bool:
        """Tell whether the stream is on disk and continues after a restart of the daemon."""
        return self.entry is not None and not self.entry.failure

    def add(self, part: StreamPart, dialect: Dialect) -> None:
        """Add the events of a part. Also write them to disk first, with its tokens."""
        frames = [dialect.framed(self.num_events + at, chunk) for at, chunk in enumerate(part.chunks, 1)]
        if part.is_last and not part.failed and dialect.last:
            frames.append(dialect.last)
        if self.entry is not None:  # on disk before any reader gets it
            self.entry.add(frames, part)
        for at, frame in enumerate(frames):
            self._append(frame, is_event=at < len(part.chunks))

    def comment(self, comment: bytes) -> None:
        """Add bytes of a comment. Readers count them, too, also over a restart."""
        if self.entry is not None:
            self.entry.add([comment])
        self._append(comment, is_event=False)

    def restore(self, frame: bytes) -> None:
        """Add an event, a comment or the end of a stream from the disk."""
        self._append(frame, is_event=frame.startswith((b"id: ", b"{")))

    def finish(self) -> None:
        self.done = True
        self._wake()

    def offset_after(self, event: int) -> int:
        """Return the offset after the first `event` events. Raises `ApiError` if it is not kept."""
        if event == self.num_events:
            return self.total_bytes
        for offset, number, _ in self._frames:
            if number == event + 1:
                return offset
        raise _lost(event, "event")

    def check(self, start: int) -> None:
        """Raise `ApiError` unless the bytes from `start` on are kept."""
        if not self._has(start):
            raise _lost(start, "byte")

    async def read(self, start: int, *, ends_text: bool = False) -> AsyncIterator[bytes]:
        """Yield all present and future bytes from `start` on. Call `check` first.

        A reader that falls behind the kept bytes gets an error as its last event. That event has no number,
        so `Last-Event-ID` stays the number of the last event before it. With `ends_text` the text ends with
        this reader.
        """
        try:
            while self._has(start):
                for chunk in self._from(start):
                    start += len(chunk)
                    yield chunk
                if self.done and start == self.total_bytes:
                    return
                if start == self.total_bytes:
                    await self._news.wait()
            yield self.kind.broken(_lost(start, "byte"))
        finally:
            if ends_text and self.task is not None:
                self.task.cancel()

    def _has(self, start: int) -> bool:
        first = self._frames[0][0] if self._frames else 0
        return first <= start <= self.total_bytes

    def _append(self, data: bytes, is_event: bool) -> None:
        self.num_events += is_event
        self._frames.append((self.total_bytes, self.num_events if is_event else 0, data))
        self.total_bytes += len(data)
        self._kept += len(data)
        while self._kept > self._max_bytes and len(self._frames) > 1:
            self._kept -= len(self._frames.popleft()[2])
        self._wake()

    def _from(self, start: int) -> list[bytes]:
        chunks = list[bytes]()
        for offset, _, data in reversed(self._frames):
            if offset + len(data) <= start:
                break
            chunks.append(data[max(0, start - offset) :])
        return chunks[::-1]

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def _lost(place: int, unit: str) -> ApiError:
    words = f"{unit} {place} of this stream is not kept; request the text anew"
    return ApiError(400, words, code="offset_lost")


class StreamStore:
    """Keeps named streams until `keep` seconds after their end.

    `clock` returns monotonic seconds, which do not jump. `forget` is called with the name of each dropped
    stream.
    """

    MOST = 256  # limit; the oldest ended streams are dropped first

    def __init__(
        self,
        keep: float,
        clock: Callable[[], float],
        forget: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._keep = keep
        self._clock = clock
        self._forget = forget
        self._streams: dict[str, ReplayStream] = {}

    def begin(self, name: str, kind: type[Dialect] = Dialect) -> ReplayStream:
        """Begin a stream. Replace an ended one of its name; raise `ApiError` while one runs."""
        old = self.get(name)
        if old is not None and old.kept_from is None:
            words = f"the stream {name!r} is still being written; read it, or delete it first"
            raise ApiError(409, words, code="in_use")
        if len(self._streams) >= self.MOST:
            ended = self._ended()
            if not ended:
                words = f"{self.MOST} named streams, the limit, are under way; try later"
                raise ApiError(429, words, retry_after=10)
            self.drop(min(ended)[1])
        self._streams.pop(name, None)
        stream = self._streams[name] = ReplayStream(name, kind=kind)
        return stream

    def get(self, name: str) -> ReplayStream | None:
        """Return the stream of this name if it is still kept."""
        now = self._clock()
        for ended_at, ended in self._ended():
            if now - ended_at > self._keep:
                self.drop(ended)
        return self._streams.get(name)

    def end(self, stream: ReplayStream) -> None:
        """Note that the stream has ended. It is kept for `keep` seconds from now."""
        stream.kept_from = self._clock()

    async def remove(self, name: str) -> None:
        """End and forget a stream, if it exists."""
        stream = self._streams.pop(name, None)
        if stream is None:
            return
        if stream.task is not None and not stream.task.done():
            stream.task.cancel()
            await asyncio.wait([stream.task])
        self._forget(name)

    def drop(self, name: str) -> None:
        """Forget a stream without a writer."""
        self._streams.pop(name, None)
        self._forget(name)

    def _ended(self) -> list[tuple[float, str]]:
        """Return the monotonic end times and the names of ended streams."""
        streams = self._streams.items()
        return [(stream.kept_from, name) for name, stream in streams if stream.kept_from is not None]


# Streams on disk --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordedStream:
    """Describes a stream at the end of the daemon's last run."""

    name: str
    head: Json  # the request
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

    def add(self, frames: Sequence[bytes], part: StreamPart = NO_PART) -> None:
        """Write events before they are sent, and the tokens of the part that they form.

        They are one line: after a crash either all of it is on disk or none.
        """
        line: Json = {"f": [frame.decode("utf-8") for frame in frames]}
        if part.new.tokens:
            line |= {"t": list(part.new.tokens), "o": [origin.value for origin in part.new.origins]}
        if any(part.new.logprobs):  # text that is held back has them when it is sent after a restart
            line["p"] = [each and [each.logprob, each.top] for each in part.new.logprobs]
        if part.choice:
            line["c"] = part.choice
        if part.ends:
            line["e"] = True
        if part.is_last:
            line["done"] = True
        self.write(line)
        if part.is_last:
            self.abandon()

    def abandon(self) -> None:
        """Close the file. The stream goes on with the daemon's next start."""
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:  # some file systems report a full disk only here
            self._give_up(error.strerror or str(error))

    def write(self, line: Json) -> None:
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
    """Keeps named streams in a folder, so that they outlive the daemon: the request, and every event before
    it is sent. Raises `UserError` if the folder cannot be used.

    Each stream has a file of its own, which only its owner may read: it holds the prompt and the text. A line
    is handed to the kernel before the client sees its event. So what a client has read survives the daemon's
    death, but not the machine's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise UserError(f"the journal {folder} cannot be written; check its rights, or set api.resume")

    def begin(self, name: str, head: Json) -> JournalEntry:
        """Begin a stream, replacing one of its name. On a full disk the entry has a `failure`."""
        entry = JournalEntry(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        entry.write({"name": name, "head": head})
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
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError("it is too large")
    data = path.read_bytes()
    whole, _, torn = data.rpartition(b"\n")
    if torn:
        os.truncate(path, len(whole) + 1)
    head, *lines = (json.loads(line) for line in whole.split(b"\n"))
    num_choices = 1 + max(map(_choice, lines), default=0)
    return RecordedStream(
        name=head["name"],
        head=head["head"],
        frames=tuple(frame.encode() for line in lines for frame in line.get("f", ())),
        begun=tuple(
            _begun([line for line in lines if _choice(line) == choice]) for choice in range(num_choices)
        ),
        ended=frozenset(_choice(line) for line in lines if line.get("e")),
        done=any(line.get("done") for line in lines),
    )


def _choice(line: Json) -> int:
    return int(line.get("c", 0))


def _begun(lines: Sequence[Json]) -> Begun:
    """Return the text of one choice's lines."""
    logprobs = [each for line in lines for each in line.get("p", [None] * len(line.get("t", ())))]
    return Begun(
        tuple(token for line in lines for token in line.get("t", ())),
        tuple(TokenOrigin(origin) for line in lines for origin in line.get("o", ())),
        tuple(each and _logprobs(*each) for each in logprobs) if any(logprobs) else (),
    )


def _logprobs(logprob: float, top: Sequence[tuple[int, float]]) -> TokenLogprobs:
    return TokenLogprobs(logprob, tuple((token, of_token) for token, of_token in top))
