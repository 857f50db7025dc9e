"""Records one session as a timeline: drafts, messages, evaluations and committed text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from cloud_verifier.core.engine_protocol import StepPlan
from common.messages import Close, Commit, Finish, Hint, Open, Opened, Propose
from simulator.events import EventHeap
from simulator.system import PolicyMaker, SimulatedDevice, SimulatedVerifier, ToEdge
from simulator.world import World


class Track(StrEnum):
    """Names a track of a timeline, from the device to the text."""

    DRAFT = "draft step"
    UPLINK = "uplink"
    STEP = "target step"
    DOWNLINK = "downlink"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """Lasts from `start` to `end`, seconds since the session began; equal for a moment."""

    track: Track
    start: float
    end: float
    what: str


class WatchedDevice(SimulatedDevice):
    """Records its session's actions. A link keeps the order, so the first message sent arrives first."""

    def __init__(
        self,
        events: EventHeap,
        verifier: WatchedVerifier,
        world: World,
        make: PolicyMaker,
        spans: list[TimelineSpan],
    ) -> None:
        super().__init__(events, verifier, world, 0, make)
        self.going_up: deque[float] = deque()  # when each message on its way was sent
        self._going_down: deque[float] = deque()
        self._spans = spans

    def to_edge(self, message: ToEdge) -> None:
        self._going_down.append(self._events.now)
        super().to_edge(message)

    def _send(self, message: Open | Propose | Close) -> None:
        self.going_up.append(self._events.now)
        super()._send(message)

    def _draft_step(self, num_read: int) -> tuple[float, int]:
        took, num_read = super()._draft_step(num_read)
        now, num_rows = self._events.now, self._drafter.num_rows
        self._spans.append(TimelineSpan(Track.DRAFT, now, now + took, _count(num_rows, "node")))
        return took, num_read

    def _receive(self, message: ToEdge) -> None:
        now = self._events.now
        self._spans.append(TimelineSpan(Track.DOWNLINK, self._going_down.popleft(), now, _words(message)))
        if isinstance(message, Commit):
            made = message.server_made.bit_count()
            what = f"{len(message.tokens) - made} drafted, {made} of the server's own"
            self._spans.append(TimelineSpan(Track.TEXT, now, now, what))
        super()._receive(message)


class WatchedVerifier(SimulatedVerifier):
    """Records the messages that reach it, and its steps."""

    def __init__(self, events: EventHeap, world: World, spans: list[TimelineSpan]) -> None:
        super().__init__(events, world)
        self._spans = spans

    def receive(self, device: SimulatedDevice, message: Open | Propose | Close) -> None:
        if isinstance(device, WatchedDevice):
            span = TimelineSpan(Track.UPLINK, device.going_up.popleft(), self._events.now, _words(message))
            self._spans.append(span)
        super().receive(device, message)

    def _step(self, plan: StepPlan) -> None:
        now = self._events.now
        context = sum(len(item.prefix_slots) for item in plan.items)
        end = now + self.world.verifier.time(plan.num_rows, context, now)
        self._spans.append(TimelineSpan(Track.STEP, now, end, _count(plan.num_rows, "row")))
        super()._step(plan)


def timeline(world: World, make: PolicyMaker) -> list[TimelineSpan]:
    """Return everything that happened to one session in a world of its own, in order of beginning."""
    world = replace(world, clients=1, arrivals=None)
    events, spans = EventHeap(), list[TimelineSpan]()
    verifier = WatchedVerifier(events, world, spans)
    device = WatchedDevice(events, verifier, world, make, spans)
    verifier.admit(device)
    events.at(0.0, device.start)
    events.run()
    device.result()  # raises if the session did not end well
    order = list(Track)
    return sorted(spans, key=lambda span: (span.start, order.index(span.track), span.end))


def as_lines(spans: Sequence[TimelineSpan]) -> list[str]:
    """Format a line per span, with a column per track."""
    width = 26
    head = "     ms  " + "".join(f"{track:<{width}}" for track in Track)
    lines = [head.rstrip()]
    for span in spans:
        place = list(Track).index(span.track)
        took = f" ({(span.end - span.start) * 1e3:.1f} ms)" if span.end > span.start else ""
        lines.append(f"{span.start * 1e3:7.1f}  {' ' * (width * place)}{span.what}{took}")
    return lines


def as_trace_events(spans: Sequence[TimelineSpan]) -> dict[str, Any]:
    """Return a document in the Trace Event Format of Chrome, to load at https://ui.perfetto.dev."""
    tracks = list(Track)
    names = [
        {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": str(track)}}
        for number, track in enumerate(tracks)
    ]
    events = [
        {
            "ph": "X",
            "pid": 1,
            "tid": tracks.index(span.track),
            "ts": round(span.start * 1e6, 3),
            "dur": round((span.end - span.start) * 1e6, 3),
            "name": span.what,
        }
        for span in spans
    ]
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}


def _words(message: Open | Propose | Close | ToEdge) -> str:
    match message:
        case Propose():
            return _count(len(message.tokens), "node")
        case Commit():
            return _count(len(message.tokens), "token")
        case Hint():
            return f"hint of {len(message.tokens)}"
        case Open():
            return f"Open, prompt of {len(message.prompt)}"
        case Opened() | Finish() | Close():
            return type(message).__name__
        case _:
            return "Drain"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
