"""Guess with the engine's own drafter: when, how deep, and what the guesses are worth.

Between two steps the drafter may propose nodes below each session's tip. They obey the same noise, the same
budget of rows and the same commit walk as the edge's nodes. Guessing takes time, so it must win more tokens
than the next step alone would write in that time. How many it wins depends on what the tree holds already:
below the tip of a good and near edge, next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cloud_verifier.core.cost import StepCost
from cloud_verifier.core.nouns import Followers, GuessPlan, GuessResult
from common.calibration import Beliefs, Calibration, promised
from common.tree import Node, SpeculationTree

if TYPE_CHECKING:
    from cloud_verifier.core.session import StepProgress, VerifySession

WIDTH = 2
"""Nodes of one level whose followers are sought. The drafter computes two rows in the time of one."""

LEAST = math.log(0.01)  # paths less likely than this, seen from the tip, do not enter the tree
SURE = 4  # decisions in a row against guesses, after which steps follow each other without asking
PROBE = 32  # steps without guesses after which some are tried again
PROBE_DEPTH = 2
SCALE = (0.0, 0.5, 1.5)
"""Tokens that the nodes in a tree promise beyond the first, at least, by coverage: none, few, many."""

PRIOR = ((0.6, 0.65), (0.3, 0.7), (0.1, 0.7))
"""Tokens that the first level wins before it is measured, by coverage; the factor of each further level."""

NOT_ASKED = (-1, 0, 0)

WEIGHT = 6.0  # steps that an expectation counts for
FADE = 0.5 ** (1 / 40)  # of old steps, with each new one
LEAST_WIN = 1e-3  # tokens; a level that wins less says nothing about the next


class Wins:
    """Estimates the tokens that each level of guesses wins in a step, by the coverage of the tree (`SCALE`).

    What is known of a level fades while it is not tried. Then it counts as the level above promises it: less
    by the factor between their means over all sessions, `shared`, which learn with this one.
    """

    def __init__(self, depth: int, shared: Wins | None = None) -> None:
        self._shared = shared
        self._won = [[0.0] * depth for _ in PRIOR]  # tokens, by coverage and level
        self._steps = [[0.0] * depth for _ in PRIOR]
        self._means = [list[float]() for _ in PRIOR]  # by coverage, when asked for

    def means(self, coverage: int) -> list[float]:
        """Return the tokens that each level wins in a step, in a tree of this coverage."""
        if not self._means[coverage]:
            first, factor = PRIOR[coverage]
            before = self._shared.means(coverage) if self._shared is not None else None
            found, expected = list[float](), first if before is None else before[0]
            for level, (won, steps) in enumerate(
                zip(self._won[coverage], self._steps[coverage], strict=True)
            ):
                if level and before is not None:
                    factor = min(before[level] / max(before[level - 1], LEAST_WIN), 1.0)
                if level:
                    expected = found[-1] * factor
                found.append((won + WEIGHT * expected) / (steps + WEIGHT))
            self._means[coverage] = found
        return self._means[coverage]

    def note(self, coverage: int, depth: int, won: Mapping[int, int]) -> None:
        """Learn from a step with guesses of `depth` levels; `won` holds its tokens by level."""
        for level in range(len(self._won[coverage])):
            tried = level < depth
            self._won[coverage][level] = FADE * self._won[coverage][level] + (
                won.get(level, 0) if tried else 0
            )
            self._steps[coverage][level] = FADE * self._steps[coverage][level] + tried
        self._means[coverage] = []
        if self._shared is not None:
            self._shared.note(coverage, depth, won)


class OwnGuesses:
    """Keeps the own drafter's guesses in one session's tree. Driven by `VerifySession`.

    Args: tree; calibration, of the drafter's scores; last_position, where a guess would save no step.
    """

    def __init__(
        self, tree: SpeculationTree, calibration: Calibration, last_position: int, wins: Wins
    ) -> None:
        self.calibration = calibration
        self.wins = wins
        self.asked = NOT_ASKED  # tip id, depth and coverage of the tree when guesses were last asked for
        self._tree = tree
        self._last = last_position
        self._said: dict[int, Followers] = {}  # by node id
        self._guessed: set[int] = set()  # ids of nodes that the drafter holds for possible, too
        self._made: set[int] = set()  # ids of nodes that only it has proposed when it did

    def take(self, guesses: Sequence[Followers]) -> int:
        """Grow the tree by what the drafter says, likely paths only. Return the number of new nodes."""
        tree, before = self._tree, self._tree.num_speculative
        live = tree.live
        self._said = {node: said for node, said in self._said.items() if node in live}
        self._guessed, self._made = self._guessed & live.keys(), self._made & live.keys()
        for said in guesses:
            node = self._at(said.path)
            if node is None or node.position + 1 >= self._last:
                continue
            self._said[node.id] = said
            least = LEAST - tree.worth(node)
            for token, logprob in zip(
                said.tokens, promised(self.calibration.confidence, said.scores), strict=True
            ):
                if logprob < least:
                    break
                known = token in node.children
                child = tree.grow(node, token, logprob).id
                self._guessed.add(child)
                if not known:
                    self._made.add(child)
        return tree.num_speculative - before

    def observe(self, token: int) -> None:
        """Learn that the target writes `token` after the tip, before the tip moves."""
        said = self._said.pop(self._tree.tip.id, None)
        if said is not None:
            self.calibration.observe(said.scores, said.tokens.index(token) if token in said.tokens else None)

    def guessed(self, node: Node) -> bool:
        """Return whether the drafter has proposed this node, alone or as well as others."""
        return node.id in self._guessed

    def made(self, node: Node) -> bool:
        """Return whether the node would not be there without the drafter."""
        return node.id in self._made and not node.wire_id

    @property
    def coverage(self) -> int:
        """How well nodes of others cover the text after the tip now, as a step of `SCALE`."""
        tree = self._tree
        promise = sum(math.exp(tree.worth(node)) for node in tree.speculative() if not self.made(node))
        return sum(1 for least in SCALE[1:] if promise >= least) if promise else 0

    def settle(self, part: StepProgress) -> int:
        """Learn from a finished step what the guesses before it have won; return that in tokens."""
        tip, depth, coverage = self.asked
        if tip < 0 or part.lost or not part.tokens:
            return 0
        self.asked = NOT_ASKED
        won = won_by_level(part.made, len(part.tokens))
        self.wins.note(coverage, depth, won)
        return sum(won.values())

    def _at(self, path: Sequence[int]) -> Node | None:
        node = self._tree.tip
        for token in path:
            child = node.children.get(token)
            if child is None:
                return None
            node = self._tree.live[child]
        return node


def won_by_level(made: int, num_tokens: int) -> dict[int, int]:
    """Return the tokens that each level of guesses won, from a step of `num_tokens` tokens.

    Bit i of `made`: token i, of level i, was in the tree by the drafter alone. Without that level the text
    would have gone on to token i, which the target writes anyway, and stopped. So the level won the tokens
    after it, up to the one before the next such level. The last token is no node that was evaluated.
    """
    won, level = dict[int, int](), -1
    for place in range(num_tokens - 1):
        if made >> place & 1:
            level = place
        if level >= 0:
            won[level] = won.get(level, 0) + 1
    return won


class GuessedTime(NamedTuple):
    """Holds guesses under way."""

    sessions: tuple[VerifySession, ...]  # one an item of the plan
    began_at: float
    depth: int
    lost: float  # tokens that each session could have had meanwhile


class Guessing:
    """Plans the guesses of all sessions. Args: depth, most levels of the drafter; 0: there is none."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.cost = StepCost(0.001, 0.001)  # its rows are levels, its reads are nodes
        self.wins = Wins(depth)
        self.beliefs = Beliefs()
        self.running: GuessedTime | None = None
        self._quiet = 0  # steps since guesses were last asked for

    def begin(self, session: VerifySession) -> None:
        """Give a new session a place for guesses."""
        if self.depth and session.request.fill:
            calibration = Calibration(self.beliefs.before(session.request.sampling))
            session.own = OwnGuesses(
                session.tree, calibration, session.max_length - 1, Wins(self.depth, self.wins)
            )

    def end(self, session: VerifySession) -> None:
        """Learn from a session that has ended."""
        if session.own is not None:
            self.beliefs.learn(session.request.sampling, session.own.calibration)

    @property
    def takes_turns(self) -> bool:
        """Whether the next step should wait for a decision. If guesses did not pay lately, it need not."""
        return self.depth > 0 and not SURE <= self._quiet < PROBE

    def passed_over(self) -> None:
        """Note that the engine went from a step to the next one without asking."""
        self._quiet += self._quiet > 0

    def stop(self) -> None:
        """Ask for no more guesses: the drafter has failed."""
        self.depth, self.running = 0, None

    def plan(self, ready: Sequence[VerifySession], bare: float, now: float) -> GuessPlan | None:
        """Return what to guess before the next step, or None. The step's tips alone take `bare` seconds."""
        asking = [each for each in ready if each.own is not None and each.own.asked[0] != each.tree.tip.id]
        decoding = [each for each in asking if not each.num_prefill and not each.dear_masks]
        coverages = {session.key: session.own.coverage for session in decoding if session.own is not None}
        depth, lost = self._best_depth(decoding, coverages, len(ready), bare)
        items = list(_reading(asking))
        if depth:
            self._quiet = 0
            items += [(session, depth) for session in decoding]
        elif decoding:
            self._quiet += 1
        if not items:
            return None
        for session, levels in items:
            assert session.own is not None, "it asks"
            session.own.asked = (
                (session.tree.tip.id, levels, coverages.get(session.key, 0)) if levels else NOT_ASKED
            )
        self.running = GuessedTime(tuple(session for session, _ in items), now, depth, lost)
        return GuessPlan(tuple(session.guess_item(levels, WIDTH) for session, levels in items))

    def take(self, result: GuessResult, ended_at: float) -> int:
        """Put the guesses into the trees of sessions that are still there. Return the number of new nodes."""
        assert self.running is not None, "asked for"
        running, self.running = self.running, None
        grown = 0
        num_nodes = sum(len(guesses) for guesses in result.guesses)
        if running.depth:
            self.cost.sample(running.depth, num_nodes, ended_at - running.began_at)
        for session, guesses in zip(running.sessions, result.guesses, strict=True):
            session.account.settle(0, 0.0, running.lost)
            if not session.ended and session.own is not None:
                grown += session.own.take(guesses)
        return grown

    def settle(self, parts: Sequence[StepProgress]) -> int:
        """Learn what guesses have won in a finished step; return that in tokens."""
        return sum(part.session.own.settle(part) for part in parts if part.session.own is not None)

    def _best_depth(
        self, decoding: Sequence[VerifySession], coverages: Mapping[int, int], num_ready: int, bare: float
    ) -> tuple[int, float]:
        """Return the levels at which all sessions together write most per second, and the tokens that each
        session could have had in the time of guessing; 0 for none."""
        if not decoding or not self.depth or bare <= 0:
            return 0, 0.0
        gains = [0.0] * self.depth
        known = float(num_ready)
        for session in decoding:
            assert session.own is not None, "it asks"
            coverage = coverages[session.key]
            known += SCALE[coverage]
            gains = [sum(each) for each in zip(gains, session.own.wins.means(coverage), strict=True)]
        best, best_rate, tokens = 0, known / bare, known
        for level in range(self.depth):
            tokens += gains[level]
            rate = tokens / (bare + self._time(level + 1, len(decoding)))
            if rate > best_rate:
                best, best_rate = level + 1, rate
        if not best and self._quiet >= PROBE:
            best = min(PROBE_DEPTH, self.depth)
        lost = self._time(best, len(decoding)) / bare if best else 0.0
        if num_ready > 1 and any(session.account.balance < lost for session in decoding):
            return 0, 0.0  # somebody would lose by the guesses of others
        return best, lost if num_ready > 1 else 0.0

    def _time(self, depth: int, num_sessions: int) -> float:
        nodes = num_sessions * (1 + WIDTH * (depth - 1))
        return max(0.0, self.cost.predict(depth, nodes))


def _reading(sessions: Sequence[VerifySession]) -> Iterator[tuple[VerifySession, int]]:
    """Yield the sessions whose prompts the drafter reads as the target does, with depth 0."""
    return ((session, 0) for session in sessions if session.num_prefill and len(session.lease.slots))
