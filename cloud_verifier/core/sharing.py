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
"""A row that is likelier right than this is taken if nobody is poor, whatever it is believed to cost. Without
it a few slow steps would be believed for ever. The cost of a step of that width, once tried, is believed for
some dozens of steps."""

LEAST_WEIGHT = 1e-9  # seconds; rows that the line gives for nothing share what the table adds
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
    chance: float  # that it is right, as far as its edge is believed
    reads: float  # KV slots that its row reads
    weight: float  # seconds that its row takes by the line: its share of what the rows of all add


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
                found = self._offers(session, share - 1)
                offers += found
                num_wanted += self._best(found, [session], 1, self._bare([session]))
        if not offers:
            return Picked(nodes, num_wanted, 0.0)
        offers.sort()
        offers = offers[: self._best(offers, decoding, len(bearing), bare)]
        taken, longer = self._bearable(offers, decoding, bearing, bare, max_rows - len(nodes))
        for offer in taken:
            nodes[offer.key].append(offer.node)
        for session in decoding:
            own = nodes[session.key]
            if len(own) > 1:
                session.promised = sum(math.exp(session.tree.worth(node)) for node in own[1:])
        return Picked(nodes, num_wanted, longer / bare if bare else 0.0)

    def _bearable(
        self,
        offers: list[Offer],
        decoding: Sequence[VerifySession],
        bearing: Sequence[VerifySession],
        bare: float,
        room: int,
    ) -> tuple[list[Offer], float]:
        """The `offers` that all sessions can bear, `room` at most, and the seconds that they add to the step.

        The offers share the time that they add together. If some are left out, the others may become dearer,
        so they are judged again. Each round has fewer offers.
        """
        while offers:
            price = self._price(offers, decoding)
            payers = _Payers({each.key: max(each.balance, 0.0) * bare for each in bearing})
            taken = list[Offer]()
            for offer in _in_turns(offers, room):
                time = price * offer.weight
                if len(taken) >= room:
                    break
                if payers.can_bear(offer.key, time):
                    payers.take(offer.key, time)
                    taken.append(offer)
            if len(taken) == len(offers) or self._price(taken, decoding) <= price * (1 + 1e-9):
                return taken, self._added(taken, decoding)
            offers = taken[: self._best(taken, decoding, len(bearing), bare)]
        return [], 0.0

    def _best(
        self, offers: Sequence[Offer], decoding: Sequence[VerifySession], num_sessions: int, bare: float
    ) -> int:
        """How many of the first offers are worth most to `num_sessions` sessions together, less the tokens
        that they all could have had in the time that the rows add. Behind a dear width there may be cheaper
        ones. Offers of sessions without fill are taken in any case: what is left out costs such a session a
        round trip, and not a step."""
        rows, reads = len(decoding), self._reads(decoding)
        before, predict = self.cost.predict(rows, reads), self.cost.predict
        best, best_worth, gain = 0, 0.0, 0.0
        for count, offer in enumerate(offers, start=1):
            reads += offer.reads
            gain += offer.chance
            price = num_sessions * (predict(rows + count, reads) - before) / bare if bare else 0.0
            if price > DEAREST * count and not self.cost.tried(rows + count):
                price = DEAREST * count
            if gain - price >= best_worth or not offer.session.request.fill:
                best, best_worth = count, gain - price
        return best

    def settle(self, parts: Sequence[Progress], spared: Mapping[int, float] = NOBODY_SPARED) -> None:
        """A step is over and brought its sessions this. `spared` as in `Batch`."""
        if not any(part.num_outputs > 1 for part in parts):
            for part in parts:
                session = part.session
                session.balance = min(MOST_SAVED, session.balance + self.max_slowdown)
            return
        weights = [part.num_drafts * self._weight(part.session) for part in parts]
        writing = [part.session for part in parts if part.num_outputs]
        num_drafts = sum(part.num_drafts for part in parts)
        reads = sum(part.num_drafts * self._row_reads(part.session) for part in parts)
        total = self._longer(writing, num_drafts, reads)
        price = total / sum(weights)  # for a second of weight
        bare = self._bare([part.session for part in parts if part.session.key not in spared])
        for part, weight in zip(parts, weights, strict=True):
            session, num_won = part.session, part.num_won
            if part.num_outputs and (session.promised or num_won):
                session.kept.add(num_won, session.promised)
            lost = (total - price * weight) / bare if bare else 0.0
            lost *= 1.0 - spared.get(session.key, 0.0)
            session.balance = min(MOST_SAVED, session.balance + num_won + self.max_slowdown - lost)

    def _bare(self, sessions: Sequence[VerifySession]) -> float:
        """Seconds of a step of nothing but their tips."""
        return self.cost.predict(len(sessions), self._reads(sessions))

    def _reads(self, sessions: Sequence[VerifySession]) -> float:
        """KV slots that their tips read."""
        return float(sum(len(session.lease.slots) for session in sessions)) if self.cost.per_read else 0.0

    def _row_reads(self, session: VerifySession) -> float:
        """KV slots that one more row of it reads."""
        return len(session.lease.slots) / self.rows_per_read

    def _weight(self, session: VerifySession) -> float:
        """Seconds that a row of it takes by the line, above 0 (`Offer.weight`)."""
        return max(self.cost.more(1, self._row_reads(session)), LEAST_WEIGHT)

    def _longer(self, decoding: Sequence[VerifySession], num_rows: int, reads: float) -> float:
        """Seconds by which so many more rows make a step of their tips longer."""
        rows, before = len(decoding), self._reads(decoding)
        longer = self.cost.predict(rows + num_rows, before + reads) - self.cost.predict(rows, before)
        return max(0.0, longer)

    def _added(self, offers: Sequence[Offer], decoding: Sequence[VerifySession]) -> float:
        """Seconds that these add to a step of the tips of `decoding`."""
        return self._longer(decoding, len(offers), sum(offer.reads for offer in offers))

    def _price(self, offers: Sequence[Offer], decoding: Sequence[VerifySession]) -> float:
        """Seconds that these add to the step, for each second of their weights."""
        if not offers:
            return 0.0
        return self._added(offers, decoding) / sum(offer.weight for offer in offers)

    def _offers(self, session: VerifySession, most: int) -> list[Offer]:
        """Its likeliest nodes, `most` at most: each as likely as it says itself, and as it was right so
        far."""
        nodes, key = session.step_nodes(), session.key
        reads, weight = self._row_reads(session), self._weight(session)
        if not session.request.fill:
            return [Offer(0.0, node.id, key, session, node, 0.0, reads, weight) for node in nodes[:most]]
        doubt = -math.log(min(max(session.kept.ratio, LEAST_TRUST), 1.0))
        dear = 0.0
        if self.cost.per_read and self.cost.per_row:
            dear = math.log(self.cost.more(1, reads) / self.cost.per_row)
        worth = session.tree.worth
        likeliest = sorted((doubt - worth(node), node.id, node) for node in nodes)[:most]
        return [
            Offer(unlikely + dear, node_id, key, session, node, math.exp(-unlikely), reads, weight)
            for unlikely, node_id, node in likeliest
        ]


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
