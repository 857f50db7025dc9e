"""Streamed texts: written by tasks of their own, read by connections that may come and go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any

from common.errors import UserError
from edge_client.api import asked_again
from edge_client.api.errors import ApiError, stopping, too_long
from edge_client.api.replay import Replay, Stream, StreamStore
from edge_client.api.telling import DONE, Part, Telling, frame, keep_alive, left_to_say, not_kept, parts
from edge_client.daemon.admission import Place
from edge_client.daemon.device import Device
from edge_client.daemon.journal import Entry, Journal, Recorded
from edge_client.daemon.request import Begun

logger = logging.getLogger(__name__)


class TextStreams:
    """Writes texts as event streams.

    A named stream goes on without a reader and is kept `keep` seconds after its end. With a journal it
    outlives the daemon. No text takes longer than `limit` seconds. `wall` tells the seconds since 1970,
    `clock` monotonic ones.
    """

    def __init__(
        self,
        device: Device,
        keep: float,
        limit: float,
        journal: Journal | None,
        wall: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = StreamStore(keep, wall, clock, self._forget)
        self._device = device
        self._limit = limit
        self._journal = journal
        self._tasks = set[asyncio.Task[None]]()
        self._stopping = False

    def unnamed(self, telling: Telling) -> AsyncIterator[bytes]:
        """A text for one reader, which ends with it. Raises `CapacityError` if the queue is full."""
        place = self._device.admission.place(telling.client)
        replay = Replay()
        return _until_gone(replay, self._start(self._write(replay, telling, None, place), place))

    def named(self, name: str, telling: Telling) -> AsyncIterator[bytes]:
        """A text that goes on without its readers. Raises `ApiError` while a stream of this name is written,
        `CapacityError` if the queue is full."""
        with contextlib.ExitStack() as undo:
            place = self._device.admission.place(telling.client)
            undo.callback(place.release)
            stream = self.store.begin(name)
            undo.callback(self.store.drop, name)
            entry = None
            if self._journal is not None:
                entry = self._journal.begin(name, stream.started_at, asked_again.as_json(telling))
            stream.task = self._start(self._write_named(stream, telling, entry, place), place)
            undo.pop_all()
        return stream.replay.read(0)

    def go_on(self) -> int:
        """Take up the streams of the daemon's last run from the journal. Returns how many texts go on."""
        found = 0
        for recorded in self._journal.recorded() if self._journal is not None else ():
            try:
                found += self._take_up(recorded)
            except (ValueError, KeyError, TypeError, UserError, ApiError) as error:
                logger.warning("! a stream on disk cannot be gone on with: %s", type(error).__name__)
                self.store.drop(recorded.name)
        if found:
            logger.info("> %d streams of the last run go on", found)
        return found

    def stop(self) -> None:
        """End every text now, with an error as its last event. A stream that is kept on disk gets no such
        event: it goes on with the daemon's next start."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """End what still runs; what the journal holds goes on with the daemon's next start."""
        journal, self._journal = self._journal, None  # nothing is forgotten now
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._journal = journal

    def _take_up(self, recorded: Recorded) -> bool:
        assert self._journal is not None, "it holds the record"
        stream = self.store.begin(recorded.name, recorded.started_at)
        for each in recorded.frames:
            stream.replay.restore(each)
        if recorded.done:
            stream.replay.finish()
            self.store.end(stream)
            return False
        telling = asked_again.from_json(recorded.head, self._device.words, recorded.begun)
        entry = self._journal.resume(recorded.name)
        left = left_to_say(telling, recorded.frames)
        if left is not None:
            self._say_end(stream, entry, left)
            return False
        stream.task = self._start(self._write_named(stream, telling, entry))
        return True

    def _say_end(self, stream: Stream, entry: Entry, left: list[bytes]) -> None:
        """The daemon was killed when the text was there and its end was not."""
        for each in left:
            entry.add(each)
            stream.replay.restore(each)
        entry.finish()
        stream.replay.finish()
        self.store.end(stream)

    async def _write_named(
        self, stream: Stream, telling: Telling, entry: Entry | None, place: Place | None = None
    ) -> None:
        try:
            await self._write(stream.replay, telling, entry, place)
        finally:
            self.store.end(stream)

    async def _write(
        self, replay: Replay, telling: Telling, entry: Entry | None, place: Place | None
    ) -> None:
        """Write a text's events to their end."""
        beat = asyncio.create_task(
            keep_alive(lambda comment: _comment(replay, entry, comment), lambda: replay.total_bytes)
        )
        resumed, is_told = replay.num_events > 0, False
        try:
            async with contextlib.aclosing(self._in_time(telling, place, resumed)) as found:
                async for chunk, new in found:
                    _add(replay, entry, frame(replay.num_events + 1, chunk), new)
                    if "error" in chunk:
                        break
                    if entry is not None and entry.failure and not is_told:
                        is_told = True
                        replay.add(frame(replay.num_events + 1, not_kept(telling, entry.failure)))
                else:
                    _add(replay, entry, DONE, Begun())
            if entry is not None:
                entry.finish()
        except asyncio.CancelledError:
            if entry is not None:
                entry.abandon()
            if self._stopping and not _is_kept(entry):
                replay.add(frame(replay.num_events + 1, stopping().body))
            raise
        finally:
            beat.cancel()
            if not (self._stopping and _is_kept(entry)):  # else its readers' connections are cut
                replay.finish()

    async def _in_time(self, telling: Telling, place: Place | None, resumed: bool) -> AsyncGenerator[Part]:
        """The text's parts, the last of which may be that it took too long."""
        try:
            async with (
                asyncio.timeout(self._limit),
                contextlib.aclosing(parts(self._device, telling, place, resumed)) as found,
            ):
                async for part in found:
                    yield part
        except TimeoutError:
            yield too_long(self._limit).body, Begun()

    def _forget(self, name: str) -> None:
        if self._journal is not None:
            self._journal.remove(name)

    def _start(self, work: Coroutine[Any, Any, None], place: Place | None = None) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if place is not None:  # a task that is cancelled before its first step has no `finally`
            task.add_done_callback(lambda _: place.release())
        return task


def _is_kept(entry: Entry | None) -> bool:
    """Whether the stream is on disk, so that it goes on with the daemon's next start."""
    return entry is not None and not entry.failure


def _add(replay: Replay, entry: Entry | None, event: bytes, new: Begun) -> None:
    """On disk before anybody reads it."""
    if entry is not None:
        entry.add(event, new.tokens, new.origins)
    replay.add(event)


def _comment(replay: Replay, entry: Entry | None, comment: bytes) -> None:
    """On disk, too: readers count its bytes, and come back with their number after a restart."""
    if entry is not None:
        entry.add(comment)
    replay.comment(comment)


async def _until_gone(replay: Replay, task: asyncio.Task[None]) -> AsyncIterator[bytes]:
    """A stream that ends with its only reader."""
    try:
        async for chunk in replay.read(0):
            yield chunk
    finally:
        task.cancel()
