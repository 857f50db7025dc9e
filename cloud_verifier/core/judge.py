"""Judges whether a draft token that the target would not have written matters for the answer (AutoJudge).

Garipov et al. 2025 (arXiv 2504.20039) train a logistic regression on the last hidden states of both models at
a mismatch. This judge reads only the target's distribution there, which every engine has and no link carries.
`forerun judge train` makes a judge.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError

FloatArray = NDArray[np.float64]

FEATURES = ("token_logprob", "best_logprob", "entropy", "log_rank")
"""Properties of a mismatch in the order of `features`: log-probability of the draft's token and of the
likeliest token, entropy, and the logarithm of the token's rank; all in nats, after the sampling parameters
(at temperature 0: of the raw logits)."""


def features(law: FloatArray, token: int) -> FloatArray:
    """Return the features float64 [F] of `token`, which must have a chance, under the target's law [V]."""
    kept = law[law > 0.0]
    logs = np.log(kept)
    rank = 1 + int(np.count_nonzero(law > law[token]))
    return np.array([math.log(law[token]), logs.max(), -(kept * logs).sum(), math.log(rank)])


@dataclass(frozen=True, slots=True)
class Judge:
    """A logistic regression on standardised `FEATURES`.

    Checked in the constructor. Raises `UserError` that names the field.
    """

    mean: tuple[float, ...]  # [F]
    scale: tuple[float, ...]  # [F]; above 0
    weights: tuple[float, ...]  # [F] of the standardised features
    bias: float
    threshold: float  # P(important) below which a token passes

    def __post_init__(self) -> None:
        for name in ("mean", "scale", "weights"):
            values = getattr(self, name)
            if len(values) != len(FEATURES) or not all(map(math.isfinite, values)):
                raise UserError(f"a judge's {name} is {values}; {len(FEATURES)} finite numbers are needed")
        if min(self.scale) <= 0.0:
            raise UserError(f"a judge's scale is {self.scale}; each number must be above 0")
        if not math.isfinite(self.bias) or not 0.0 <= self.threshold <= 1.0:
            raise UserError(
                f"a judge's bias is {self.bias} and its threshold {self.threshold}; the bias must be finite "
                "and the threshold in [0, 1]"
            )

    @classmethod
    def from_json(cls, text: str) -> Judge:
        """Read what `to_json` writes; other keys of the object are ignored. Raises `UserError`."""
        try:
            found = json.loads(text)
            if found["features"] != list(FEATURES):
                raise ValueError(f"its features are {found['features']}, not {list(FEATURES)}")
            mean, scale, weights = (tuple(map(float, found[name])) for name in ("mean", "scale", "weights"))
            return cls(mean, scale, weights, float(found["bias"]), float(found["threshold"]))
        except (ValueError, TypeError, LookupError) as error:
            raise UserError(f"this is no judge ({error!r}); make one with `forerun judge train`") from error

    def to_json(self, **about: object) -> str:
        """Return a JSON object of the judge and of what is to be known `about` it."""
        return json.dumps({"features": FEATURES, **asdict(self), **about}, indent=2) + "\n"

    def importance(self, rows: FloatArray) -> FloatArray:
        """Return P(important) [N] of features [N, F]."""
        scores = (rows - np.array(self.mean)) / np.array(self.scale) @ np.array(self.weights) + self.bias
        chances: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(scores, -500.0, 500.0)))
        return chances

    def is_unimportant(self, law: FloatArray, token: int) -> bool:
        """Return whether `token` may take the place of the target's own under its law [V]. A token without a
        chance, such as one that a grammar forbids, never may."""
        if law[token] <= 0.0:
            return False
        return float(self.importance(features(law, token)[None])[0]) < self.threshold
