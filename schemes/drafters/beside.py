"""A second draft model beside the draft model (collective boost-tuned drafts: SpecInfer, arXiv 2305.09781).

Both evaluate the rows of each draft step, and the candidates of both meet in one tree: a branch that one
begins is continued by both. The session sees one draft model, whose scores are weighted means of the two.
With the log-probabilities l and m of a token, the noise g that both share with the target, and the share a:

    a (l + g) + (1 - a) (m + g) = (a l + (1 - a) m) + g

So a mean is the score of one more draft under the same noise: the product of experts (Hinton 2002). Scores
of two models differ by a constant of each row, which changes no order of the means. A token that both name
is one candidate. One that a draft does not name has the score of that draft's last candidate, which is above
its own.

The share is learnt from the target's choices: of those that only one draft's best token met, the part that
the first met.

The models compute one after the other: llama.cpp's threads wait for each other in every layer, and each
model has all of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from common.errors import ForerunError
from common.estimators import RatioEstimator
from common.llama.runtime import LlamaRuntime
from edge_client.core.effects import DraftRow, Expansion, ReadingTime, Reroot, StartDrafter
from edge_client.draft.group import DraftGroup, MemberAnswer

logger = logging.getLogger(__name__)


class BesideGroup(DraftGroup):
    """Schedules draft steps as `DraftGroup`, and answers for two models. `other` stays the caller's.

    Both runtimes have the same tokens. Where `other` fails, the draft model goes on alone until the next
    text. Raises `UserError` as `DraftGroup`.
    """

    def __init__(self, runtime: LlamaRuntime, size: int, other: LlamaRuntime) -> None:
        super().__init__(runtime, size)
        self._other = DraftGroup(other, size)
        self._num_shared = min(runtime.num_vocab, other.num_vocab)  # one table may have more padding
        self._ended = (dict[int, MemberAnswer](), dict[int, MemberAnswer]())  # by member, until both have
        self._said = tuple(dict[int, tuple[Expansion, Expansion]]() for _ in range(size))  # by live node
        self._tips = [0] * size
        self._share = RatioEstimator(prior=0.5)
        self._is_failure_told = False

    @property
    def has_work(self) -> bool:
        return super().has_work or self._other.has_work

    @property
    def pause(self) -> float | None:
        pauses = (super().pause if super().has_work else None, self._other.pause)
        return min((pause for pause in pauses if pause is not None), default=None)

    def measured(self, shape: Mapping[int, float]) -> None:
        super().measured(shape)
        self._other.measured(shape)

    def begin(self, index: int, start: StartDrafter) -> None:
        super().begin(index, start)
        self._other.begin(index, start)
        self._said[index].clear()
        self._tips[index] = start.tip

    def reroot(self, index: int, change: Reroot) -> None:
        super().reroot(index, change)
        self._other.reroot(index, change)
        said = self._said[index]
        for node, token in change.committed:
            hits = [token in each.tokens[:1] for each in said.pop(self._tips[index], ())]
            if any(hits) and not all(hits):
                self._share.add(float(hits[0]), 1.0)
            self._tips[index] = node
        for node in change.dead:
            said.pop(node, None)

    def ask(self, index: int, rows: Sequence[DraftRow]) -> None:
        super().ask(index, rows)
        self._other.ask(index, rows)

    def release(self, index: int) -> None:
        super().release(index)
        self._drop(index)

    def fail(self, index: int, error: ForerunError) -> None:
        super().fail(index, error)
        self._drop(index)

    def _drop(self, index: int) -> None:
        """End the other model's part of a member's text."""
        self._other.release(index)
        for answers in self._ended:
            answers.pop(index, None)

    def turn(self) -> list[MemberAnswer]:
        own, others = self._ended
        own |= {answer.member: answer for answer in super().turn()}
        others |= {answer.member: answer for answer in self._other.turn()}
        failed = [answer for answer in own.values() if isinstance(answer.outcome, ForerunError)]
        for answer in failed:
            self._drop(answer.member)
        both = [member for member in own if member in others]
        return failed + [self._answer(own.pop(member), others.pop(member)) for member in both]

    def _answer(self, own: MemberAnswer, other: MemberAnswer) -> MemberAnswer:
        """Return the one answer of both models to a draft step, which the first has not failed."""
        assert not isinstance(own.outcome, ForerunError), "`turn` has answered it"
        if isinstance(other.outcome, ForerunError):
            if not self._is_failure_told:
                logger.warning("! the second draft fails, the first goes on alone: %s", other.outcome)
            self._is_failure_told = True
            return own
        pairs = list(zip(own.outcome, other.outcome, strict=True))
        self._said[own.member].update((pair[0].id, pair) for pair in pairs)
        reading = ReadingTime(
            max(own.reading.num_tokens, other.reading.num_tokens),
            own.reading.seconds + other.reading.seconds,
            own.reading.has_dear_masks or other.reading.has_dear_masks,
        )
        expansions = [merged(*pair, self._share.ratio, self._num_shared) for pair in pairs]
        return MemberAnswer(own.member, expansions, reading)


def merged(first: Expansion, second: Expansion, share: float, num_vocab: int) -> Expansion:
    """Return the best candidates of two expansions of a node, by means of which the first has this share.
    They are below `num_vocab`.

    A second without candidates, or with a score that is not finite, has no say.
    """
    if not (second.tokens and math.isfinite(sum(second.scores))):
        return first
    if not first.tokens:
        return second
    own, other = (dict(zip(each.tokens, each.scores, strict=True)) for each in (first, second))
    scores = {
        token: share * own.get(token, first.scores[-1]) + (1.0 - share) * other.get(token, second.scores[-1])
        for token in own | other
        if token < num_vocab
    }
    best = sorted(scores, key=lambda token: (-scores[token], token))
    best = best[: max(len(own), len(other))]
    return Expansion(first.id, tuple(best), tuple(scores[token] for token in best))
