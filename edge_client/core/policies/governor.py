"""Decides whether drafting pays: stops it when it saves nothing, gives the reason, and probes again."""

from __future__ import annotations

from edge_client.core.effects import Mode, ModeStatus
from edge_client.core.policies.base import GrowthView

STOP, GO_ON = 0.01, 0.02
"""Seconds of waiting saved per second of drafting, below which drafting stops and above which it resumes."""

LOOK_AGAIN = 1.0  # seconds of rest, then one drafted and sent node measures draft and link
LOOK_STEPS = 3  # draft steps of one look: the first reads the verifier's text, and measures no pace
LOOK_READS = 0.5  # seconds of reading, at most, that a look is worth
CHANGED = 0.25  # share of a round trip; if the newest differs by more, looks come ten times as often
COSTLY = (
    0.1  # seconds by which a second of drafting delays the verifier, above which looks are ten times rarer
)
SETTLED = 0.5  # seconds that a rest, or drafting, lasts before it becomes the mode
DRAFTS_WELL = 1.5  # tokens a turn by the verifier's own guesses from which on they are the reason to rest
STEPS_SAVED = 4.0  # draft steps that a power budget allows at once after a rest


class Governor:
    """Lets draft steps pass while they promise more than they cost, at most `max_steps_per_second` (0:
    unlimited)."""

    def __init__(self, max_steps_per_second: float = 0.0) -> None:
        self.standing = ModeStatus(Mode.AHEAD, "drafting begins")
        self.max_steps_per_second = max_steps_per_second
        self._saved = STEPS_SAVED  # draft steps that the budget allows now
        self._counted_at: float | None = None
        self._wins = True  # whether drafting paid when it was last asked
        self._since: float | None = None  # when that became so
        self._looked_at: float | None = None  # when the last step passed
        self._look_steps = 0  # of the present look; 0: the last step was none of a look

    def allows(self, view: GrowthView, promise: float, step: float) -> bool:
        """Return whether a draft step of `step` seconds that may save `promise` tokens may begin."""
        now = view.now
        cores = view.pace.cores
        saved = promise * cores.turn(view.turn.smoothed) / view.server.tokens
        wins = saved >= (STOP if self._wins else GO_ON) * step + cores.cost(step)
        if self._since is None or wins is not self._wins:
            self._wins, self._since = wins, now
        mode = Mode.AHEAD if wins else Mode.SERVER_ONLY
        if mode is not self.standing.mode and now - self._since >= SETTLED:
            self.standing = ModeStatus(mode, why(view) if wins else why_not(view, step))
        passes = wins and self.power_at(now) <= now
        if passes:
            self._look_steps = 0
        return passes

    def refused(self, view: GrowthView) -> None:
        """Note that the verifier takes no drafts now."""
        if self._wins:
            self._wins, self._since = False, view.now
            self.standing = ModeStatus(Mode.SERVER_ONLY, "the verifier takes no drafts now")

    def should_look(self, view: GrowthView) -> bool:
        """Return whether to draft a single node now. A look lasts up to `LOOK_STEPS` steps, until one
        measures the pace."""
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
        if view.pace.cores.cost(1.0) > COSTLY:
            return view.now - looked_at >= 10 * LOOK_AGAIN
        return view.now - looked_at >= (LOOK_AGAIN / 10 if changing else LOOK_AGAIN)

    def began(self, view: GrowthView) -> None:
        """Note that a draft step begins now."""
        self._looked_at = view.now
        self._saved -= 1.0

    def power_at(self, now: float) -> float:
        """Return the second at which the power budget allows the next draft step, at least `now`."""
        if not self.max_steps_per_second:
            return now
        if self._counted_at is not None:
            earned = (now - self._counted_at) * self.max_steps_per_second
            self._saved = min(STEPS_SAVED, self._saved + earned)
        self._counted_at = now
        return now + max(0.0, 1.0 - self._saved) / self.max_steps_per_second


def why(view: GrowthView) -> str:
    """Describe why drafting saves time."""
    return f"drafting saves time over a round trip of {_ms(view.rtt.smoothed_rtt)}"


def why_not(view: GrowthView, step: float) -> str:
    """Describe why drafting saves no time."""
    turn, rtt, alone = view.turn.smoothed, view.rtt.smoothed_rtt, view.server.tokens
    if view.pace.cores.cost(step) >= STOP * step and step < turn:
        return "the draft takes the processors of the target more time than it saves"
    if step >= turn:
        return f"a draft step takes {_ms(step)}, the verifier writes a token in {_ms(view.token_time)}"
    if alone >= DRAFTS_WELL:
        return f"the server drafts well enough: {alone:.1f} tokens a step"
    ahead = rtt / turn
    if ahead >= 1.0:
        return (
            f"over a round trip of {_ms(rtt)} the verifier writes {ahead:.0f} tokens before a draft comes, "
            "and the draft is too seldom right for so long"
        )
    return "the draft is too seldom right"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"
