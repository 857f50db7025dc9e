"""Plan the guesses of a verifier's own drafter: when, how deep, and what the guesses are worth.

Guessing takes time, so it must win more tokens than the sessions write in that time at their pace. How many
it wins depends on what the tree holds already: below the tip of a good and near edge, next to nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cloud_verifier.core.draft_account import new_pace
from cloud_verifier.core.engine_protocol import Followers, GuessItem, GuessPlan, GuessResult
from cloud_verifier.core.ledger import VerifierCounters
from cloud_verifier.core.sources import VerifierSource
from cloud_verifier.core.verify_session import StepProgress, VerifySession
from common.calibration import Beliefs, Calibration, promised
from common.estimators import RatioEstimator
from common.tree import Node, SpeculationTree

LEAST = math.log(0.01)  # paths less likely than this, seen from the tip, do not enter the tree

SCALE = (0.0, 0.5, 1.5)
"""Tokens that the nodes in a tree promise beyond the first, at least, by coverage: none, few, many."""

PRIOR = ((0.6, 0.65), (0.3, 0.7), (0.1, 0.7))
"""Tokens that the first level wins before it is measured, by coverage; the factor of each further level."""

WEIGHT = 6.0  # steps that an expectation counts for
FADE = 0.5 ** (1 / 40)  # of old steps, with each new one
LEAST_WIN = 1e-3  # tokens; a level that wins less says nothing about the next


class Decision(NamedTuple):
    """Holds what was decided before a step."""

    tip: int = -1  # id; -1: nothing was asked
    depth: int = 0  # levels to guess; 0: none
    coverage: int = 0  # of the tree by others' nodes


UNASKED = Decision()


class LevelMean(NamedTuple):
    """Holds what a level of guesses does on average in a step for which it is allowed."""

    won: float  # tokens
    cost: float  # tokens that all sessions could have had in the time of its rows
    run: float  # share of steps in which the guess reaches it (`GuessPlan.least_gain`)


@dataclass(slots=True)
class LevelTally:
    """Adds up what a level of guesses did; old steps fade."""

    won: float = 0.0  # as in `LevelMean`
    cost: float = 0.0
    run: float = 0.0  # steps in which the guess reached it
    allowed: float = 0.0  # steps for which it was allowed

    def note(self, won: float, cost: float, run: bool, allowed: bool) -> None:
        self.won = FADE * self.won + won
        self.cost = FADE * self.cost + cost
        self.run = FADE * self.run + run
        self.allowed = FADE * self.allowed + allowed

    def mean(self, expected: LevelMean) -> LevelMean:
        weight = self.allowed + WEIGHT
        return LevelMean(
            (self.won + WEIGHT * expected.won) / weight,
            (self.cost + WEIGHT * expected.cost) / weight,
            (self.run + WEIGHT * expected.run) / weight,
        )


class Wins:
    """Estimates what each level of guesses wins in a step, by the coverage of the tree (`SCALE`).

    What is known of a level fades while it is not allowed. Then it counts as the level above promises it:
    less by the factor between their means over all sessions, `shared`, which learn with this one.
    """

    def __init__(self, depth: int, shared: Wins | None = None) -> None:
        self._shared = shared
        self._tallies = [[LevelTally() for _ in range(depth)] for _ in PRIOR]
        self._means = [list[LevelMean]() for _ in PRIOR]  # by coverage, when asked for

    def means(self, coverage: int) -> list[LevelMean]:
        """Return the means of all levels in a tree of this coverage."""
        if not self._means[coverage]:
            first, factor = PRIOR[coverage]
            before = self._shared.means(coverage) if self._shared is not None else None
            means = list[LevelMean]()
            expected = LevelMean(first, 0.0, 1.0) if before is None else before[0]
            for level, tally in enumerate(self._tallies[coverage]):
                if level and before is not None:
                    factor = min(before[level].won / max(before[level - 1].won, LEAST_WIN), 1.0)
                    expected = before[level]._replace(won=means[-1].won * factor)
                elif level:
                    expected = means[-1]._replace(won=means[-1].won * factor)
                means.append(tally.mean(expected))
            self._means[coverage] = means
        return self._means[coverage]

    def note(
        self, coverage: int, depth: int, run: int, won: Mapping[int, int], cost: Mapping[int, float]
    ) -> None:
        """Learn from a step with guesses of at most `depth` levels, which ended after `run`; `won` and `cost`
        are as in `LevelMean`, by level."""
        for level, tally in enumerate(self._tallies[coverage]):
            allowed = level < depth
            tally.note(won.get(level, 0) * allowed, cost.get(level, 0.0) * allowed, level < run, allowed)
        self._means[coverage] = []
        if self._shared is not None:
            self._shared.note(coverage, depth, run, won, cost)


class OwnGuesses(VerifierSource):
    """Keeps the own drafter's guesses in one session's tree. Driven by the session and by `Guessing`.

    Args: tree; calibration, of the drafter's scores; last_position, where a guess would save no step; wins.
    """

    def __init__(
        self, tree: SpeculationTree, calibration: Calibration, last_position: int, wins: Wins
    ) -> None:
        self.calibration = calibration
        self.wins = wins
        self.decision = UNASKED  # before the step to come
        self.num_run = 0  # levels that the last guess reached
        self._tree = tree
        self._last = last_position
        self._said: dict[int, Followers] = {}  # by node id
        self._guessed: set[int] = set()  # ids of nodes that the drafter holds for possible, too
        self._made: dict[int, bool] = {}  # by id of nodes that only it has proposed: see `made`
        self._written: list[bool] = []  # of each token of the last step: see `won_by_level`
        self._rows: list[int] = []  # of it, the levels of the rows that it would not have had without guesses
        self._newest = next(reversed(tree.live))  # id of the newest node at that decision
        self.uncovered = new_pace()  # of steps before which nodes of others covered nothing

    def ask(self, depth: int, coverage: int) -> None:
        """Note a decision for guesses of so many levels, in a tree of this coverage; depth 0: for none."""
        self.decision = Decision(self._tree.tip.id, depth, coverage)
        self._newest = next(reversed(self._tree.live))

    def take(self, guesses: Sequence[Followers]) -> int:
        """Grow the tree by what the drafter says, likely paths only. Return the number of new nodes."""
        tree, before = self._tree, self._tree.num_speculative
        live = tree.live
        self._said = {node: followers for node, followers in self._said.items() if node in live}
        self._guessed &= live.keys()
        self._made = {node: late for node, late in self._made.items() if node in live}
        for followers in guesses:
            node = self._at(followers.path)
            if node is None or node.position + 1 >= self._last:
                continue
            self._said[node.id] = followers
            least = LEAST - tree.worth(node)
            logprobs = promised(self.calibration.confidence, followers.scores)
            for token, logprob in zip(followers.tokens, logprobs, strict=True):
                if logprob < least:
                    break
                known = token in node.children
                child = tree.grow(node, token, logprob)
                self._guessed.add(child.id)
                if not known or child.id > self._newest:
                    self._made[child.id] = known
        return tree.num_speculative - before

    def proposed(self, node: Node) -> bool:
        return node.id in self._guessed

    def learn(self, node: int, token: int) -> None:
        followers = self._said.pop(node, None)
        if followers is not None:
            known = token in followers.tokens
            self.calibration.observe(followers.scores, followers.tokens.index(token) if known else None)
        live = self._tree.live
        child = live.get(live[node].children.get(token, 0))
        self._written.append(child is not None and self.made(child))

    def forget(self, tree: SpeculationTree, nodes: Sequence[Node]) -> None:
        """Note the levels of those of a step's nodes that are `made`; none if no guesses were asked for: only
        guesses pay for rows."""
        if self.decision.depth:
            self._rows = [node.position - nodes[0].position - 1 for node in nodes[1:] if self.made(node)]

    def made(self, node: Node) -> bool:
        """Return whether the next step would not have the node without the drafter. A node that an edge
        proposed while the drafter ran would have come too late."""
        came_late = self._made.get(node.id)
        return came_late is not None and (came_late or not node.wire_id)

    @property
    def coverage(self) -> int:
        """How well nodes of others cover the text after the tip now, as a step of `SCALE`."""
        tree = self._tree
        others = (node for node in tree.speculative() if node.wire_id or node.id not in self._made)
        promise = sum(math.exp(tree.worth(node)) for node in others)
        return sum(1 for least in SCALE[1:] if promise >= least) if promise else 0

    def settle(self, time: float, row_price: float) -> int:
        """Learn from a finished step what the guesses before it have won; return that in tokens.

        Arguments as of `OwnDrafter.settle`.
        """
        written, rows = self._written, self._rows
        if not written:
            return 0
        self._written, self._rows = [], []
        (_, depth, coverage), self.decision = self.decision, UNASKED
        if not coverage:
            self.uncovered.add(len(written), time)
        if not depth:
            return 0
        won = won_by_level(written)
        cost = {level: row_price * count for level, count in Counter(rows).items()}
        self.wins.note(coverage, depth, min(self.num_run, depth), won, cost)
        return sum(won.values())

    def _at(self, path: Sequence[int]) -> Node | None:
        node = self._tree.tip
        for token in path:
            child = node.children.get(token)
            if child is None:
                return None
            node = self._tree.live[child]
        return node


def won_by_level(made: Sequence[bool]) -> dict[int, int]:
    """Return the tokens that each level of guesses won, from a step with one or more tokens.

    `made[i]`: token i, of level i, was in the tree by the drafter alone. Without that level the text would
    have gone on to token i, which the target writes anyway, and stopped. So the level won the tokens after
    it, up to the one before the next such level. The last token is no node that was evaluated.
    """
    won, level = dict[int, int](), -1
    for place, is_made in enumerate(made[:-1]):
        if is_made:
            level = place
        if level >= 0:
            won[level] = won.get(level, 0) + 1
    return won


WIDTH, NARROW = 8, 2
"""Most nodes of one level whose followers are sought: alone, and where an edge's nodes cover the text."""

LEAST_FOLLOWED = 0.02
"""Least chance of such a node. What follows a less likely one hardly ever enters a step's few rows."""


SURE = 4  # decisions in a row against guesses, after which steps follow each other without asking
TRIED_DEPTH = 2
FREE, TRYING = 0.25, 0.01
"""Where guesses do not seem to pay, some are tried: the tokens that tries may lose a session when it begins,
since its text may be of another kind, and from then on as a share of those written without guesses."""

LEAST_LOSS = 0.5
"""Share of its cost that a try counts as lost at least: what it wins is little known."""

FEW_READ = 16  # rows a session; a guess that had to read more says nothing about the time of a level


class GuessedTime(NamedTuple):
    """Holds guesses under way."""

    sessions: tuple[VerifySession, ...]  # one an item of the plan
    began_at: float
    is_guessing: bool  # not only reading
    lost: float  # tokens that each session could have had meanwhile


class BestDepth(NamedTuple):
    """Holds how deep to guess; 0: not at all."""

    depth: int
    num_run: float  # levels that will be reached on average
    least_gain: float = 0.0  # as in `GuessPlan`


NO_GUESSES = BestDepth(0, 0.0)


class Guessing:
    """Plans guesses where they pay (an `OwnDrafter`).

    Args: depth, most levels of the drafter; counters, of guesses.
    """

    def __init__(self, depth: int, counters: VerifierCounters) -> None:
        self.depth = depth
        self.level_time = RatioEstimator(prior=0.001, prior_weight=0.1, half_life=100.0)  # seconds
        self.row_price = RatioEstimator(prior=0.05, prior_weight=10.0, half_life=100.0)  # tokens of all
        self.wins = Wins(depth)
        self.beliefs = Beliefs()
        self.own: dict[int, OwnGuesses] = {}  # by key of each open session that may get guesses
        self.is_due = False
        self.time_spent = 0.0
        self._counters = counters
        self._running: GuessedTime | None = None
        self._quiet = 0  # steps since guesses were last asked for
        self._saved = [0.0] * len(SCALE)  # tokens that a try may lose a session, by coverage
        self._income = 0.0  # of that, by a step without guesses
        self._num_begun = 0  # sessions, since something was last decided
        self._try_cost = 0.0  # tokens that a try loses a session, as far as is known

    def begin(self, session: VerifySession) -> None:
        if self.depth and session.request.fill:
            self._num_begun += 1
            calibration = Calibration(self.beliefs.before(session.request.sampling))
            wins = Wins(self.depth, self.wins)
            self.own[session.key] = OwnGuesses(session.tree, calibration, session.max_length - 1, wins)
            session.add_source(self.own[session.key])

    def end(self, session: VerifySession) -> None:
        if (own := self.own.pop(session.key, None)) is not None:
            self.beliefs.learn(session.request.sampling, own.calibration)

    @property
    def is_running(self) -> bool:
        return self._running is not None

    @property
    def takes_turns(self) -> bool:
        return self.depth > 0 and not (self._quiet >= SURE and self._saved[0] < self._try_cost)

    def on_failed(self) -> None:
        self.depth, self._running, self.is_due = 0, None, False

    def plan(self, ready: Sequence[VerifySession], bare: float, now: float) -> GuessPlan | None:
        self.is_due = False
        asking = [session for session in ready if self._asks(session)]
        decoding = [
            session
            for session in asking
            if not session.num_prefill and not session.masks.dear and _room(session) > 0
        ]
        coverages = {session.key: self.own[session.key].coverage for session in decoding}
        seen = set(coverages.values())
        price = self._price(ready, coverages, bare, now)
        best, try_cost = self._best_depth(decoding, coverages, price)
        if decoding:
            self._income, self._try_cost = TRYING * price * bare / len(ready), try_cost
            self._save(range(len(SCALE)), FREE * self._num_begun / len(ready))
            self._num_begun = 0
        pays = best.depth > 0
        if not pays and any(self._saved[coverage] >= self._try_cost for coverage in seen):
            depth = min(TRIED_DEPTH, self.depth)
            best = BestDepth(depth, depth)
        lost = best.num_run * self.level_time.ratio / bare if len(ready) > 1 and bare else 0.0
        if any(session.account.balance < lost for session in decoding):
            best, lost = NO_GUESSES, 0.0  # somebody would lose by the guesses of others
        self._decided(seen, best, pays)
        for session in decoding:
            self.own[session.key].ask(best.depth, coverages[session.key])
        items = list(_reading(asking))
        if best.depth:
            items += [(session, best.depth) for session in decoding]
        if not items:
            return None
        sessions = tuple(session for session, _ in items)
        self._running = GuessedTime(sessions, now, best.depth > 0, lost)
        return GuessPlan(tuple(self._item(session, levels) for session, levels in items), best.least_gain)

    def on_guessed(self, result: GuessResult, ended_at: float) -> None:
        assert self._running is not None, "asked for"
        running, self._running = self._running, None
        time = ended_at - running.began_at
        self.time_spent += time
        if running.is_guessing and result.num_read <= FEW_READ * len(running.sessions):
            self.level_time.add(time, result.num_levels)
        for session, guesses in zip(running.sessions, result.guesses, strict=True):
            session.account.settle(0, 0.0, running.lost)
            if (own := self.own.get(session.key)) is not None:
                own.num_run = result.num_levels
                self._counters.num_guessed += own.take(guesses)

    def settle(self, parts: Sequence[StepProgress], time: float, row_price: float, has_next: bool) -> None:
        self.time_spent, self.is_due = 0.0, self.depth > 0
        self.row_price.add(row_price * (num_drafts := sum(part.num_drafts for part in parts)), num_drafts)
        for part in parts:
            if (own := self.own.get(part.session.key)) is not None:
                self._counters.num_guesses_won += own.settle(time, row_price)
        if has_next and self._quiet:  # with nothing to evaluate but tips
            self._decided((0,), NO_GUESSES)

    def _item(self, session: VerifySession, depth: int) -> GuessItem:
        """Ask for the followers of nodes whose own rows are worth their price: others join no step."""
        position = len(session.lease.slots)
        return GuessItem(
            session.key,
            session.lease.slots.view,
            session.tree.committed[position],
            min(depth, _room(session)),
            NARROW if self.own[session.key].decision.coverage else WIDTH,
            self.own[session.key].calibration.confidence,
            session.request.sampling,
            session.history_to(position),
            least=max(self.row_price.ratio, LEAST_FOLLOWED),
        )

    def _asks(self, session: VerifySession) -> bool:
        """Return whether nothing was decided for the session since its tip moved."""
        own = self.own.get(session.key)
        return own is not None and own.decision.tip != session.tree.tip.id

    def _price(
        self, ready: Sequence[VerifySession], coverages: Mapping[int, int], bare: float, now: float
    ) -> float:
        """Return the tokens that a second costs the sessions together.

        While an edge drafts, the time is not lost: its nodes will be more. It costs the token of a bare step.
        A session whose tree holds nothing, and for which nothing is due before the next step ends, loses what
        it writes between drafts.
        """
        if not bare:
            return 0.0
        alone = [
            self.own[session.key].uncovered.ratio
            for session in ready
            if coverages.get(session.key) == 0 and not session.awaited.is_due_by(now + bare)
        ]
        return (len(ready) + sum(max(0.0, tokens - 1.0) for tokens in alone)) / bare

    def _best_depth(
        self, decoding: Sequence[VerifySession], coverages: Mapping[int, int], price: float
    ) -> tuple[BestDepth, float]:
        """Return the levels that win most, less the tokens that all could have in the time of guessing, of
        which a second costs `price`, and of the rows; and the tokens that a try would lose a session."""
        price *= self.level_time.ratio
        best, best_net, won, cost, num_run, try_cost = NO_GUESSES, 0.0, 0.0, 0.0, 0.0, 0.0
        means = [self.own[session.key].wins.means(coverages[session.key]) for session in decoding]
        for depth, level in enumerate(zip(*means, strict=True), start=1):
            won += sum(mean.won for mean in level)
            cost += sum(mean.cost for mean in level)
            num_run += max(mean.run for mean in level)
            net = won - cost - price * num_run
            if net > best_net:
                best, best_net = BestDepth(depth, num_run, price + cost / num_run), net
            if depth <= TRIED_DEPTH:
                try_cost = max(-net, LEAST_LOSS * (cost + price * num_run)) / len(means)
        return best, try_cost

    def _decided(self, coverages: Collection[int], best: BestDepth, pays: bool = False) -> None:
        """Note a decision for trees of these coverages. Guesses that do not pay use up what is saved."""
        if not coverages:
            return
        self._quiet = 0 if best.depth else self._quiet + 1
        for coverage in coverages:
            if not best.depth:
                self._save((coverage,), self._income)
            elif not pays:
                self._saved[coverage] -= self._try_cost

    def _save(self, coverages: Iterable[int], tokens: float) -> None:
        """Let tries for trees of these coverages lose so many tokens more, up to the loss of one and FREE."""
        for coverage in coverages:
            self._saved[coverage] = min(self._saved[coverage] + tokens, FREE + self._try_cost)


def _room(session: VerifySession) -> int:
    """Return the levels of guesses below the tip that could still save a step."""
    return session.max_length - 2 - len(session.lease.slots)


def _reading(sessions: Sequence[VerifySession]) -> Iterator[tuple[VerifySession, int]]:
    """Yield the sessions whose prompts the drafter reads as the target does, with depth 0."""
    return ((session, 0) for session in sessions if session.num_prefill and len(session.lease.slots))
