"""Who pays for speculation: which draft rows a step takes, so that no session loses by another's.

A row makes the step longer for everybody in it. So it must be worth that to all of them together, and each of
the others must have won more by drafts so far than other sessions' drafts have cost it. What an edge says of
its nodes is believed as far as it has come true.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from cloud_verifier.core.session import VerifySession
from common.estimators import StepTimeEstimator
from common.tree import Node

FIRST_ROW_TIME = 0.01  # seconds; a row counts as dear until steps of several widths have told what it costs
DEAREST = 0.5
"""A row that is likelier right than wrong is taken if nobody is poor, whatever it is believed to cost: where
none is taken nothing is learnt, and a few slow steps would be believed for ever."""

LEAST_TRUST = 1e-6  # one that was never right; only bounds a logarithm
MOST_SAVED = 16.0  # tokens; what was won long ago does not excuse a slow spell now


class Outcome(NamedTuple):
    """What a step was for one session: draft rows evaluated, and tokens beyond the one it has in any case:
    one for each row that was right."""

    session: VerifySession
    num_drafts: int
    num_won: int


class Sharing:
    """Picks draft rows, and keeps every session's balance in tokens: won by drafts, less lost by others'.

    n tokens in a step are n - 1 won; draft rows of others that make a step longer by the share x of its time
    without any are x lost. In each step `max_slowdown` is forgiven, and a session starts with one token, else
    nobody's first draft could be evaluated. So where a step without drafts takes s seconds, a session has by
    any time t at least (1 - max_slowdown) t / s - 1 tokens whatever the others draft, as far as the time
    that a row costs is known; the first steps teach it.
    """

    def __init__(self, max_slowdown: float) -> None:
        self.max_slowdown = max_slowdown
        self.step_time = StepTimeEstimator(per_row=FIRST_ROW_TIME)  # by rows; the caller's to teach

    def pick(
        self, decoding: Sequence[VerifySession], ready: Sequence[VerifySession], max_rows: int, share: int
    ) -> dict[int, list[Node]]:
        """Nodes by session key: every tip of `decoding`, then draft nodes, the likeliest paths first.

        `ready` are these and all others that wait for the step. `max_rows` bounds all nodes, `share` those of
        one session. A parent is at least as likely as its child and has a smaller id, so it comes first.
        """
        picked = {session.key: [session.tree.tip] for session in decoding}
        offers = [offer for session in decoding for offer in _offers(session)]
        for session in decoding:
            session.promised = 0.0
        if not offers:
            return picked
        offers.sort(key=_order)
        left = max_rows - len(picked)
        payers = self._payers(ready)
        most_unlikely = -self._least_worth(len(ready))
        for unlikely, _, key, node in offers:
            if left <= 0 or unlikely > most_unlikely:
                break
            if len(picked[key]) < share and payers.can_bear(key):
                payers.take(key)
                picked[key].append(node)
                left -= 1
        for session in decoding:
            session.promised = sum(math.exp(session.tree.worth(node)) for node in picked[session.key][1:])
        return picked

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """A step is over and brought its sessions these outcomes."""
        total, tokens_per_row = sum(outcome.num_drafts for outcome in outcomes), self._row(len(outcomes))
        for session, num_drafts, num_won in outcomes:
            session.kept.add(num_won, session.promised)
            lost = tokens_per_row * (total - num_drafts)
            session.balance = min(MOST_SAVED, session.balance + num_won + self.max_slowdown - lost)

    def _row(self, num_sessions: int) -> float:
        """Tokens that each of them could have in the time that a row costs: its share of a bare step."""
        bare = self.step_time.predict(num_sessions)
        return self.step_time.per_row / bare if bare else 0.0

    def _least_worth(self, num_sessions: int) -> float:
        """Log-probability (nats) below which a row costs all of them more time than it may save its own."""
        cost = min(DEAREST, num_sessions * self._row(num_sessions))
        return math.log(cost) if cost else -math.inf

    def _payers(self, sessions: Sequence[VerifySession]) -> _Payers:
        tokens_per_row = self._row(len(sessions))
        rows_per_token = 1.0 / tokens_per_row if tokens_per_row else math.inf
        return _Payers({session.key: max(session.balance, 0.0) * rows_per_token for session in sessions})


class _Payers:
    """How many draft rows of others each session can still bear. Who cannot bear one more blocks them all,
    but not its own."""

    def __init__(self, bearable: dict[int, float]) -> None:
        self._limits = bearable  # of the rows of all: bearable ones of others, and its own
        self._num_taken = 0
        self._find_poorest()

    def can_bear(self, key: int) -> bool:
        """Whether all but `key` can bear one more row of it. Once they cannot, they never can again."""
        limit = self._second_limit if key == self._poorest else self._least_limit
        return self._num_taken + 1 <= limit

    def take(self, key: int) -> None:
        self._num_taken += 1
        self._limits[key] += 1.0
        if key in (self._poorest, self._second):
            self._find_poorest()

    def _find_poorest(self) -> None:
        self._poorest = self._second = -1
        self._least_limit = self._second_limit = math.inf
        for key, limit in self._limits.items():
            if limit < self._least_limit:
                self._second, self._second_limit = self._poorest, self._least_limit
                self._poorest, self._least_limit = key, limit
            elif limit < self._second_limit:
                self._second, self._second_limit = key, limit


def _offers(session: VerifySession) -> list[tuple[float, int, int, Node]]:
    """Its nodes by how unlikely their paths are, in nats: as it says itself, and as it was right so far. One
    without fill asks for all of them: what is left out costs it a round trip, and not a step."""
    if not session.request.fill:
        return [(0.0, node.id, session.key, node) for node in session.step_nodes()]
    doubt = -math.log(min(max(session.kept.ratio, LEAST_TRUST), 1.0))
    worth = session.tree.worth
    return [(doubt - worth(node), node.id, session.key, node) for node in session.step_nodes()]


def _order(offer: tuple[float, int, int, Node]) -> tuple[float, int, int]:
    return offer[:3]
