"""What a connection between a device and the verifier is like; `simulator.lane` carries messages over it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from common.errors import UserError
from simulator.mahimahi import Schedule
from simulator.traces import Trace


@dataclass(frozen=True, slots=True)
class Outage:
    """Nothing passes from `start` on, for `duration`; seconds of the world."""

    start: float
    duration: float

    def __post_init__(self) -> None:
        if not (self.start >= 0 and self.duration > 0 and math.isfinite(self.start + self.duration)):
            raise UserError(
                f"outage from {self.start} s for {self.duration} s: give a start of 0 or more and a duration "
                "above 0"
            )

    def covers(self, when: float) -> bool:
        return self.start <= when < self.start + self.duration


@dataclass(frozen=True, slots=True)
class Handovers:
    """The path moves to another satellite or cell every so often. Times in seconds.

    For `duration` nothing passes, then the round trip is another one: after each handover it differs from the
    link's by an amount drawn uniformly from -`rtt_step` to `rtt_step` (it is never below 0). A session has
    moments and amounts of its own, the same in both directions.
    """

    every: float
    duration: float = 0.0
    rtt_step: float = 0.0

    def __post_init__(self) -> None:
        for name in ("every", "duration", "rtt_step"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"handovers {name} is {value}; it must be finite and 0 or more")
        if not self.duration < self.every:
            raise UserError(
                f"handovers last {self.duration} s and come every {self.every} s; they must be shorter"
            )


def _share(swing: float) -> float:
    """Of normal draws that are lower."""
    return 0.5 * math.erfc(-swing * math.sqrt(0.5))


JITTER_LAWS: Final[dict[str, Callable[[float], float]]] = {
    "normal": lambda swing: swing,
    "uniform": lambda swing: math.sqrt(3.0) * (2.0 * _share(swing) - 1.0),
    "exponential": lambda swing: -math.log(max(_share(-swing), 1e-12)),  # of queues: later, never earlier
}
"""From a standard normal draw to a deviation in standard deviations."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A path between device and verifier, the same both ways unless said otherwise. Times in seconds.

    `jitter` is the standard deviation of the one-way delay, drawn anew as time passes from the law named
    `jitter_law`: the normal draws behind two deviations `t` seconds apart have the correlation
    exp(-t / jitter_memory).
    """

    rtt: float = 0.060
    jitter: float = 0.0
    jitter_memory: float = 0.0  # seconds; 0 = each message by itself
    jitter_law: str = "normal"
    loss: float = 0.0  # chance that a packet is lost
    bandwidth_up: float = 0.0  # bytes per second; 0 = unlimited
    bandwidth_down: float = 0.0
    outages: tuple[Outage, ...] = ()
    trace: Trace | None = None  # measured round trips, losses and widths in place of `rtt` and the rest
    handovers: Handovers | None = None
    schedule_up: Schedule | None = None  # delivery opportunities in place of `bandwidth_up`
    schedule_down: Schedule | None = None

    def __post_init__(self) -> None:
        for name in ("rtt", "jitter", "jitter_memory", "bandwidth_up", "bandwidth_down"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"link {name} is {value}; it must be finite and 0 or more")
        if self.jitter_law not in JITTER_LAWS:
            raise UserError(f"link jitter_law is {self.jitter_law!r}; it can be {', '.join(JITTER_LAWS)}")
        if not 0 <= self.loss < 1:
            raise UserError(f"link loss is {self.loss}; a chance below 1 is needed, or nothing ever arrives")
        self._check_schedules()

    def _check_schedules(self) -> None:
        """One bottleneck per direction."""
        has_widths = self.bandwidth_up > 0, self.bandwidth_down > 0 or self.traced_widths is not None
        for way, has_width in zip(("up", "down"), has_widths, strict=True):
            if has_width and getattr(self, f"schedule_{way}") is not None:
                raise UserError(
                    f"the link has both a bandwidth and a mahimahi trace on its way {way}; give one of them"
                )

    @property
    def traced_widths(self) -> Trace | None:
        """The trace, if it tells how wide the way down is."""
        return self.trace if self.trace is not None and self.trace.bandwidths else None

    @property
    def has_bottleneck(self) -> bool:
        """Whether messages wait for each other: there who sends few large ones gains."""
        schedules = (self.schedule_up, self.schedule_down)
        return bool(
            self.bandwidth_up
            or self.bandwidth_down
            or self.traced_widths is not None
            or any(schedule is not None for schedule in schedules)
        )

    def rtt_at(self, when: float) -> float:
        """Seconds, jitter and handovers apart."""
        return self.rtt if self.trace is None else self.trace.rtts[self.trace.row(when)]

    def is_lossy_at(self, when: float) -> bool:
        """Whether a measured probe was lost then."""
        trace = self.trace
        return trace is not None and bool(trace.losses) and trace.losses[trace.row(when)]
