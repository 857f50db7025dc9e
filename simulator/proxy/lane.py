"""Decides when each chunk leaves: one direction of one connection as a pure machine.

A chunk waits in the queue for the wire, crosses it (serialisation, the bandwidth toxic), then flies
(propagation, the latency toxics) and leaves. Many fly at once, and they leave in the order they came in.
The machine reads no clock and no socket: `now` is in seconds of any monotonic clock, always the same one.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from simulator.proxy.toxics import Bandwidth, Hold, Latency, LinkDirection, Toxic


@dataclass(frozen=True)
class Deliver:
    """Write these bytes to the receiver."""

    data: bytes


@dataclass(frozen=True)
class HalfClose:
    """End the stream to the receiver: the sender is done. Keep the other direction open."""


@dataclass(frozen=True)
class Reset:
    """Reset both sockets of the connection. Nothing comes after it."""


Output = Deliver | HalfClose | Reset


MAX_QUEUED = 64 * 1024
"""Bytes that wait for the wire: a small router's buffer."""

MAX_FLYING = 16 * 1024 * 1024
"""Bytes on the way: 1 Gbit/s for 128 ms."""


@dataclass(frozen=True)
class _Timed:
    at: float  # when it arrived or when it leaves
    output: Output


class Lane:
    """Models one direction of one connection.

    Driven by `on_data`, `on_eof`, `on_reset` (the sender's actions), `on_toxics` (the link changed) and
    `leave` (time went by). After each of them the driver calls `leave`, carries out its results in order,
    calls it again at `next_at`, and reads from the sender only while `wants_data`.
    """

    def __init__(
        self,
        toxics: Iterable[Toxic],
        now: float,
        seed: int = 0,
        connection: int = 0,
        stream: LinkDirection = LinkDirection.DOWNSTREAM,
        max_queued: int = MAX_QUEUED,
        max_flying: int = MAX_FLYING,
    ) -> None:
        """Seed jitter from the seed, the connection's number on its link, and the stream."""
        self._seed, self._connection, self._stream = seed, connection, stream
        self._max_queued, self._max_flying = max_queued, max_flying
        self._waiting: deque[_Timed] = deque()
        self._flying: deque[_Timed] = deque()
        self._num_waiting = 0  # bytes
        self._num_flying = 0  # bytes
        self._wire_free_at = now
        self._last_leaves_at = now
        self._source_ended = False
        self._ended = False
        self._jitters: dict[str, Random] = {}  # by toxic, kept when it changes
        self._compile(toxics)

    # What the sender did

    def on_data(self, data: bytes, now: float) -> None:
        """Take bytes from the sender. Ignored once the connection was closed. Next: `leave`."""
        if self._ended or not data:
            return
        self._waiting.append(_Timed(now, Deliver(data)))
        self._num_waiting += len(data)

    def on_eof(self, now: float) -> None:
        """Note the end of the sender's data. The end follows the data. Next: `leave`."""
        self._end_source(HalfClose(), now)

    def on_reset(self, now: float) -> None:
        """Note the sender's reset or lost socket. The reset follows the data, as a packet. Next: `leave`."""
        self._end_source(Reset(), now)

    def _end_source(self, output: Output, now: float) -> None:
        self._source_ended = True
        if not self._ended:
            self._waiting.append(_Timed(now, output))

    # What the link's owner did

    def on_toxics(self, toxics: Iterable[Toxic], now: float) -> None:
        """Apply these toxics from now on; data that crossed the wire keeps its time. Next: `leave`."""
        self._advance(now)
        self._compile(toxics)

    def _compile(self, toxics: Iterable[Toxic]) -> None:
        own = [toxic for toxic in toxics if toxic.stream is self._stream]
        self._latencies = [toxic for toxic in own if isinstance(toxic, Latency)]
        self._wire = min((t for t in own if isinstance(t, Bandwidth)), key=lambda t: t.rate, default=None)
        self._held = any(isinstance(toxic, Hold) for toxic in own)

    # What the driver asks

    @property
    def next_at(self) -> float | None:
        """Return when `leave` is due, in seconds; `None` while only an input can change anything."""
        if self._ended:
            return None
        times = [max(self._wire_free_at, self._waiting[0].at)] if self._waiting else []
        times += [self._flying[0].at] if self._flying and not self._held else []
        return min(times, default=None)

    @property
    def wants_data(self) -> bool:
        """Return whether the driver may read more from the sender; this bounds the memory of a lane."""
        has_room = self._num_waiting < self._max_queued and self._num_flying < self._max_flying
        return has_room and not self._source_ended and not self._ended

    def leave(self, now: float) -> list[Output]:
        """Return what leaves by `now`, in order. A late call delays data and never changes it."""
        self._advance(now)
        outputs: list[Output] = []
        while self._flying and not self._held and self._flying[0].at <= now:
            output = self._flying.popleft().output
            outputs.append(output)
            if isinstance(output, Deliver):
                self._num_flying -= len(output.data)
            elif isinstance(output, Reset):
                self._end()
        return outputs

    # Inside

    def _advance(self, now: float) -> None:
        """Puts on the wire what can start crossing it by `now`; when this is called changes no time."""
        while self._waiting:
            starts_at = max(self._wire_free_at, self._waiting[0].at)
            if starts_at > now:
                return
            self._launch(self._take_piece(), starts_at)

    def _take_piece(self) -> Output:
        """Return the head of the queue, or as much of it as crosses the wire as one."""
        head = self._waiting.popleft()
        if not isinstance(head.output, Deliver):
            return head.output
        data = head.output.data
        size = len(data) if self._wire is None else self._wire.piece_size
        if size < len(data):
            self._waiting.appendleft(_Timed(head.at, Deliver(data[size:])))
        self._num_waiting -= min(size, len(data))
        return Deliver(data[:size])

    def _launch(self, output: Output, starts_at: float) -> None:
        size = len(output.data) if isinstance(output, Deliver) else 0
        self._wire_free_at = starts_at + (self._wire.serialise_time(size) if self._wire else 0.0)
        leaves_at = self._wire_free_at + sum(self._delay_time(toxic) for toxic in self._latencies)
        self._last_leaves_at = max(self._last_leaves_at, leaves_at)  # TCP keeps order: a late one holds up
        self._flying.append(_Timed(self._last_leaves_at, output))
        self._num_flying += size

    def _delay_time(self, toxic: Latency) -> float:
        if toxic.name not in self._jitters:
            seed = f"{self._seed}/{self._connection}/{self._stream}/{toxic.name}"
            self._jitters[toxic.name] = Random(seed)
        deviation = self._jitters[toxic.name].uniform(-1.0, 1.0) if toxic.jitter else 0.0
        return toxic.delay_time(deviation)

    def _end(self) -> None:
        self._ended = True
        self._waiting.clear()
        self._flying.clear()
        self._num_waiting = self._num_flying = 0
