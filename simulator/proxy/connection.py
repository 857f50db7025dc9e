"""Drives one proxied connection: two sockets, two lanes, one alarm. A dumb pump: `Lane` decides."""

import asyncio
import contextlib
import ctypes
import logging
import math
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import assert_never

from simulator.proxy.lane import (
    MAX_FLYING,
    MAX_QUEUED,
    Deliver,
    HalfClose,
    Lane,
    Output,
    Reset,
)
from simulator.proxy.toxics import LinkDirection, LinkStateError, SettingsError, Toxic

logger = logging.getLogger(__name__)

# What a link is built from.


@dataclass(frozen=True)
class Address:
    """Names a TCP address. Raises `SettingsError` when the port is out of range."""

    host: str
    port: int  # 0 lets the system choose, for listening only

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"address: port is {self.port}; give a number from 0 to 65535")

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse `HOST:PORT`, an IPv6 host in brackets. Raises `SettingsError` for any other form."""
        host, colon, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not colon or not bare or not (port.isascii() and port.isdigit()) or (":" in bare and bare == host):
            raise SettingsError(f"address {text!r}: write HOST:PORT, as 127.0.0.1:8000 or [::1]:8000")
        return cls(bare, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class LinkSettings:
    """Holds settings that are fixed while a link runs. Raises `SettingsError` for a value out of range."""

    upstream: Address  # the server that clients are led to
    listen: Address = Address("127.0.0.1", 0)  # loopback: a link has no access control
    seed: int = 0  # of jitter
    max_queued: int = MAX_QUEUED  # bytes per lane
    max_flying: int = MAX_FLYING  # bytes per lane
    connect_time: float = 10.0  # seconds to reach the server in

    def __post_init__(self) -> None:
        if self.upstream.port == 0:
            raise SettingsError("link: the port of upstream is 0; give the port that the server listens on")
        if not (math.isfinite(self.connect_time) and self.connect_time > 0):
            raise SettingsError(f"link: connect_time is {self.connect_time}; give seconds above 0")
        for field in ("max_queued", "max_flying"):
            if getattr(self, field) < 1:
                raise SettingsError(f"link: {field} is {getattr(self, field)}; give at least 1 byte")


# One timer that an event loop runs, sharper than the loop's own where the system allows.
#
# asyncio on Linux waits in epoll, whose timeouts CPython rounds up to whole milliseconds, so `loop.call_at`
# is late by half a millisecond on average. A timerfd is a file that becomes readable at a set nanosecond.

_CLOCK_MONOTONIC = 1  # <linux/time.h>; the clock of `loop.time()`
_TFD_TIMER_ABSTIME = 1  # <linux/timerfd.h>


class LoopAlarm:
    """Calls `ring` once at a set time, by `loop.call_at`, which every system has. At most one time is set."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float | None) -> None:
        """Ring at `at` (seconds of `loop.time()`) and not at the time set before; `None`: do not ring."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None if at is None else self._loop.call_at(at, self._ring)

    def close(self) -> None:
        """Never ring again, and free what the alarm holds. May be called twice."""
        self.set(None)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class TimerFdAlarm:
    """Rings by a Linux timerfd. Python has `os.timerfd_create` from 3.13 on only, hence ctypes.

    Raises `OSError` when there are no file descriptors left, `AttributeError` where libc has no timerfd.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._loop = loop
        self._ring = ring
        self._at: float | None = None
        self._fd = int(libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        loop.add_reader(self._fd, self._on_readable)

    def set(self, at: float | None) -> None:
        """Set the time as `LoopAlarm.set` does. Raises `LinkStateError` after `close`."""
        if self._fd < 0:
            raise LinkStateError("an alarm was set after it was closed; please report this fault")
        if at == self._at:
            return
        self._at = at
        nanoseconds = 0  # disarms
        if at is not None:
            nanoseconds = max(1, int(at * 1e9) + 1)  # + 1: never early
        value = _Timespec(*divmod(nanoseconds, 1_000_000_000))
        self._settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(_Itimerspec(_Timespec(0, 0), value)), None)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _on_readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew between the loop's poll and this call
            return
        self._at = None
        self._ring()


Alarm = LoopAlarm | TimerFdAlarm


def make_alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Alarm:
    """Return the sharpest alarm that this system has."""
    if sys.platform == "linux" and ctypes.sizeof(ctypes.c_long) == 8:  # the structures above assume 64 bits
        with contextlib.suppress(OSError, AttributeError, NotImplementedError):
            return TimerFdAlarm(loop, ring)
    return LoopAlarm(loop, ring)


# One socket of a proxied connection, as an asyncio protocol that reports to its connection.

# A socket that lingers for 0 seconds is closed with a RST (POSIX); Windows packs two shorts.
_LINGER_0 = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)


class SocketSide(asyncio.Protocol):
    """Wraps one socket. Writes to a lost socket do nothing: its owner's `on_lost` reports the loss once."""

    def __init__(self, owner: "ProxiedConnection", stream: LinkDirection) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self.stream = stream  # the direction of what this socket's peer sends
        self.is_full = False  # its peer reads slower than we write

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the open socket. Reading starts when the owner asks for it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.pause_reading()
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._owner.on_open(self)

    def data_received(self, data: bytes) -> None:
        self._owner.on_data(self, data)

    def eof_received(self) -> bool:
        """Note that the peer is done sending; `True` keeps the socket open for the other direction."""
        self._owner.on_eof(self)
        return True

    def pause_writing(self) -> None:
        self.is_full = True
        self._owner.on_room(self)

    def resume_writing(self) -> None:
        self.is_full = False
        self._owner.on_room(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.on_lost(self, error)

    # What the owner calls

    def write(self, data: bytes) -> None:
        if transport := self._open_transport():
            transport.write(data)

    def write_eof(self) -> None:
        """Signal to the peer that no more data follows."""
        if transport := self._open_transport():
            with contextlib.suppress(OSError):  # the peer has gone already, and asyncio has not noticed yet
                transport.write_eof()

    def set_reading(self, wanted: bool) -> None:
        """Resume reading, or leave data in the kernel, so that the sender slows down."""
        if transport := self._open_transport():
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def close(self) -> None:
        """Close once all written data is sent."""
        if transport := self._open_transport():
            transport.close()

    def reset(self) -> None:
        """Close at once with a RST; data written and not sent is lost."""
        if transport := self._open_transport():
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
        if self._transport:
            self._transport.abort()

    def _open_transport(self) -> asyncio.Transport | None:
        transport = self._transport
        return None if transport is None or transport.is_closing() else transport


@dataclass
class ByteTally:
    """Counts what one direction of a link carried so far, over all its connections."""

    num_bytes: int = 0  # that senders put in
    num_chunks: int = 0  # reads in which they came


class ProxiedConnection:
    """Joins a client's socket and its socket to the server.

    Its two sides and its alarm drive it. The link gives `client` to its listening socket, and calls
    `on_toxics` and `end` at any time. `closed` is done when both sockets are gone.
    """

    def __init__(
        self,
        number: int,
        settings: LinkSettings,
        get_toxics: Callable[[], Iterable[Toxic]],
        tallies: dict[LinkDirection, ByteTally],
    ) -> None:
        self.number = number
        self.client = SocketSide(self, LinkDirection.UPSTREAM)
        self._server = SocketSide(self, LinkDirection.DOWNSTREAM)
        self._settings = settings
        self._get_toxics = get_toxics
        self._tallies = tallies
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._connecting: asyncio.Task[None] | None = None
        self._lanes: dict[LinkDirection, Lane] = {}  # empty until both sockets are open
        self._alarm: Alarm | None = None
        self._num_open = 0  # sockets
        self._num_half_closed = 0  # lanes
        self._ending = False

    # Opening

    def on_open(self, side: SocketSide) -> None:
        """Note an open socket; the client's opens the socket to the server."""
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
        now, toxics, settings = self._loop.time(), tuple(self._get_toxics()), self._settings
        self._alarm = make_alarm(self._loop, self._pump)
        for stream in LinkDirection:
            self._lanes[stream] = Lane(
                toxics, now, settings.seed, self.number, stream, settings.max_queued, settings.max_flying
            )
        logger.debug("= %d: connected to %s", self.number, self._settings.upstream)
        self._pump()

    # What the sides report

    def on_data(self, side: SocketSide, data: bytes) -> None:
        tally = self._tallies[side.stream]
        tally.num_bytes += len(data)
        tally.num_chunks += 1
        self._lanes[side.stream].on_data(data, self._loop.time())
        self._pump()

    def on_eof(self, side: SocketSide) -> None:
        self._lanes[side.stream].on_eof(self._loop.time())
        self._pump()

    def on_room(self, side: SocketSide) -> None:
        """React to a send buffer that filled or emptied: read less, or again."""
        self._set_reading()

    def on_lost(self, side: SocketSide, error: Exception | None) -> None:
        """React to a lost socket. Unless we closed it, the other peer gets a reset through the link."""
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
        for lane in self._lanes.values():
            lane.on_toxics(toxics, self._loop.time())
        self._pump()

    def end(self, *, reset: bool) -> None:
        """End both sockets, by a RST or after sending written data; data on the way is lost."""
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
            times = [at for lane in self._lanes.values() if (at := lane.next_at) is not None]
            self._alarm.set(min(times, default=None))

    def _carry_out(self, stream: LinkDirection, output: Output) -> None:
        match output:
            case Deliver(data):
                self._sink(stream).write(data)
            case HalfClose():
                self._half_close(stream)
            case Reset():
                self.end(reset=True)
            case _:
                assert_never(output)

    def _half_close(self, stream: LinkDirection) -> None:
        self._sink(stream).write_eof()
        self._num_half_closed += 1
        if self._num_half_closed == len(LinkDirection):
            self.end(reset=False)

    def _set_reading(self) -> None:
        for stream, lane in self._lanes.items():
            self._source(stream).set_reading(lane.wants_data and not self._sink(stream).is_full)

    def _source(self, stream: LinkDirection) -> SocketSide:
        return self.client if stream is LinkDirection.UPSTREAM else self._server

    def _sink(self, stream: LinkDirection) -> SocketSide:
        return self._server if stream is LinkDirection.UPSTREAM else self.client

    def _finish(self) -> None:
        if self._alarm:
            self._alarm.close()
        if not self.closed.done():
            logger.debug("x %d: closed", self.number)
            self.closed.set_result(None)
