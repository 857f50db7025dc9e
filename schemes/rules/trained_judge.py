"""Judges whether a draft token that the target would not have written matters for the answer (AutoJudge).

Garipov et al. 2025 (arXiv 2504.20039) train a logistic regression on the last hidden states of both models at
the draft's token. No link carries the draft's, so this judge reads the target's alone, and properties of the
target's distribution before the token. A judge without hidden states works with every engine.
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
(at temperature 0: of the raw logits). A hidden state comes behind them."""


def features(law: FloatArray, token: int, hidden: FloatArray | None = None) -> FloatArray:
    """Return the features float64 [F] of `token`, which must have a chance, under the target's law [V]. F
    counts `FEATURES` and the target's last `hidden` state [H] at the token's row, if one is given."""
    kept = law[law > 0.0]
    logs = np.log(kept)
    rank = 1 + int(np.count_nonzero(law > law[token]))
    values = np.array([math.log(law[token]), logs.max(), -(kept * logs).sum(), math.log(rank)])
    return values if hidden is None else np.concatenate((values, hidden))


@dataclass(frozen=True, slots=True)
class Judge:
    """A logistic regression on standardised features: `FEATURES`, and a hidden state or none.

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
            is_long_enough = len(values) == len(self.mean) >= len(FEATURES)
            if not is_long_enough or not all(map(math.isfinite, values)):
                raise UserError(
                    f"a judge's {name} has {len(values)} numbers; each of its "
                    f"{max(len(self.mean), len(FEATURES))} features needs a finite one"
                )
        if min(self.scale) <= 0.0:
            raise UserError(f"a judge's scale holds {min(self.scale)}; each number must be above 0")
        if not math.isfinite(self.bias) or not 0.0 <= self.threshold <= 1.0:
            raise UserError(
                f"a judge's bias is {self.bias} and its threshold {self.threshold}; the bias must be finite "
                "and the threshold in [0, 1]"
            )

    @classmethod
    def from_json(cls, text: str) -> Judge:
        """Read what `to_json` writes; other keys of the object are ignored. Raises `UserError`."""
        try:
            read = json.loads(text)
            if read["features"] != list(FEATURES):
                raise ValueError(f"its features are {read['features']}, not {list(FEATURES)}")
            mean, scale, weights = (tuple(map(float, read[name])) for name in ("mean", "scale", "weights"))
            return cls(mean, scale, weights, float(read["bias"]), float(read["threshold"]))
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            raise UserError(f"this is no judge ({error!r}); make one with `forerun judge train`") from error

    def to_json(self, **about: object) -> str:
        """Return a JSON object of the judge and of what is to be known `about` it."""
        return json.dumps({"features": FEATURES, **asdict(self), **about}, indent=2) + "\n"

    def importance(self, rows: FloatArray) -> FloatArray:
        """Return P(important) [N] of features [N, F]."""
        scores = (rows - np.array(self.mean)) / np.array(self.scale) @ np.array(self.weights) + self.bias
        chances: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(scores, -500.0, 500.0)))
        return chances

    @property
    def num_hidden(self) -> int:
        """Return the size of the hidden state that the judge reads; 0 for none."""
        return len(self.mean) - len(FEATURES)

    def is_unimportant(self, law: FloatArray, token: int, hidden: FloatArray | None = None) -> bool:
        """Return whether `token` may take the place of the target's own under its law [V].

        A token without a chance, such as one that a grammar forbids, never may. Nor may a token whose row is
        not evaluated, so that it has no `hidden` state [H], if the judge reads one.
        """
        if law[token] <= 0.0 or (self.num_hidden and hidden is None):
            return False
        values = features(law, token, hidden if self.num_hidden else None)
        return float(self.importance(values[None])[0]) < self.threshold
