"""Streams texts: a task writes each text's events, and connections read them (`edge_client.texts.resume`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from common.errors import ForerunError, UserError
from edge_client.api.pairs import Pairs
from edge_client.api.response import ResponseSpec, ResponseWriter
from edge_client.formats.api_error import ApiError, api_error, log_refusal, stopping, too_long
from edge_client.formats.dialect import Dialect, Json
from edge_client.formats.dialects import BY_NAME
from edge_client.texts.queue import QueuePlace
from edge_client.texts.resume import Journal, RecordedStream, ReplayStream, StreamPart, StreamStore

logger = logging.getLogger(__name__)

KEEP_ALIVE_TIME = 10.0
"""Seconds without an event before a comment is sent. Proxies drop silent connections."""


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
        self.store = StreamStore(keep, time.monotonic, self._forget)
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
        return stream.read(0, ends_text=True)

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
                stream.entry = self._journal.begin(name, spec.to_json())
            self._start(stream, spec, places)
            undo.pop_all()
        return stream.read(0)

    def go_on(self) -> int:
        """Resume the last run's streams from the journal. Return how many texts continue."""
        count = 0
        for recorded in self._journal.recorded() if self._journal is not None else ():
            try:
                count += self._take_up(recorded)
            except (ValueError, KeyError, TypeError, UserError, ApiError) as error:
                logger.warning("! a stream on disk cannot be resumed: %s", type(error).__name__)
                self.store.drop(recorded.name)
        if count:
            logger.info("> %d streams of the last run are resumed", count)
        return count

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
        stream = self.store.begin(recorded.name, kind)
        for frame in recorded.frames:
            stream.restore(frame)
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
        """Write all events of a text. The last one is an error if it fails or takes too long."""
        texts = self._texts[spec.pair]
        dialect = spec.dialect(texts.words)
        beat = asyncio.create_task(_keep_alive(stream, dialect.comment))
        writer = ResponseWriter(texts, spec, dialect, partial(self._send, stream, spec, dialect))
        try:
            async with asyncio.timeout(self._limit):
                await writer.write(places, resumed=stream.num_events > 0)
        except asyncio.CancelledError:
            if stream.entry is not None:
                stream.entry.abandon()
            if self._stopping and not stream.is_kept:
                _fail(stream, dialect, stopping())
            raise
        except TimeoutError:
            _fail(stream, dialect, too_long(self._limit))
        except Exception as error:  # outermost frame of a stream: its readers must learn that it ended
            if not isinstance(error, ForerunError | ApiError):
                logger.exception("! a text failed")
            refusal = api_error(error)
            log_refusal("POST", dialect.path, refusal)
            _fail(stream, dialect, refusal)
        finally:
            beat.cancel()
            if not (self._stopping and stream.is_kept):  # else only cut its readers' connections
                stream.finish()
            self.store.end(stream)

    def _send(self, stream: ReplayStream, spec: ResponseSpec, dialect: Dialect, part: StreamPart) -> None:
        """Add a part. If the stream can no longer be kept on disk, tell its readers once."""
        if part.is_last and part.chunks:
            self._ended(spec, part.chunks[-1])
        entry = stream.entry
        stream.add(part, dialect)
        if entry is not None and entry.failure and not part.is_last:
            stream.entry = None
            why = f"({entry.failure}), so it ends with the daemon"
            note = {"notes": [f"this stream is no longer kept on disk {why}"]}
            stream.add(StreamPart(dialect.added((), note, 0)), dialect)

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


def _fail(stream: ReplayStream, dialect: Dialect, error: ApiError) -> None:
    stream.add(StreamPart(dialect.failed(error), is_last=True, failed=True), dialect)


def _release(place: QueuePlace, _: object) -> None:
    place.release()
