"""What is believed before a pair's first text at each temperature, and how it is kept from text to text."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.calibration import Calibration
from edge_client.core.confidence import Confidence, Guess, Prior


@dataclass(frozen=True, slots=True)
class PriorTable:
    """Priors at some temperatures; the nearest serves any other.

    Scores are logits / temperature + noise, and a draft's error is one of logits. So what changes little with
    the temperature is the sharpness per nat of logit, and a prior's sharpness per nat of score is taken in
    the proportion of the temperatures. Greedy scores are logits: they count as of a temperature 1.
    """

    points: tuple[tuple[float, Prior], ...]  # temperatures rising

    def __post_init__(self) -> None:
        temperatures = [temperature for temperature, _ in self.points]
        if not temperatures:
            raise UserError("a table of priors is empty; at least one temperature was expected")
        if not all(0 <= each < math.inf for each in temperatures):
            raise UserError(f"a table of priors has the temperatures {temperatures}; 0 or more was expected")
        if any(before >= after for before, after in pairwise(temperatures)):
            raise UserError(f"a table of priors has the temperatures {temperatures}; they do not rise")

    def at(self, temperature: float) -> Prior:
        """For a text at this temperature, 0 or more."""
        own, prior = self.points[self._nearest(temperature)]
        return _scaled(prior, _unit(temperature) / _unit(own))

    def after(self, temperature: float, calibration: Calibration) -> PriorTable:
        """With what a text at this temperature, begun from this table, has taught."""
        place = self._nearest(temperature)
        own, _ = self.points[place]
        prior = _scaled(calibration.as_prior(), _unit(own) / _unit(temperature))
        return replace(self, points=(*self.points[:place], (own, prior), *self.points[place + 1 :]))

    def _nearest(self, temperature: float) -> int:
        return min(range(len(self.points)), key=lambda place: abs(self.points[place][0] - temperature))


def _unit(temperature: float) -> float:
    return temperature or 1.0


def _scaled(prior: Prior, factor: float) -> Prior:
    if factor == 1.0:
        return prior
    confidence = replace(prior.confidence, sharpness=prior.confidence.sharpness * factor)
    return replace(prior, confidence=confidence)


def _point(sharpness: float, rest: float, spread: float) -> Prior:
    """A fit's, for any pair: that is what the doubt is for, which one pair cannot tell."""
    return Prior(Confidence(sharpness, rest, miss=0.01), Guess(spread, 0.5), Guess(0.7, 0.7))


SHIPPED: Final = PriorTable(
    (
        (0.0, _point(4.56, 0.87, spread=0.4)),
        (0.4, _point(1.63, 1.03, spread=0.15)),
        (0.8, _point(2.57, 0.94, spread=0.1)),
        (1.2, _point(3.00, 1.11, spread=0.1)),
    )
)
"""Fitted on the demo pair, 69 texts of 128 tokens at each temperature, prompts that no figure is reported on:

    python -m benchmarks.calibration --out FOLDER
    forerun fit FOLDER/*.jsonl

The doubt is chosen, not fitted: another pair's sharpness may well be half or twice as large. `miss` was seen
with top-p 0.9 at temperature 0.8: 16 of the 1,307 lists that it cut short.
"""


class Beliefs:
    """What a device believes of its pair, from text to text: each text begins with what those before taught.

    Filters (top-k, top-p, min-p) change which candidates there are and so what scores are worth; texts with
    and without are kept apart.
    """

    def __init__(self, table: PriorTable | None = None) -> None:
        self._tables = dict.fromkeys((False, True), table or SHIPPED)

    def before(self, sampling: SamplingParams) -> Prior:
        """For a text that begins."""
        return self._tables[_has_filters(sampling)].at(sampling.temperature)

    def learn(self, sampling: SamplingParams, calibration: Calibration) -> None:
        """A text that began with `before(sampling)` has ended."""
        has_filters = _has_filters(sampling)
        self._tables[has_filters] = self._tables[has_filters].after(sampling.temperature, calibration)


def _has_filters(sampling: SamplingParams) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0
