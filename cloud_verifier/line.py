"""One stream's wire at the verifier: which privacy holds on it, and what leaves when (rule 21)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from cloud_verifier.core.effects import End
from cloud_verifier.outbox import Outbox, Outgoing
from common.errors import Code, PeerError, UserError
from common.messages import Open, Opened
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy, stricter
from common.rpc.bounds import MAX_JOINED_REQUEST_BYTES
from common.rpc.codec import encode_response
from common.rpc.frames import DOWN_BYTES, STRICT_DOWN, STRICT_UP, UP_BYTES, Joiner, Sender, down_size

LEAST_INTERVAL, MOST_INTERVAL, GRAIN = 0.010, 0.250, 0.005
"""Seconds, of a cadence that follows the verifier's turns: more frames than a hundred a second cost a mobile
link more than they bring, and text that comes four times a second still flows. Multiples of the grain, so
that a cadence tells little of the load."""

END_FRAMES = 32
"""A strict stream ends after a multiple of so many frames, so that the length of a text shows no more than
that exactly."""

MESSAGE_RATE, MESSAGE_BURST = 500.0, 1500
"""Messages of one stream a second, and at once after a pause. An edge sends one for a draft step or a commit,
so a hundred a second are many."""

TENANT_RATE = 1000.0
"""Messages a second that all flooding streams of one tenant share (`Pace`)."""

SPARE_FILLERS = 64
"""Beyond twice what the cadence asks for: timers drift, and links bunch."""


@dataclass(frozen=True, slots=True)
class PrivacySettings:
    """What a verifier insists on. Raises `UserError` for an interval that cannot be."""

    level: Privacy = Privacy.PADDED
    interval: float = 0.0  # seconds from frame to frame where it is strict; 0: as long as a turn takes

    def __post_init__(self) -> None:
        if not (self.interval == 0 or LEAST_INTERVAL / 10 <= self.interval <= 10.0):
            raise UserError(
                f"the cadence is {self.interval * 1e3:g} ms; it must lie in [1, 10000], or be 0 for the "
                "time of a turn"
            )

    def agreed(self, asked: Privacy | None) -> Privacy:
        """The level of a stream whose edge asks for this; None of one that does not know the rule.

        Raises `UserError` if such an edge cannot be served here.
        """
        if asked is None and self.level is Privacy.STRICT:
            raise UserError(
                "this verifier insists on privacy strict, which this edge does not know; update the edge, or "
                "use another verifier",
                Code.FAILED_PRECONDITION,
            )
        return self.level if asked is None else stricter(asked, self.level)

    def cadence(self, turn: float) -> float:
        """Seconds from frame to frame where a turn takes `turn` seconds."""
        if self.interval:
            return self.interval
        return min(max(math.ceil(turn / GRAIN) * GRAIN, LEAST_INTERVAL), MOST_INTERVAL)

    def in_words(self, turn: float) -> str:
        """For who runs the verifier: what holds, and what it costs."""
        if self.level is Privacy.OFF:
            return "Privacy off: sizes and times of messages show what is said, unless an edge asks for more."
        if self.level is Privacy.PADDED:
            return f"Privacy padded: frames of {UP_BYTES} bytes up and {DOWN_BYTES} down; times still tell."
        interval = self.cadence(turn)
        up, down = (size / interval / 1e3 for size in (STRICT_UP * UP_BYTES, STRICT_DOWN * DOWN_BYTES))
        return (
            f"Privacy strict: every session sends {up:.1f} kB/s up and {down:.1f} down, whatever it says, "
            f"and each message waits up to {interval * 1e3:g} ms."
        )


class Pace:
    """How fast a stream's messages are taken. A message that comes too soon waits, and so do those behind it.

    `flooding` is shared by the streams of one tenant. It holds the streams whose messages waited and that
    have made no pause since. They share `TENANT_RATE`. A stream that keeps to its own rate waits for no
    other.
    """

    def __init__(
        self,
        now: float,
        rate: float = MESSAGE_RATE,
        burst: float = MESSAGE_BURST,
        flooding: set[Pace] | None = None,
    ) -> None:
        self._rate, self._burst = rate, burst
        self._free_at = now - burst / rate  # seconds; when the next one may be taken
        self._flooding = set[Pace]() if flooding is None else flooding

    def take(self, now: float) -> float:
        """Seconds to wait before the next message is taken; a message comes `now`."""
        rate = min(self._rate, TENANT_RATE / len(self._flooding)) if self in self._flooding else self._rate
        self._free_at = max(self._free_at, now - self._burst / self._rate) + 1.0 / rate
        if self._free_at > now:
            self._flooding.add(self)
        elif self._free_at <= now - self._burst / self._rate / 2:
            self._flooding.discard(self)
        return max(0.0, self._free_at - now)

    def end(self) -> None:
        """No more messages come."""
        self._flooding.discard(self)


class Line:
    """Both directions of one stream.

    The reader calls `received` for each frame and `asked` for the `Open` among its messages, the writer
    `leaving` until that is empty; `end` is then what ended the stream. Who waits by other means calls `put`
    and `ready`. `hurry` is for a verifier that goes. `turn` tells how long the verifier's turns are, in
    seconds; `clock`, the time, by default the running loop's. `flooding` is `Pace`'s.
    """

    def __init__(
        self,
        settings: PrivacySettings,
        turn: Callable[[], float],
        clock: Callable[[], float] | None = None,
        flooding: set[Pace] | None = None,
    ) -> None:
        self.end: End | None = None
        self._settings = settings
        self._turn = turn
        self._clock = clock or asyncio.get_running_loop().time
        self.pace = Pace(self._clock(), flooding=flooding)
        self._open: Open | None = None
        self._joiner = Joiner(pb.SessionRequest, MAX_JOINED_REQUEST_BYTES)
        self._sender = Sender(pb.SessionResponse, DOWN_BYTES)
        self._held_at = 0.0
        self._interval = 0.0
        self._num_fillers = 0
        self._hurries = False

    # From the edge ----------------------------------------------------------------------------------------

    def received(self, frame: pb.SessionRequest) -> list[pb.SessionRequest]:
        """The messages that this frame makes whole. Raises `PeerError`."""
        if frame.WhichOneof("message") == "filler":
            self._num_fillers += 1
            if self._interval and self._num_fillers > self._most_fillers():
                raise PeerError(f"{self._num_fillers} fillers came, more than a cadence has room for")
        return self._joiner.take(frame)

    def asked(self, request: Open) -> None:
        """The stream begins with it. Raises `UserError` if this verifier insists on what the edge does not
        know."""
        self._settings.agreed(request.privacy)
        self._open = request

    def _most_fillers(self) -> float:
        return SPARE_FILLERS + 2 * (self._clock() - self._held_at) / self._interval

    # To the edge ------------------------------------------------------------------------------------------

    async def leaving(self, outbox: Outbox) -> list[pb.SessionResponse]:
        """What is to be sent next; nothing when the stream is to end."""
        while not self._is_over:
            if (at := self._sender.next_at) is None:
                self.put(await outbox.get())
            else:
                await asyncio.sleep(max(0.0, at - self._clock()))
                self._take_what_fits(outbox)
            if frames := self.ready():
                return frames
        return []

    def put(self, item: Outgoing) -> None:
        """It is to leave, or is what the stream ends with."""
        if isinstance(item, End):
            self.end = item
            return
        if isinstance(item, Opened):
            item = self._hold(item)
        self._sender.put(encode_response(item))

    def ready(self) -> list[pb.SessionResponse]:
        """The frames that may leave now."""
        return self._sender.take(self._clock())

    def hurry(self) -> None:
        """The verifier's time is over: once all is said the stream ends with the next slot. That tells no
        more than the fillers did: all streams end then, those whose text goes on as well."""
        self._hurries = True

    @property
    def _is_over(self) -> bool:
        """Whether all has been said, and at a number of frames at which streams end."""
        if self.end is None or not self._sender.is_empty:
            return False
        at_once = self._hurries or self.end.error is not None
        return at_once or self._sender.num_frames % END_FRAMES == 0

    def _take_what_fits(self, outbox: Outbox) -> None:
        """Commits that have to wait for the next slot still grow together there."""
        while self.end is None and self._sender.has_room and (item := outbox.get_nowait()) is not None:
            self.put(item)

    def _hold(self, opened: Opened) -> Opened:
        """From this message on what was agreed holds; the edge is told, if it knows what that means."""
        assert self._open is not None, "no session opens without"
        level, known = self._settings.agreed(self._open.privacy), self._open.privacy is not None
        self._sender.size = down_size(self._open, level)
        self._held_at = self._clock()
        self._interval = self._settings.cadence(self._turn()) if level is Privacy.STRICT else 0.0
        self._joiner.takes_fillers = level is Privacy.STRICT
        self._sender.hold(level, self._held_at, self._interval, parts=known)
        if not known:
            return opened
        return replace(opened, privacy=level, interval_us=round(self._interval * 1e6))
