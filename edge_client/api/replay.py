"""A response that outlives its connection: for a while it can be read again, from any byte.

The interface is llama-server's. A client that names its stream (`X-Conversation-Id`) may lose the connection
and come back, with the number of bytes read (`GET /v1/stream?conv_id=...&from=N`) or with the number of the
last event (`Last-Event-ID`).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable

from edge_client.api.errors import ApiError

MAX_BYTES = 16 * 2**20
"""Of one stream, kept for whoever comes back: a text of some 50,000 tokens. The oldest bytes go first."""


class Replay:
    """One stream's events. One writer, any number of readers, one event loop."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.done = False
        self.total_bytes = 0
        self.num_events = 0
        self._frames: deque[tuple[int, bytes]] = deque()  # (offset of its first byte, bytes)
        self._events: deque[int] = deque(
            (0,)
        )  # where each event that is kept begins, and where the next will
        self._kept = 0  # bytes
        self._max_bytes = max_bytes
        self._news = asyncio.Event()

    def add(self, frame: bytes) -> None:
        """One more event."""
        self.num_events += 1
        self._append(frame)
        self._events.append(self.total_bytes)
        self._wake()

    def restore(self, frame: bytes) -> None:
        """An event, or the end, of a stream that was written before."""
        if frame.startswith(b"id: "):
            self.add(frame)
        else:
            self.comment(frame)

    def comment(self, frame: bytes) -> None:
        """Bytes that are no event: readers count them all the same."""
        self._append(frame)
        self._events[-1] = self.total_bytes
        self._wake()

    def finish(self) -> None:
        """Nothing more comes."""
        self.done = True
        self._wake()

    def offset_after(self, event: int) -> int:
        """The byte after the first `event` events. Raises `ApiError` if that is not kept any more."""
        place = event - (self.num_events - len(self._events) + 1)
        if not 0 <= place < len(self._events):
            raise _lost(event, "event")
        return self._events[place]

    def check(self, start: int) -> None:
        """Raise `ApiError` unless the bytes from `start` on are here."""
        if not self._has(start):
            raise _lost(start, "byte")

    async def read(self, start: int) -> AsyncIterator[bytes]:
        """All bytes from `start` on, including those to come. `check` it first.

        A reader that falls behind what is kept gets an error as its last event. That event has no number, so
        `Last-Event-ID` stays the number of the last event that was read.
        """
        while True:
            if not self._has(start):
                yield b"data: %s\n\n" % json.dumps(_lost(start, "byte").body).encode()
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

    def _append(self, frame: bytes) -> None:
        self._frames.append((self.total_bytes, frame))
        self.total_bytes += len(frame)
        self._kept += len(frame)
        while self._kept > self._max_bytes and len(self._frames) > 1:
            self._kept -= len(self._frames.popleft()[1])
        while self._events[0] < self._frames[0][0] and len(self._events) > 1:
            self._events.popleft()

    def _from(self, start: int) -> list[bytes]:
        found = list[bytes]()
        for offset, frame in reversed(self._frames):
            if offset + len(frame) <= start:
                break
            found.append(frame[max(0, start - offset) :])
        return found[::-1]

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class Stream:
    """A `Replay` and the task that writes it."""

    def __init__(self, name: str, started_at: float) -> None:
        self.name = name
        self.started_at = started_at  # seconds since 1970
        self.ended_at: float | None = None  # likewise
        self.kept_from: float | None = None  # monotonic seconds of its end
        self.replay = Replay()
        self.task: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """End its text now, if it still runs."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])


class StreamStore:
    """Named streams, kept `keep` seconds after their end.

    `wall` tells the seconds since 1970, for people. `clock` tells monotonic seconds, which do not jump when
    the time is corrected. `forget` is called with the name of each stream that is no longer kept.
    """

    MOST = 256  # at once; the oldest that have ended go first

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
        self._streams: dict[str, Stream] = {}

    def begin(self, name: str, started_at: float | None = None) -> Stream:
        """A new stream of this name; one that has ended makes way. Raises `ApiError` while one runs."""
        self._forget_old()
        old = self._streams.get(name)
        if old is not None and old.ended_at is None:
            raise ApiError(
                409, f"the stream {name!r} is still being written; read it, or delete it first", code="in_use"
            )
        if len(self._streams) >= self.MOST and not self._make_room():
            raise ApiError(429, f"{self.MOST} named streams are kept, which is all that is", retry_after=10)
        self._streams.pop(name, None)
        stream = self._streams[name] = Stream(name, self._wall() if started_at is None else started_at)
        return stream

    def get(self, name: str) -> Stream | None:
        self._forget_old()
        return self._streams.get(name)

    def end(self, stream: Stream) -> None:
        """It was written to its end; from now on its time runs."""
        stream.ended_at, stream.kept_from = self._wall(), self._clock()

    async def remove(self, name: str) -> bool:
        """Stop and forget it; whether there was one."""
        stream = self._streams.pop(name, None)
        if stream is not None:
            await stream.stop()
            self._forget(name)
        return stream is not None

    def drop(self, name: str) -> None:
        """Forget a stream that is not being written."""
        self._streams.pop(name, None)
        self._forget(name)

    def _ended(self) -> list[tuple[float, str]]:
        """When, monotonic, and by what name."""
        found = self._streams.items()
        return [(each.kept_from, name) for name, each in found if each.kept_from is not None]

    def _make_room(self) -> bool:
        """Forget the stream that ended first; whether there was one."""
        if ended := self._ended():
            self.drop(min(ended)[1])
        return bool(ended)

    def _forget_old(self) -> None:
        now = self._clock()
        for at, name in self._ended():
            if now - at > self._keep:
                self.drop(name)


def _lost(place: int, unit: str) -> ApiError:
    return ApiError(
        400, f"{unit} {place} of this stream is not kept (any more); ask for it anew", code="offset_lost"
    )
