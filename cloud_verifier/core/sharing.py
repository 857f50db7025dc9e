"""Who pays for speculation: which draft rows a step takes, so that no session loses by another's.

A row makes the step longer for everybody in it. So it must be worth that to all of them together, and each of
the others must have won more by drafts so far than other sessions' drafts have cost it. What an edge says of
its nodes is believed as far as it has come true. Where there is room for some rows only, tenants share it
alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cloud_verifier.core.batching import NOBODY_SPARED
from cloud_verifier.core.cost import StepCost
from cloud_verifier.core.session import Progress, VerifySession
from common.tree import Node

DEAREST = 0.75
"""A row that is likelier right than this is taken if nobody is poor, whatever it is believed to cost: where
none is taken nothing is learnt, and a few slow steps would be believed for ever."""

LEAST_TRUST = 1e-6  # one that was never right; only bounds a logarithm
MOST_SAVED = 16.0  # tokens; what was won long ago does not excuse a slow spell now


class Picked(NamedTuple):
    """The nodes of a step, and how many draft rows it would have had if each session were alone."""

    nodes: dict[int, list[Node]]  # by session key; the tip first
    num_wanted: int
    longer: float  # share of a step of tips by which its drafts make it longer


class Offer(NamedTuple):
    """A node that could be evaluated. The smaller in order comes first."""

    dearness: float  # nats: what its row costs for what it may win
    node_id: int
    key: int
    session: VerifySession
    node: Node


class Sharing:
    """Picks draft rows, and keeps every session's balance in tokens: won by drafts, less lost by others'.

    n tokens in a step are n - 1 won; draft rows of others that make a step longer by the share x of its time
    without any are x lost. In each step `max_slowdown` is forgiven, and a session starts with one token, else
    nobody's first draft could be evaluated. So where a step without drafts takes s seconds, a session has by
    any time t at least (1 - max_slowdown) t / s - 1 tokens whatever the others draft, as far as the time
    that a row costs is known; the first steps teach it.

    Args: max_slowdown; cost, of steps, which the caller teaches; rows_per_read, `TargetInfo`'s.
    """

    def __init__(self, max_slowdown: float, cost: StepCost | None = None, rows_per_read: int = 1) -> None:
        self.max_slowdown = max_slowdown
        self.cost = cost or StepCost()
        self.rows_per_read = rows_per_read

    def pick(
        self,
        decoding: Sequence[VerifySession],
        bearing: Sequence[VerifySession],
        max_rows: int,
        share: int,
    ) -> Picked:
        """Every tip of `decoding`, then draft nodes, the cheapest for what they promise first.

        `bearing` are these and all others whom drafts delay: not those that read a prompt, which keep their
        pace (`Batcher.keep_pace`). `max_rows` bounds all nodes, `share` those of one session. A parent is at
        least as likely as its child and has a smaller id, so it comes first.
        """
        nodes = {session.key: [session.tree.tip] for session in decoding}
        bare = self._bare(bearing)
        offers, num_wanted = list[Offer](), 0
        for session in decoding:
            session.promised = 0.0
            if session.tree.num_speculative:
                found, wanted = self._offers(session, bare, len(bearing))
                offers += found
                num_wanted += min(wanted, share - 1)
        if not offers:
            return Picked(nodes, num_wanted, 0.0)
        payers = _Payers({each.key: max(each.balance, 0.0) * bare for each in bearing})
        self._take(sorted(offers), nodes, payers, max_rows - len(nodes), share)
        for session in decoding:
            taken = nodes[session.key]
            if len(taken) > 1:
                session.promised = sum(math.exp(session.tree.worth(node)) for node in taken[1:])
        return Picked(nodes, num_wanted, payers.taken / bare if bare else 0.0)

    def _take(
        self, offers: list[Offer], nodes: dict[int, list[Node]], payers: _Payers, left: int, share: int
    ) -> None:
        """Add to `nodes` what can be borne, `left` at most and `share` a session."""
        for offer in _in_turns(offers, left):
            taken, row_time = nodes[offer.key], self._row_time(offer.session)
            if left <= 0:
                break
            if len(taken) < share and payers.can_bear(offer.key, row_time):
                payers.take(offer.key, row_time)
                taken.append(offer.node)
                left -= 1

    def settle(self, parts: Sequence[Progress], spared: Mapping[int, float] = NOBODY_SPARED) -> None:
        """A step is over and brought its sessions this. `spared` as in `Batch`."""
        if not any(part.num_outputs > 1 for part in parts):
            for part in parts:
                session = part.session
                session.balance = min(MOST_SAVED, session.balance + self.max_slowdown)
            return
        times = [part.num_drafts * self._row_time(part.session) for part in parts]
        total, bare = (
            sum(times),
            self._bare([part.session for part in parts if part.session.key not in spared]),
        )
        for part, own in zip(parts, times, strict=True):
            session, num_won = part.session, part.num_won
            if part.num_outputs and (session.promised or num_won):
                session.kept.add(num_won, session.promised)
            lost = (total - own) / bare if bare else 0.0
            lost *= 1.0 - spared.get(session.key, 0.0)
            session.balance = min(MOST_SAVED, session.balance + num_won + self.max_slowdown - lost)

    def _bare(self, sessions: Sequence[VerifySession]) -> float:
        """Seconds of a step of nothing but their tips."""
        reads = sum(len(session.lease.slots) for session in sessions) if self.cost.per_read else 0
        return self.cost.predict(len(sessions), reads)

    def _row_time(self, session: VerifySession) -> float:
        """Seconds by which one more row of it makes a step longer."""
        return self.cost.more(1, len(session.lease.slots) / self.rows_per_read)

    def _offers(self, session: VerifySession, bare: float, num_sessions: int) -> tuple[list[Offer], int]:
        """Its nodes that are worth their cost to all: as likely as it says itself, and as it was right so
        far; and how many were worth it if it were alone. One without fill asks for all of them: what is left
        out costs it a round trip, and not a step."""
        nodes, key = session.step_nodes(), session.key
        if not nodes:
            return [], 0
        if not session.request.fill:
            return [Offer(0.0, node.id, key, session, node) for node in nodes], len(nodes)
        doubt = -math.log(min(max(session.kept.ratio, LEAST_TRUST), 1.0))
        row_time, worth = self._row_time(session), session.tree.worth
        most_unlikely = _most_unlikely(num_sessions * row_time, bare)
        alone = _most_unlikely(row_time, self._bare([session]))
        dear = math.log(row_time / self.cost.per_row) if self.cost.per_read and self.cost.per_row else 0.0
        unlikely = [doubt - worth(node) for node in nodes]
        offers = [
            Offer(each + dear, node.id, key, session, node)
            for node, each in zip(nodes, unlikely, strict=True)
            if each <= most_unlikely
        ]
        return offers, sum(1 for each in unlikely if each <= alone)


class _Payers:
    """How much time of drafts of others each session can still bear. Who cannot bear one more row blocks them
    all, but not its own."""

    def __init__(self, bearable: dict[int, float]) -> None:
        self._limits = bearable  # seconds of the rows of all: bearable ones of others, and its own
        self.taken = 0.0  # seconds
        self._find_poorest()

    def can_bear(self, key: int, row_time: float) -> bool:
        """Whether all but `key` can bear one more row of it. Once they cannot, they never can again."""
        limit = self._second_limit if key == self._poorest else self._least_limit
        return self.taken + row_time <= limit

    def take(self, key: int, row_time: float) -> None:
        self.taken += row_time
        self._limits[key] += row_time
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


def _most_unlikely(cost: float, bare: float) -> float:
    """Nats beyond which a row that costs all together `cost` seconds of `bare` may save its own too
    little."""
    share = min(DEAREST, cost / bare) if bare else 0.0
    return -math.log(share) if share else math.inf


def _in_turns(offers: Sequence[Offer], room: int) -> Sequence[Offer]:
    """The offers in order; where there is room for some only, each tenant's first ones before anybody's
    rest."""
    tenants = {offer.session.tenant for offer in offers}
    if len(offers) <= room or len(tenants) < 2:
        return offers
    share, counts = max(1, room // len(tenants)), dict.fromkeys(tenants, 0)
    first, later = list[Offer](), list[Offer]()
    for offer in offers:
        counts[offer.session.tenant] += 1
        (first if counts[offer.session.tenant] <= share else later).append(offer)
    return first + later
