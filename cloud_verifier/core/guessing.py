"""Guess with the engine's own drafter: when, how deep, and what the guesses are worth.

Between two steps the drafter may propose nodes below each session's tip. They obey the same noise, the same
budget of rows and the same commit walk as the edge's nodes. Guessing takes time, so it must win more tokens
than the next step alone would write in that time. How many it wins depends on what the tree holds already:
below the tip of a good and near edge, next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cloud_verifier.core.cost import StepCost
from cloud_verifier.core.nouns import GuessPlan, GuessResult
from cloud_verifier.core.own_guesses import NOT_ASKED, SCALE, OwnGuesses, Wins
from cloud_verifier.core.session import StepProgress, VerifySession
from common.calibration import Beliefs, Calibration

WIDTH = 2
"""Nodes of one level whose followers are sought. The drafter computes two rows in the time of one."""

SURE = 4  # decisions in a row against guesses, after which steps follow each other without asking
PROBE = 32  # steps without guesses after which some are tried again
PROBE_DEPTH = 2


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
        return sum(
            part.session.own.settle(part.made, 0 if part.lost else len(part.tokens))
            for part in parts
            if part.session.own is not None
        )

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
