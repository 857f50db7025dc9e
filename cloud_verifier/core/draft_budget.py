"""Choose the draft rows of a step so that no session loses by another session's drafts.

A row makes the step longer for all its sessions. So the row must be worth its time to all of them together,
and every other session must have won more by drafts than other sessions' drafts have cost it. An edge's
probabilities are weighted by how often they were right. If room is short, tenants share it equally.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cloud_verifier.core.batching import NOBODY_SPARED
from cloud_verifier.core.cost import StepCost
from cloud_verifier.core.verify_session import StepProgress, VerifySession
from common.tree import Node

DEAREST = 0.75
"""Chance above which a row is taken at any predicted cost, unless a session's balance forbids it. Otherwise a
few slow steps would rule a width out for ever. After a try the measured cost of the width counts for some
dozens of steps."""

SURELY = 0.75
"""Tokens that a sure row may cost. Above it drafts as good as those of real pairs save nothing."""

LEAST_WEIGHT = 1e-9  # seconds; rows without cost by the line share the time that the table adds
LEAST_TRUST = 1e-6  # least trust in an edge; bounds a logarithm


class PickedDrafts(NamedTuple):
    """Holds the nodes of a step, and the number of draft rows if each session were alone."""

    nodes: dict[int, list[Node]]  # by session key; the tip first
    num_wanted: int
    longer: float  # share of a step of tips by which its drafts make it longer


class DraftCandidate(NamedTuple):
    """Holds a node that could be evaluated. The smaller in order comes first."""

    dearness: float  # nats: cost of its row per expected token
    node_id: int
    key: int
    session: VerifySession
    node: Node
    chance: float  # of acceptance, weighted by the trust in its edge
    reads: float  # KV slots that its row reads
    weight: float  # seconds that its row takes by the line: its share of the time that all rows add


class DraftBudget:
    """Picks draft rows, and keeps every session's balance in tokens: won by drafts, less lost by others'.

    A step of n tokens wins n - 1. Draft rows of others that lengthen a step by the share x lose x. Each step
    forgives `max_slowdown`, and a session starts with one token, so that first drafts can be evaluated. If a
    step without drafts takes s seconds, a session has at least (1 - max_slowdown) t / s - 1 tokens by any
    time t, whatever the others draft. This holds as far as the cost of rows is known, which the first steps
    teach.

    Args: max_slowdown; cost, of steps, which the caller teaches; rows_per_read, `TargetInfo`'s.
    """

    def __init__(self, max_slowdown: float, cost: StepCost, rows_per_read: int = 1) -> None:
        self.max_slowdown = max_slowdown
        self.cost = cost
        self.rows_per_read = rows_per_read

    def pick(
        self,
        decoding: Sequence[VerifySession],
        bearing: Sequence[VerifySession],
        max_rows: int,
        share: int,
        beside: int = 0,
    ) -> PickedDrafts:
        """Pick every tip of `decoding`, then draft nodes by cost per expected token, the cheapest first.

        `bearing` are all sessions that drafts delay; readers of prompts keep their pace
        (`Batcher.keep_pace`). `max_rows` bounds all nodes, `share` those of one session; `beside` are the
        step's prompt tokens. A parent is at least as likely as its child and has a smaller id, so it comes
        first. Rows that only fill a bucket cost nothing, so they are always picked.
        """
        nodes = {session.key: [session.tree.tip] for session in decoding}
        bare = self.bare(bearing)
        offers, num_wanted = list[DraftCandidate](), 0
        for session in decoding:
            session.account.promise(session.tree, ())
            if session.tree.num_speculative:
                own = self._offers(session, share - 1)
                offers += own
                num_wanted += self._best(own, [session], [session])
        if not offers:
            return PickedDrafts(nodes, num_wanted, 0.0)
        offers.sort()
        room = max_rows - len(nodes)
        best = offers[: self._best(offers, decoding, bearing, beside)]
        taken, payers = self._bearable(best, decoding, bearing, bare, room, beside)
        taken += self._filling(offers, taken, decoding, payers, room, beside)
        longer = self._added(taken, decoding, beside)
        for offer in taken:
            nodes[offer.key].append(offer.node)
        for session in decoding:
            if len(taken_nodes := nodes[session.key]) > 1:
                session.account.promise(session.tree, taken_nodes[1:])
        return PickedDrafts(nodes, num_wanted, longer / bare if bare else 0.0)

    def _bearable(
        self,
        offers: list[DraftCandidate],
        decoding: Sequence[VerifySession],
        bearing: Sequence[VerifySession],
        bare: float,
        room: int,
        beside: int,
    ) -> tuple[list[DraftCandidate], _Payers]:
        """Return the `offers` that all sessions can bear, at most `room`, and what the sessions have left.

        The offers share the time that they add together. If some are left out, the others may become more
        expensive, so they are judged again. Each round has fewer offers.
        """
        while True:
            price = self._price(offers, decoding, beside)
            payers = _Payers({session.key: max(session.account.balance, 0.0) * bare for session in bearing})
            taken = payers.choose(_in_turns(offers, room), price, room)
            if len(taken) == len(offers) or self._price(taken, decoding, beside) <= price * (1 + 1e-9):
                return taken, payers
            offers = taken[: self._best(taken, decoding, bearing, beside)]

    def _filling(
        self,
        offers: Sequence[DraftCandidate],
        taken: Sequence[DraftCandidate],
        decoding: Sequence[VerifySession],
        payers: _Payers,
        room: int,
        beside: int,
    ) -> list[DraftCandidate]:
        """Return the next best offers that the bucket of the `taken` ones has room for. They cost what they
        read, which the sessions must be able to bear, too."""
        num_rows = len(decoding) + len(taken)
        spare = min(room - len(taken), self.cost.padded(num_rows + beside) - beside - num_rows)
        if spare <= 0:
            return []
        has = {(offer.key, offer.node_id) for offer in taken}
        left = [offer for offer in _in_turns(offers, room) if (offer.key, offer.node_id) not in has][:spare]
        added = self._added([*taken, *left], decoding, beside) - self._added(taken, decoding, beside)
        price = added / sum(offer.weight for offer in left) if left else 0.0
        return payers.choose(left, price, spare)

    def _best(
        self,
        offers: Sequence[DraftCandidate],
        decoding: Sequence[VerifySession],
        bearing: Sequence[VerifySession],
        beside: int = 0,
    ) -> int:
        """Return the number of first offers with the greatest net gain for the sessions `bearing` together.

        The gain is the expected tokens less those that all of them write in the added time at their pace.
        Wider steps may be cheaper again. Offers of sessions without fill are always taken: leaving them out
        costs such a session a round trip, not a step."""
        rows, reads, pace = len(decoding), self._reads(decoding), self.pace(bearing)
        before, predict = self.cost.predict(rows, reads, beside), self.cost.predict
        best, best_worth, gain = 0, 0.0, 0.0
        for count, offer in enumerate(offers, start=1):
            reads += offer.reads
            gain += offer.chance
            price = pace * (predict(rows + count, reads, beside) - before)
            if price > DEAREST * count and not self.cost.tried(rows + count, beside):
                price = DEAREST * count
            if gain - price >= best_worth or not offer.session.request.fill:
                best, best_worth = count, gain - price
        return best

    def may_pay(self, sessions: Sequence[VerifySession], most: int) -> bool:
        """Return whether `most` draft rows or fewer would pay if they were sure to be right.

        One more row of a quantized model on a processor can cost as much as a step of its own.
        """
        pace = self.pace(sessions)
        for count in range(1, most + 1):
            price = pace * self._longer(sessions, count, 0.0, 0)
            if price < SURELY * count or not self.cost.tried(len(sessions) + count):
                return True
        return False

    def settle(
        self, parts: Sequence[StepProgress], seconds: float, spared: Mapping[int, float] = NOBODY_SPARED
    ) -> tuple[float, float]:
        """Enter a step's results into the sessions' balances and paces. `spared` is that of `StepDraft`.

        The step took `seconds`, the guesses before it included. Return what a draft row cost all sessions, in
        tokens, and the step's time as a multiple of the time of its tips and prompts alone.
        """
        writing = [part.session for part in parts if part.num_outputs]
        num_read = sum(part.num_rows - part.num_outputs for part in parts)
        num_drafts, weights = sum(part.num_drafts for part in parts), [0.0] * len(parts)
        total = price = bare = 0.0
        if num_drafts:
            weights = [part.num_drafts * self._weight(part.session) for part in parts]
            reads = sum(part.num_drafts * self._row_reads(part.session) for part in parts)
            total = self._longer(writing, num_drafts, reads, num_read)
            price = total / sum(weights)  # for a second of weight
            bare = self.bare([part.session for part in parts if part.session.key not in spared])
        for part, weight in zip(parts, weights, strict=True):
            session, num_won = part.session, part.num_won
            if num_drafts and part.num_outputs:
                session.account.judge(num_won)
            lost = (total - price * weight) / bare if bare else 0.0
            lost *= 1.0 - spared.get(session.key, 0.0)
            session.account.settle(num_won, self.max_slowdown, lost)
        row_price = total / num_drafts * self.pace([part.session for part in parts]) if num_drafts else 0.0
        alone = self.cost.predict_all(len(writing), num_read, self._reads(writing))
        time = seconds / alone if alone else 0.0
        for part in parts:
            if part.tokens:
                part.session.account.pace.add(len(part.tokens), time)
        return row_price, time

    def pace(self, sessions: Sequence[VerifySession]) -> float:
        """Return the tokens that the sessions write together in a second, at least those of bare steps; 0 if
        such steps take no time."""
        bare = self.bare(sessions)
        return sum(max(1.0, session.account.pace.ratio) for session in sessions) / bare if bare else 0.0

    def bare(self, sessions: Sequence[VerifySession]) -> float:
        """Return the seconds of a step of the sessions' tips alone."""
        return self.cost.predict(len(sessions), self._reads(sessions))

    def _reads(self, sessions: Sequence[VerifySession]) -> float:
        return float(sum(len(session.lease.slots) for session in sessions)) if self.cost.per_read else 0.0

    def _row_reads(self, session: VerifySession) -> float:
        """Return the KV slots that one more row of the session reads."""
        return len(session.lease.slots) / self.rows_per_read

    def _weight(self, session: VerifySession) -> float:
        """Return the seconds of one row of the session by the line, above 0 (`DraftCandidate.weight`)."""
        return max(self.cost.more(1, self._row_reads(session)), LEAST_WEIGHT)

    def _longer(self, decoding: Sequence[VerifySession], num_rows: int, reads: float, beside: int) -> float:
        """Return the seconds by which `num_rows` more rows lengthen a step of the sessions' tips."""
        rows, before, predict = len(decoding), self._reads(decoding), self.cost.predict
        longer = predict(rows + num_rows, before + reads, beside) - predict(rows, before, beside)
        return max(0.0, longer)

    def _added(
        self, offers: Sequence[DraftCandidate], decoding: Sequence[VerifySession], beside: int
    ) -> float:
        """Return the seconds that the offers add to a step of the tips of `decoding`."""
        return self._longer(decoding, len(offers), sum(offer.reads for offer in offers), beside)

    def _price(
        self, offers: Sequence[DraftCandidate], decoding: Sequence[VerifySession], beside: int
    ) -> float:
        """Return the seconds that the offers add to the step, for each second of their weights."""
        if not offers:
            return 0.0
        return self._added(offers, decoding, beside) / sum(offer.weight for offer in offers)

    def _offers(self, session: VerifySession, most: int) -> list[DraftCandidate]:
        """Return the `most` likeliest nodes of the session, by the edge's probabilities and its record."""
        nodes, key = session.step_nodes(), session.key
        reads, weight = self._row_reads(session), self._weight(session)
        if not session.request.fill:
            few = nodes[:most]
            return [DraftCandidate(0.0, node.id, key, session, node, 0.0, reads, weight) for node in few]
        doubt = -math.log(min(max(session.account.kept.ratio, LEAST_TRUST), 1.0))
        dear = 0.0
        if self.cost.per_read and self.cost.per_row:
            dear = math.log(self.cost.more(1, reads) / self.cost.per_row)
        worth = session.tree.worth
        likeliest = sorted((doubt - worth(node), node.id, node) for node in nodes)[:most]
        return [
            DraftCandidate(unlikely + dear, node_id, key, session, node, math.exp(-unlikely), reads, weight)
            for unlikely, node_id, node in likeliest
        ]


class _Payers:
    """Tracks how much draft time of others each session can still bear. A session at its limit blocks all
    further rows except its own."""

    def __init__(self, bearable: dict[int, float]) -> None:
        self._limits = bearable  # seconds of the rows of all: bearable ones of others, and its own
        self.taken = 0.0  # seconds
        self._find_poorest()

    def choose(self, offers: Sequence[DraftCandidate], price: float, most: int) -> list[DraftCandidate]:
        """Take the offers that all others can bear, in order; `price` is for a second of weight."""
        taken = list[DraftCandidate]()
        for offer in offers:
            time = price * offer.weight
            if len(taken) >= most:
                break
            if self.can_bear(offer.key, time):
                self.take(offer.key, time)
                taken.append(offer)
        return taken

    def can_bear(self, key: int, row_time: float) -> bool:
        """Return whether all other sessions can bear one more row of `key`. False is final."""
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


def _in_turns(offers: Sequence[DraftCandidate], room: int) -> Sequence[DraftCandidate]:
    """Return the offers in order. If room is short, each tenant's first offers come before any others."""
    tenants = {offer.session.tenant for offer in offers}
    if len(offers) <= room or len(tenants) < 2:
        return offers
    share, counts = max(1, room // len(tenants)), dict.fromkeys(tenants, 0)
    first, later = list[DraftCandidate](), list[DraftCandidate]()
    for offer in offers:
        counts[offer.session.tenant] += 1
        (first if counts[offer.session.tenant] <= share else later).append(offer)
    return first + later
