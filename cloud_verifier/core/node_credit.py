"""Set each session's node credit: the live nodes that its edge may have here, by the number that would be
evaluated."""

from __future__ import annotations

from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.verify_session import VerifySession

LIVE_NODE_BUDGET = 2048  # live nodes over all sessions
MIN_CREDIT = 8  # a session may always propose so many
GAIN = 1 / 8  # of RFC 9002's smoothed RTT: a change is followed within a dozen steps
NO_PRESSURE = 0.01  # nearly every row that is wanted is taken
HOPELESS_PRESSURE = 0.9  # above it a session without draft rows gets no credit
RARELY = 1 / 16  # draft rows a turn below which a session counts as getting none
TRIAL = 16  # turns after which such a session may try again
AHEAD = 2.0  # turns for which nodes are kept: the next one, and the one after


class Credit:
    """Sets each session's credit. Without pressure the budget of live nodes is divided among the sessions.

    Under pressure the credit moves towards use: the rows that a session gets in a step and the tokens that
    its edge has not seen yet, for two turns. Near full pressure a session with hardly any rows gets no
    credit, except for occasional trials, because its messages cost more than its drafts bring. The same
    holds where rows are so dear that none of its drafts is worth one."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.pressure = 0.0  # share of the wanted draft rows that other sessions' rows displace
        self.rows_pay = True  # drafts that are sure to be right would save time (`DraftBudget.may_pay`)
        self._config = config

    def note(self, num_wanted: int, num_taken: int) -> None:
        """Note a step of `num_taken` draft rows, of `num_wanted` if each session had been alone."""
        if num_wanted:
            left_out = max(0.0, 1.0 - num_taken / num_wanted)
            self.pressure += GAIN * (left_out - self.pressure)

    def of(self, session: VerifySession, num_sessions: int) -> int:
        """Return the current credit of a session, one of `num_sessions`."""
        share = min(self._config.max_live_nodes, LIVE_NODE_BUDGET // max(1, num_sessions))
        if session.request.fill and (not self.rows_pay or session.share.pauses):
            return 0
        if self.pressure < NO_PRESSURE:
            return max(MIN_CREDIT, share)
        used = AHEAD * (session.share.num_rows + session.arrivals.lag)
        hopeless = self.pressure >= HOPELESS_PRESSURE and session.share.num_rows < RARELY
        if hopeless and session.request.fill and not _on_trial(session):
            return 0
        return max(MIN_CREDIT, round(share + self.pressure * (min(share, used) - share)))


def _on_trial(session: VerifySession) -> bool:
    """Return whether the session has a trial: at its beginning, and every `TRIAL` turns, staggered."""
    return not session.share.num_turns or (session.share.num_turns + session.key) % TRIAL == 0
