"""Trains a second draft on what a first one misses (boost-tuning: SpecInfer, arXiv 2305.09781).

Both draft side by side, and the candidates of both meet in one tree. So the second gains where the first
misses the target's choice, and a row of a lesson counts as much as the chance of that. Under shared noise it
is 1 minus the coupled acceptance (`training.losses`).

The chance that at least one of them makes the target's choice is P(1) + P(2) - P(1 and 2). All three models
choose token i if it wins one race, as in `training.losses`:

    P(1 and 2) = sum_i 1 / sum_j max(p_j / p_i, q_j / q_i, r_j / r_i)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import torch
from torch import Tensor

from common.errors import UserError
from training.draft_weights import DraftWeights
from training.lessons import DraftReport, FloatArray, Lesson, LessonBatch, Logits, measure
from training.losses import LEAST, coupled_acceptance
from training.trimming import BY_TOKEN

ROWS_PER_PASS = 256
"""Rows whose races are summed at once: with 65 columns each takes 34 KB."""


@dataclass(frozen=True, slots=True)
class BothChances:
    """Tells how often two drafts make the target's choice under shared noise, in closed form."""

    first: float
    second: float
    either: float  # the choice is the best token of one of them, or of both


@dataclass(frozen=True, slots=True)
class Boosting:
    """Weights lessons by what a first draft misses, and measures a second beside it."""

    first: Logits
    temperature: float  # above 0

    @classmethod
    def of(cls, file: Path, second: DraftWeights, temperature: float) -> Boosting:
        """Read the first draft, GGUF. Raises `UserError` if it has other tokens than the second, and as
        `DraftWeights`."""
        first, other = (gguf.GGUFReader(path).fields[BY_TOKEN[0]].contents() for path in (file, second.path))
        if first != other:
            raise UserError(
                f"--boost {file} has other tokens than --draft {second.path}; drafts side by side need the "
                "same, so take two of one family"
            )
        return cls(DraftWeights(file).logits, temperature)

    @torch.inference_mode()
    def weighted(self, lessons: Sequence[Lesson]) -> list[Lesson]:
        """Return the lessons, each row weighted by the chance that the first draft misses the choice."""
        return [replace(lesson, weights=self._missed(lesson)) for lesson in lessons]

    def _missed(self, lesson: Lesson) -> FloatArray:
        target, own = LessonBatch.of([lesson]).pairs(self.first, self.temperature)
        missed: FloatArray = (1.0 - coupled_acceptance(target, own, has_rest=True)).numpy()
        return missed

    @torch.inference_mode()
    def chances(self, second: Logits, lessons: Sequence[Lesson]) -> BothChances:
        """Measure both drafts on whole lessons."""
        chances = list[Tensor]()
        for lesson in lessons:
            batch = LessonBatch.of([lesson])
            target, own = batch.pairs(self.first, self.temperature)
            other = batch.pairs(second, self.temperature)[1]
            a, b = (coupled_acceptance(target, each, has_rest=True) for each in (own, other))
            chances.append(torch.stack([a, b, a + b - all_agree(target, own, other)]))
        return BothChances(*torch.cat(chances, dim=-1).mean(dim=-1).tolist())

    def measured(self, second: Logits, lessons: Sequence[Lesson]) -> tuple[DraftReport, BothChances]:
        """Measure the draft that the edge makes of both, and both."""
        chances = self.chances(second, lessons)
        return measure(self.together(second, chances), lessons, self.temperature), chances

    def together(self, second: Logits, chances: BothChances) -> Logits:
        """Return the draft that the edge makes of both (`schemes.drafters.beside`)."""
        only_first, only_second = chances.either - chances.second, chances.either - chances.first
        share = only_first / max(only_first + only_second, 1e-9)

        def logits(tokens: Tensor, rows: Tensor) -> Tensor:
            return share * self.first(tokens, rows) + (1.0 - share) * second(tokens, rows)

        return logits


def all_agree(target: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the chance [N] that three distributions [N, C] choose the same token under shared noise. The
    last column is a sum of tokens, which never counts as the same token."""
    models = torch.stack((target, first, second)).clamp(min=LEAST)
    chances = list[Tensor]()
    for part in torch.split(models, ROWS_PER_PASS, dim=1):
        ratios = part.unsqueeze(-2) - part.unsqueeze(-1)  # [3, n, C, C], of each token to that of the race
        chances.append((-ratios.amax(dim=0).logsumexp(dim=-1)).exp()[:, :-1].sum(dim=-1))
    return torch.cat(chances)
