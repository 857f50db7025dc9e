"""Guess with the engine's own drafter: when, how deep, and what the guesses are worth.

Between two steps the drafter may propose nodes below each session's tip. They obey the same noise, the same
budget of rows and the same commit walk as the edge's nodes. Guessing takes time, so it must win more tokens
than the sessions write in that time at their pace. How many it wins depends on what the tree holds already:
below the tip of a good and near edge, next to nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cloud_verifier.core.nouns import GuessPlan, GuessResult
from cloud_verifier.core.own_guesses import SCALE, OwnGuesses, Wins
from cloud_verifier.core.session import StepProgress, VerifySession
from common.calibration import Beliefs, Calibration
from common.estimators import RatioEstimator

WIDTH = 2
"""Nodes of one level whose followers are sought. The drafter computes two rows in the time of one."""

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
    """Plans the guesses of all sessions. Args: depth, most levels of the drafter; 0: there is none."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.level_time = RatioEstimator(prior=0.001, prior_weight=0.1, half_life=100.0)  # seconds
        self.wins = Wins(depth)
        self.beliefs = Beliefs()
        self.running: GuessedTime | None = None
        self.time_spent = 0.0  # seconds, since the last step
        self._quiet = 0  # steps since guesses were last asked for
        self._saved = [0.0] * len(SCALE)  # tokens that a try may lose a session, by coverage
        self._income = 0.0  # of that, by a step without guesses
        self._num_begun = 0  # sessions, since something was last decided
        self._try_cost = 0.0  # tokens that a try loses a session, as far as is known

    def begin(self, session: VerifySession) -> None:
        """Give a new session a place for guesses."""
        if self.depth and session.request.fill:
            self._num_begun += 1
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
        return self.depth > 0 and not (self._quiet >= SURE and self._saved[0] < self._try_cost)

    def passed_over(self) -> None:
        """Note that the engine went from a step to the next one without asking, so with nothing to evaluate
        but tips."""
        if self._quiet:
            self._decided((0,), NO_GUESSES)

    def stop(self) -> None:
        """Ask for no more guesses: the drafter has failed."""
        self.depth, self.running = 0, None

    def plan(self, ready: Sequence[VerifySession], bare: float, now: float) -> GuessPlan | None:
        """Return what to guess before the next step, or None. The step's tips alone take `bare` seconds."""
        asking = [
            each for each in ready if each.own is not None and each.own.decision.tip != each.tree.tip.id
        ]
        decoding = [
            each for each in asking if not each.num_prefill and not each.dear_masks and each.guess_room > 0
        ]
        coverages = {session.key: session.own.coverage for session in decoding if session.own is not None}
        seen = set(coverages.values())
        price = self._price(ready, coverages, bare, now)
        best, try_cost = self._best_depth(decoding, coverages, price)
        if decoding:
            self._income, self._try_cost = TRYING * price * bare / len(ready), try_cost
            self._save(range(len(SCALE)), FREE * self._num_begun / len(ready))
            self._num_begun = 0
        pays = best.depth > 0
        if not pays and any(self._saved[each] >= self._try_cost for each in seen):
            depth = min(TRIED_DEPTH, self.depth)
            best = BestDepth(depth, depth)
        lost = best.num_run * self.level_time.ratio / bare if len(ready) > 1 and bare else 0.0
        if any(session.account.balance < lost for session in decoding):
            best, lost = NO_GUESSES, 0.0  # somebody would lose by the guesses of others
        self._decided(seen, best, pays)
        for session in decoding:
            assert session.own is not None, "it asks"
            session.own.ask(best.depth, coverages[session.key])
        items = list(_reading(asking))
        if best.depth:
            items += [(session, best.depth) for session in decoding]
        if not items:
            return None
        self.running = GuessedTime(tuple(session for session, _ in items), now, best.depth > 0, lost)
        given = tuple(session.guess_item(levels, WIDTH) for session, levels in items)
        return GuessPlan(given, best.least_gain)

    def take(self, result: GuessResult, ended_at: float) -> int:
        """Put the guesses into the trees of sessions that are still there. Return the number of new nodes."""
        assert self.running is not None, "asked for"
        running, self.running = self.running, None
        grown = 0
        time = ended_at - running.began_at
        self.time_spent += time
        if running.is_guessing and result.num_read <= FEW_READ * len(running.sessions):
            self.level_time.add(time, result.num_levels)
        for session, guesses in zip(running.sessions, result.guesses, strict=True):
            session.account.settle(0, 0.0, running.lost)
            if not session.ended and session.own is not None:
                session.own.num_run = result.num_levels
                grown += session.own.take(guesses)
        return grown

    def settle(self, parts: Sequence[StepProgress], time: float, row_price: float) -> int:
        """Learn what guesses have won in a finished step; return that in tokens. `time` is what
        `SpeculationBudget.note_pace` returned; `row_price` is what one of its draft rows costs all sessions,
        in tokens."""
        self.time_spent = 0.0
        return sum(
            part.session.own.settle(
                part.made, 0 if part.lost else len(part.tokens), time, part.made_rows, row_price
            )
            for part in parts
            if part.session.own is not None
        )

    @staticmethod
    def _price(
        ready: Sequence[VerifySession], coverages: Mapping[int, int], bare: float, now: float
    ) -> float:
        """Return the tokens that a second costs the sessions together.

        While an edge drafts, the time is not lost: its nodes will be more. It costs the token of a bare step.
        A session whose tree holds nothing, and for which nothing is due before the next step ends, loses what
        it writes between drafts.
        """
        if not bare:
            return 0.0
        alone = [
            session.own.uncovered.ratio
            for session in ready
            if session.own and coverages.get(session.key) == 0 and not session.awaited.is_due_by(now + bare)
        ]
        return (len(ready) + sum(max(0.0, tokens - 1.0) for tokens in alone)) / bare

    def _best_depth(
        self, decoding: Sequence[VerifySession], coverages: Mapping[int, int], price: float
    ) -> tuple[BestDepth, float]:
        """Return the levels that win most, less the tokens that all could have in the time of guessing, of
        which a second costs `price`, and of the rows; and the tokens that a try would lose a session."""
        price *= self.level_time.ratio
        best, best_net, won, cost, num_run, try_cost = NO_GUESSES, 0.0, 0.0, 0.0, 0.0, 0.0
        means = [session.own.wins.means(coverages[session.key]) for session in decoding if session.own]
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
        for each in coverages:
            if not best.depth:
                self._save((each,), self._income)
            elif not pays:
                self._saved[each] -= self._try_cost

    def _save(self, coverages: Iterable[int], tokens: float) -> None:
        """Let tries for trees of these coverages lose so many tokens more, up to the loss of one and FREE."""
        for each in coverages:
            self._saved[each] = min(self._saved[each] + tokens, FREE + self._try_cost)


def _reading(sessions: Sequence[VerifySession]) -> Iterator[tuple[VerifySession, int]]:
    """Yield the sessions whose prompts the drafter reads as the target does, with depth 0."""
    return ((session, 0) for session in sessions if session.num_prefill and len(session.lease.slots))
