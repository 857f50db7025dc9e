"""One proxied connection: two sockets, two lanes, one alarm. A dumb pump: `link.lane` decides."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import assert_never

from link.alarm import Alarm, make_alarm
from link.lane import NEVER, Close, Deliver, HalfClose, Lane, Output, Reset
from link.settings import LinkSettings
from link.side import Side
from link.toxics import Stream, Toxic

logger = logging.getLogger(__name__)


@dataclass
class Tally:
    """What one direction of a link carried so far, over all its connections."""

    num_bytes: int = 0  # that senders put in
    num_chunks: int = 0  # reads in which they came
    num_bytes_delivered: int = 0  # that were handed to the receivers' sockets


class Connection:
    """A client's socket and the socket to the server that belongs to it.

    Its two sides drive it, and its alarm. The link gives `client` to its listening socket, and calls
    `on_toxics` and `end` at any time. `closed` is done when both sockets are gone.
    """

    def __init__(
        self,
        number: int,
        settings: LinkSettings,
        get_toxics: Callable[[], Iterable[Toxic]],
        tallies: dict[Stream, Tally],
    ) -> None:
        self.number = number
        self.client = Side(self, Stream.UPSTREAM)
        self._server = Side(self, Stream.DOWNSTREAM)
        self._settings = settings
        self._get_toxics = get_toxics
        self._tallies = tallies
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._connecting: asyncio.Task[None] | None = None
        self._lanes: dict[Stream, Lane] = {}  # empty until both sockets are open
        self._alarm: Alarm | None = None
        self._num_open = 0  # sockets
        self._num_half_closed = 0  # lanes
        self._ending = False

    # Opening

    def on_open(self, side: Side) -> None:
        """A socket opened; the client's opens the one to the server."""
        self._num_open += 1
        if side is self.client:
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        upstream = self._settings.upstream
        try:
            async with asyncio.timeout(self._settings.connect_time):
                await self._loop.create_connection(lambda: self._server, upstream.host, upstream.port)
        except OSError as error:  # TimeoutError is one
            reason = str(error) or f"no answer in {self._settings.connect_time:g} s"
            logger.error(
                "! %d: the server at %s cannot be reached (%s), so the client's connection is closed; "
                "start the server or correct the link's upstream address",
                self.number, upstream, reason,
            )  # fmt: skip
            self.end(reset=False)
        else:
            self._begin()

    def _begin(self) -> None:
        now, toxics = self._loop.time(), tuple(self._get_toxics())
        self._alarm = make_alarm(self._loop, self._pump)
        self._lanes = {
            stream: Lane(self._settings.lane(self.number, stream), toxics, now) for stream in Stream
        }
        logger.debug("= %d: connected to %s", self.number, self._settings.upstream)
        self._pump()

    # What the sides report

    def on_data(self, side: Side, data: bytes) -> None:
        """A peer sent bytes."""
        tally = self._tallies[side.stream]
        tally.num_bytes += len(data)
        tally.num_chunks += 1
        self._lanes[side.stream].on_data(data, self._loop.time())
        self._pump()

    def on_eof(self, side: Side) -> None:
        """A peer is done sending."""
        self._lanes[side.stream].on_eof(self._loop.time())
        self._pump()

    def on_room(self, side: Side) -> None:
        """A send buffer filled or emptied: read less, or again."""
        self._set_reading()

    def on_lost(self, side: Side, error: Exception | None) -> None:
        """A socket is gone. If not by us, the other peer learns of it by a reset through the link."""
        self._num_open -= 1
        if self._lanes and not self._ending:
            logger.debug("! %d: the sender of %s is gone (%s)", self.number, side.stream, error)
            self._lanes[side.stream].on_reset(self._loop.time())
            self._pump()
        elif not self._ending:
            self.end(reset=True)
        if self._num_open == 0:
            self._finish()

    # What the link calls

    def on_toxics(self, toxics: Iterable[Toxic]) -> None:
        """The link's toxics changed."""
        for lane in self._lanes.values():
            lane.on_toxics(toxics, self._loop.time())
        self._pump()

    def end(self, *, reset: bool) -> None:
        """Ends both sockets, by a RST or after sending what was written; what is on the way is lost."""
        self._ending = True
        if self._connecting and self._connecting is not asyncio.current_task():
            self._connecting.cancel()
        if self._alarm:
            self._alarm.close()
        for side in (self.client, self._server):
            if reset:
                side.reset()
            else:
                side.close()

    # Inside

    def _pump(self) -> None:
        """The heartbeat: carry out what leaves, read while there is room, set the alarm for the rest."""
        now = self._loop.time()
        for stream, lane in self._lanes.items():
            for output in [] if self._ending else lane.leave(now):
                self._carry_out(stream, output)
        if self._alarm and not self._ending:
            self._set_reading()
            at = min(NEVER if lane.next_at is None else lane.next_at for lane in self._lanes.values())
            self._alarm.set(None if at == NEVER else at)

    def _carry_out(self, stream: Stream, output: Output) -> None:
        match output:
            case Deliver(data):
                if self._sink(stream).write(data):
                    self._tallies[stream].num_bytes_delivered += len(data)
            case HalfClose():
                self._half_close(stream)
            case Close():
                self.end(reset=False)
            case Reset():
                self.end(reset=True)
            case _:
                assert_never(output)

    def _half_close(self, stream: Stream) -> None:
        self._sink(stream).write_eof()
        self._num_half_closed += 1
        if self._num_half_closed == len(Stream):
            self.end(reset=False)

    def _set_reading(self) -> None:
        for stream, lane in self._lanes.items():
            self._source(stream).set_reading(lane.wants_data and not self._sink(stream).is_full)

    def _source(self, stream: Stream) -> Side:
        return self.client if stream is Stream.UPSTREAM else self._server

    def _sink(self, stream: Stream) -> Side:
        return self._server if stream is Stream.UPSTREAM else self.client

    def _finish(self) -> None:
        if self._alarm:
            self._alarm.close()
        if not self.closed.done():
            logger.debug("x %d: closed", self.number)
            self.closed.set_result(None)
