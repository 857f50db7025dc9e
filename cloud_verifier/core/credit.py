"""Node credit: how many live nodes each edge may have here, by how many of them would be evaluated."""

from __future__ import annotations

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.session import VerifySession

GAIN = 1 / 8  # of RFC 9002's smoothed RTT: a change is followed within a dozen steps
NO_PRESSURE = 0.01  # nearly every row that is wanted is taken
HOPELESS_PRESSURE = 0.9  # from here on who gets no rows sends nothing
RARELY = 1 / 16  # draft rows a turn: who has fewer sends in vain
TRIAL = 16  # turns after which such a one may try again
AHEAD = 2.0  # turns for which nodes may lie here: the one that comes, and the one after


class Credit:
    """While nobody stays out for others, the budget of live nodes is divided among the sessions. As drafts
    stay out that would have been evaluated if their session were alone, credit moves towards what is: the
    rows that a session gets in a step, and the tokens that its edge has not seen yet, for two turns. When
    nearly all stay out, who gets hardly any has no credit, but for a trial now and then: the messages alone
    would cost the verifier more than the drafts bring."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.pressure = 0.0  # share of the draft rows wanted that stay out for others
        self._config = config

    def note(self, num_wanted: int, num_taken: int) -> None:
        """A step had `num_taken` draft rows, of `num_wanted` if each session had been alone."""
        if num_wanted:
            left_out = max(0.0, 1.0 - num_taken / num_wanted)
            self.pressure += GAIN * (left_out - self.pressure)

    def of(self, session: VerifySession, num_sessions: int) -> int:
        """Its credit now, of so many sessions."""
        config = self._config
        share = min(config.max_live_nodes, config.live_node_budget // max(1, num_sessions))
        if self.pressure < NO_PRESSURE:
            return max(config.min_credit, share)
        used = AHEAD * (session.rows_taken + session.arrivals.lag)
        hopeless = self.pressure >= HOPELESS_PRESSURE and session.rows_taken < RARELY
        if hopeless and session.request.fill and not _on_trial(session):
            return 0
        return max(config.min_credit, round(share + self.pressure * (min(share, used) - share)))


def _on_trial(session: VerifySession) -> bool:
    """At the beginning, and then every `TRIAL` turns, not all sessions at once."""
    return not session.num_turns or (session.num_turns + session.key) % TRIAL == 0
