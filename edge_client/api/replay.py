"""Streams texts: tasks write them, and connections read them and may reconnect.

The interface is llama-server's. A client that names its stream (`X-Conversation-Id`) may lose the connection
and resume. It sends the number of bytes read (`GET /v1/stream?conv_id=...&from=N`) or of the last event
(`Last-Event-ID`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial

from common.errors import UserError
from edge_client.api.pairs import Pairs
from edge_client.api.response import ResponsePart, ResponseSpec, parts
from edge_client.formats.api_error import ApiError, api_error, stopping, too_long
from edge_client.formats.dialect import Dialect, Json
from edge_client.formats.dialects import BY_NAME
from edge_client.texts.journal import Journal, JournalEntry, RecordedStream
from edge_client.texts.queue import QueuePlace

logger = logging.getLogger(__name__)

KEEP_ALIVE_TIME = 10.0
"""Seconds without an event before a comment is sent. Proxies drop silent connections."""

MAX_BYTES = 16 * 2**20
"""Bytes kept of one stream: a text of some 50,000 tokens. The oldest are dropped first."""


class ReplayStream:
    """Holds one stream's events, and its file on disk if any, for one writer and any number of readers.

    `kind` is its endpoint, which decides how events are separated.
    """

    def __init__(
        self,
        name: str = "",
        started_at: float = 0.0,
        max_bytes: int = MAX_BYTES,
        kind: type[Dialect] = Dialect,
    ) -> None:
        self.name = name
        self.kind = kind
        self.started_at = started_at  # seconds since 1970
        self.ended_at: float | None = None  # likewise
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

    def add(self, part: ResponsePart, dialect: Dialect) -> None:
        """Add the events of a part. Also write them to disk first, with its tokens."""
        frames = [dialect.framed(self.num_events + at, chunk) for at, chunk in enumerate(part.chunks, 1)]
        if part.is_last and not part.failed and dialect.last:
            frames.append(dialect.last)
        if self.entry is not None:  # on disk before any reader gets it
            self.entry.add(frames, part.new, part.choice, ends=part.ends, done=part.is_last)
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
        """End the stream."""
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

    async def read(self, start: int) -> AsyncIterator[bytes]:
        """Yield all present and future bytes from `start` on. Call `check` first.

        A reader that falls behind the kept bytes gets an error as its last event. That event has no number,
        so `Last-Event-ID` stays the number of the last event before it.
        """
        while True:
            if not self._has(start):
                yield self.kind.broken(_lost(start, "byte"))
                return
            for chunk in self._from(start):
                start += len(chunk)
                yield chunk
            if self.done and start == self.total_bytes:
                return
            if start == self.total_bytes:
                await self._news.wait()

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
        found = list[bytes]()
        for offset, _, data in reversed(self._frames):
            if offset + len(data) <= start:
                break
            found.append(data[max(0, start - offset) :])
        return found[::-1]

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class StreamStore:
    """Keeps named streams until `keep` seconds after their end.

    `wall` returns the seconds since 1970, for display. `clock` returns monotonic seconds, which do not jump.
    `forget` is called with the name of each dropped stream.
    """

    MOST = 256  # limit; the oldest ended streams are dropped first

    def __init__(
        self,
        keep: float,
        wall: Callable[[], float],
        clock: Callable[[], float],
        forget: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._keep = keep
        self._wall, self._clock = wall, clock
        self._forget = forget
        self._streams: dict[str, ReplayStream] = {}

    def begin(
        self, name: str, started_at: float | None = None, kind: type[Dialect] = Dialect
    ) -> ReplayStream:
        """Begin a stream. Replace an ended one of its name; raise `ApiError` while one runs."""
        old = self.get(name)
        if old is not None and old.kept_from is None:
            raise ApiError(
                409, f"the stream {name!r} is still being written; read it, or delete it first", code="in_use"
            )
        if len(self._streams) >= self.MOST:
            ended = self._ended()
            if not ended:
                raise ApiError(
                    429, f"{self.MOST} named streams, the limit, are under way; try later", retry_after=10
                )
            self.drop(min(ended)[1])
        self._streams.pop(name, None)
        began = self._wall() if started_at is None else started_at
        stream = self._streams[name] = ReplayStream(name, began, kind=kind)
        return stream

    def get(self, name: str) -> ReplayStream | None:
        """Return the stream of this name if it is still kept."""
        now = self._clock()
        for at, each in self._ended():
            if now - at > self._keep:
                self.drop(each)
        return self._streams.get(name)

    def end(self, stream: ReplayStream) -> None:
        """Note that the stream has ended. It is kept for `keep` seconds from now."""
        stream.ended_at, stream.kept_from = self._wall(), self._clock()

    async def remove(self, name: str) -> bool:
        """End and forget a stream. Return whether it existed."""
        stream = self._streams.pop(name, None)
        if stream is None:
            return False
        if stream.task is not None and not stream.task.done():
            stream.task.cancel()
            await asyncio.wait([stream.task])
        self._forget(name)
        return True

    def drop(self, name: str) -> None:
        """Forget a stream without a writer."""
        self._streams.pop(name, None)
        self._forget(name)

    def _ended(self) -> list[tuple[float, str]]:
        """Return the monotonic end times and the names of ended streams."""
        found = self._streams.items()
        return [(each.kept_from, name) for name, each in found if each.kept_from is not None]


class TextStreams:
    """Writes texts as event streams.

    A named stream continues without a reader and is kept `keep` seconds after its end. With a journal it
    survives the daemon. A text takes at most `limit` seconds. `ended` is called with the last event of a
    whole response, before any reader gets it.
    """

    def __init__(
        self,
        pairs: Pairs,
        keep: float,
        limit: float,
        journal: Journal | None,
        ended: Callable[[ResponseSpec, Json], None] = lambda spec, last: None,
    ) -> None:
        self.store = StreamStore(keep, time.time, time.monotonic, self._forget)
        self._texts = pairs.texts
        self._admission = pairs.admission
        self._ended = ended
        self._limit = limit
        self._journal = journal
        self._tasks = set[asyncio.Task[None]]()
        self._stopping = False

    def unnamed(self, spec: ResponseSpec) -> AsyncIterator[bytes]:
        """Write a text for its only reader's lifetime. Raises `CapacityError` if the queue is full."""
        stream = ReplayStream(kind=spec.kind)
        self._start(stream, spec, self._admission.places(spec.client, len(spec.requests)))
        return _until_gone(stream)

    def named(self, name: str, spec: ResponseSpec) -> AsyncIterator[bytes]:
        """Write a text that continues without readers. Raises `ApiError` while a stream of this name is
        written, `CapacityError` if the queue is full."""
        with contextlib.ExitStack() as undo:
            places = self._admission.places(spec.client, len(spec.requests))
            for place in places:
                undo.callback(place.release)
            stream = self.store.begin(name, kind=spec.kind)
            undo.callback(self.store.drop, name)
            if self._journal is not None:
                stream.entry = self._journal.begin(name, stream.started_at, spec.to_json())
            self._start(stream, spec, places)
            undo.pop_all()
        return stream.read(0)

    def go_on(self) -> int:
        """Resume the last run's streams from the journal. Return how many texts continue."""
        found = 0
        for recorded in self._journal.recorded() if self._journal is not None else ():
            try:
                found += self._take_up(recorded)
            except (ValueError, KeyError, TypeError, UserError, ApiError) as error:
                logger.warning("! a stream on disk cannot be resumed: %s", type(error).__name__)
                self.store.drop(recorded.name)
        if found:
            logger.info("> %d streams of the last run are resumed", found)
        return found

    def stop(self) -> None:
        """End every text now with an error as its last event. A stream on disk gets no such event, because it
        continues with the daemon's next start."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """End running texts. Streams in the journal continue with the daemon's next start."""
        journal, self._journal = self._journal, None  # keeps the journal's files
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._journal = journal

    def _take_up(self, recorded: RecordedStream) -> bool:
        assert self._journal is not None, "the journal holds the record"
        kind = BY_NAME[recorded.head["shape"]]
        stream = self.store.begin(recorded.name, recorded.started_at, kind)
        for each in recorded.frames:
            stream.restore(each)
        if recorded.done:
            stream.finish()
            self.store.end(stream)
            return False
        spec = ResponseSpec.from_json(recorded.head, recorded.begun, recorded.ended)
        if spec.pair not in self._texts:
            logger.warning("! a stream on disk is dropped: there is no pair %r any more", spec.pair)
            self.store.drop(recorded.name)
            return False
        stream.entry = self._journal.resume(recorded.name)
        self._start(stream, spec, ())
        return True

    async def _write(self, stream: ReplayStream, spec: ResponseSpec, places: Sequence[QueuePlace]) -> None:
        """Write all events of a text."""
        entry, dialect = stream.entry, spec.dialect(self._texts[spec.pair].words)
        beat, is_told = asyncio.create_task(_keep_alive(stream, dialect.comment)), False
        resumed = stream.num_events > 0
        try:
            async with contextlib.aclosing(self._in_time(spec, dialect, places, resumed)) as found:
                async for part in found:
                    if part.is_last and not part.failed and part.chunks:
                        self._ended(spec, part.chunks[-1])
                    stream.add(part, dialect)
                    if entry is not None and entry.failure and not (is_told or part.is_last):
                        is_told = True
                        why = f"({entry.failure}), so it ends with the daemon"
                        ours = {"notes": [f"this stream is no longer kept on disk {why}"]}
                        stream.add(ResponsePart(dialect.added((), ours, 0)), dialect)
        except asyncio.CancelledError:
            if entry is not None:
                entry.abandon()
            if self._stopping and not stream.is_kept:
                stream.add(ResponsePart(dialect.failed(stopping()), is_last=True, failed=True), dialect)
            raise
        except Exception as error:  # outermost frame of a stream: its readers must learn that it ended
            logger.exception("! a stream failed")
            failed = dialect.failed(api_error(error))
            stream.add(ResponsePart(failed, is_last=True, failed=True), dialect)
        finally:
            beat.cancel()
            if not (self._stopping and stream.is_kept):  # else only cut its readers' connections
                stream.finish()
            self.store.end(stream)

    async def _in_time(
        self, spec: ResponseSpec, dialect: Dialect, places: Sequence[QueuePlace], resumed: bool
    ) -> AsyncGenerator[ResponsePart]:
        """Yield the text's parts. After a timeout the last one is an error."""
        try:
            async with (
                asyncio.timeout(self._limit),
                contextlib.aclosing(parts(self._texts[spec.pair], spec, dialect, places, resumed)) as found,
            ):
                async for part in found:
                    yield part
        except TimeoutError:
            yield ResponsePart(dialect.failed(too_long(self._limit)), is_last=True, failed=True)

    def _forget(self, name: str) -> None:
        if self._journal is not None:
            self._journal.remove(name)

    def _start(self, stream: ReplayStream, spec: ResponseSpec, places: Sequence[QueuePlace]) -> None:
        stream.task = task = asyncio.get_running_loop().create_task(self._write(stream, spec, places))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        for place in places:  # a task cancelled before its first step runs no `finally`
            task.add_done_callback(partial(_release, place))


async def _keep_alive(stream: ReplayStream, comment: bytes) -> None:
    """Write a comment after each silence, until cancelled."""
    before = -1
    while True:
        if stream.total_bytes == before and comment:
            stream.comment(comment)
        before = stream.total_bytes
        await asyncio.sleep(KEEP_ALIVE_TIME)


async def _until_gone(stream: ReplayStream) -> AsyncIterator[bytes]:
    """Yield a stream and end it with its only reader."""
    try:
        async for chunk in stream.read(0):
            yield chunk
    finally:
        assert stream.task is not None, "started with it"
        stream.task.cancel()


def _lost(place: int, unit: str) -> ApiError:
    return ApiError(
        400, f"{unit} {place} of this stream is not kept; request the text anew", code="offset_lost"
    )


def _release(place: QueuePlace, _: object) -> None:
    place.release()
