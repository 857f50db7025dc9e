"""Whether drafting is worth a device's while: it stops where nothing is won, says why, and looks again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from edge_client.core.policies.base import GrowthView

STOP, GO_ON = 0.01, 0.02
"""Seconds of waiting that a second of drafting must promise to save, to go on and to begin again."""

LOOK_AGAIN = 1.0  # seconds; after so long a rest one node is drafted and sent, which measures draft and link
LOOK_STEPS = 3  # draft steps of one look: the first reads what the verifier wrote, and tells no pace
LOOK_READS = 0.5  # seconds of reading, at most, that a look is worth
CHANGED = 0.25  # share of a round trip by which the newest is another one: then it looks ten times as often
SETTLED = 0.5  # seconds that a rest, or drafting, lasts before it is called a mode
STEPS_SAVED = 4.0  # draft steps that a power budget lets come at once after a rest


class Mode(Enum):
    """Who writes the text."""

    AHEAD = "ahead"  # the device drafts, the verifier decides
    SERVER_ONLY = "server-only"  # the verifier alone
    DEVICE_ONLY = "device-only"  # the draft alone, and only as a guess: no server is there
    WAITING = "waiting"  # nobody: no server is there, and no guess is wanted


@dataclass(frozen=True, slots=True)
class Standing:
    """A mode, and in words why."""

    mode: Mode
    why: str


GOES_AHEAD = Standing(Mode.AHEAD, "the draft runs ahead")
"""Of a policy without a governor, always."""


class Governed:
    """A policy whose governor decides whether it drafts at all."""

    def __init__(self, governor: Governor) -> None:
        self.governor = governor

    @property
    def standing(self) -> Standing:
        """What it does now, and why. The same object until that changes."""
        return self.governor.standing

    def can_wait(self, view: GrowthView, draft_ends_at: float) -> bool:
        """Whether what could be sent now may leave with what a draft step brings that ends then, seconds. Not
        unless the policy says so."""
        return False


class Governor:
    """Lets draft steps pass while they promise more than they cost, and within a power budget.

    `max_steps_per_second` draft steps at most, 0 for any number.
    """

    def __init__(self, max_steps_per_second: float = 0.0) -> None:
        self.standing = Standing(Mode.AHEAD, "drafting begins")
        self.max_steps_per_second = max_steps_per_second
        self._saved = STEPS_SAVED  # draft steps that the budget allows now
        self._counted_at: float | None = None
        self._wins = True  # whether drafting paid when it was last asked
        self._since: float | None = None  # when that became so
        self._looked_at: float | None = None  # when the last step passed
        self._look_steps = 0  # of the present look; 0: the last step was none of a look

    def allows(self, view: GrowthView, promise: float, step: float) -> bool:
        """Whether a draft step of `step` seconds that promises to save `promise` tokens may begin."""
        now = view.now
        wins = promise * view.turn.smoothed >= (STOP if self._wins else GO_ON) * step
        if self._since is None or wins is not self._wins:
            self._wins, self._since = wins, now
        mode = Mode.AHEAD if wins else Mode.SERVER_ONLY
        if mode is not self.standing.mode and now - self._since >= SETTLED:
            self.standing = Standing(mode, why(view) if wins else why_not(view, step))
        passes = wins and self.power_at(now) <= now
        if passes:
            self._look_steps = 0
        return passes

    def should_look(self, view: GrowthView) -> bool:
        """Whether it is time for a single node, to see whether things have changed.

        A look goes on, up to `LOOK_STEPS` steps, until one of them is a sample of the draft's pace.
        """
        if self.power_at(view.now) > view.now or view.catch_up_time > LOOK_READS:
            return False
        looks_on = 0 < self._look_steps < LOOK_STEPS and not view.is_paced
        if looks_on or self._looked_at is None or self._is_time(view, self._looked_at):
            self._look_steps = self._look_steps + 1 if looks_on else 1
            return True
        return False

    @staticmethod
    def _is_time(view: GrowthView, looked_at: float) -> bool:
        rtt = view.rtt
        changing = abs(rtt.latest_rtt - rtt.smoothed_rtt) > CHANGED * rtt.smoothed_rtt
        return view.now - looked_at >= (LOOK_AGAIN / 10 if changing else LOOK_AGAIN)

    def began(self, view: GrowthView) -> None:
        """A draft step begins now."""
        self._looked_at = view.now
        self._saved -= 1.0

    def power_at(self, now: float) -> float:
        """When the power budget lets the next draft step begin, seconds; `now` if it does already."""
        if not self.max_steps_per_second:
            return now
        if self._counted_at is not None:
            earned = (now - self._counted_at) * self.max_steps_per_second
            self._saved = min(STEPS_SAVED, self._saved + earned)
        self._counted_at = now
        return now + max(0.0, 1.0 - self._saved) / self.max_steps_per_second


def why(view: GrowthView) -> str:
    """Why drafting wins, in words."""
    return f"drafting saves time over a round trip of {_ms(view.rtt.smoothed_rtt)}"


def why_not(view: GrowthView, step: float) -> str:
    """Why drafting wins nothing, in words."""
    turn, rtt = view.turn.smoothed, view.rtt.smoothed_rtt
    if step >= turn:
        return f"a draft step takes {_ms(step)}, the verifier writes a token in {_ms(turn)}"
    ahead = rtt / turn
    if ahead >= 1.0:
        return (
            f"over a round trip of {_ms(rtt)} the verifier writes {ahead:.0f} tokens before a draft comes, "
            "and the draft is too seldom right for so long"
        )
    return "the draft is too seldom right"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"
