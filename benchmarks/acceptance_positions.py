"""How likely one draft is accepted at one position, by every rule on the same positions: no text is drawn.

For `benchmarks.acceptance`. The target's law p and the draft's q are taken at every position of texts that
the target wrote, and each chance is worked out from the two, exactly but for `coupled_two`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.rules.base import residual
from cloud_verifier.core.target import IntArray, StepItem, StepPlan
from cloud_verifier.engine.engine import TorchEngine, choice_rows
from cloud_verifier.engine.rules import probabilities
from common.draft import Draft, quantised
from common.noise import gumbel
from common.sampling import SamplingParams
from edge_client.core.drafter import DraftRow, Expansion
from edge_client.llama.drafter import LlamaDrafter

FloatArray = NDArray[np.float64]

NUM_NOISES = 16  # draws of the noise for `coupled_two`
LEAST = 1e-9  # of a token's chance, below which it adds nothing to a sum


@dataclass(frozen=True, slots=True)
class Chances:
    """At one position."""

    coupled: float  # the draft's best under the noise is the target's
    coupled_two: float  # one of its best two is
    overlap: float  # 1 - TV: rejection with the whole of q
    rejection: tuple[float, ...]  # with q cut to so many tokens and rounded, as it travels
    specinfer_two: float  # one of two children is accepted, q cut to the largest number
    by_equality: float  # a draw of that q is the target's own draw: drafts that come too late


def at_position(target: FloatArray, draft: FloatArray, tops: Sequence[int], position: int) -> Chances:
    """From the laws [V] of the target and the draft; `tops` increase."""
    cut = [_rounded(draft, top) for top in tops]
    dense = _dense(cut[-1], target.size)
    return Chances(
        coupled=_coupled(target, draft),
        coupled_two=_coupled_two(target, draft, position),
        overlap=float(np.minimum(target, draft).sum()),
        rejection=tuple(float(np.minimum(target, _dense(each, target.size)).sum()) for each in cut),
        specinfer_two=_either_of_two(target, cut[-1]),
        by_equality=float((target * dense).sum()),
    )


def laws(
    engine: TorchEngine, drafter: LlamaDrafter, text: Sequence[int], first: int, sampling: SamplingParams
) -> tuple[list[FloatArray], list[FloatArray]]:
    """What target and draft say after each of the tokens from position `first` on, [V] each."""
    return _of_target(engine, text, first, sampling), _of_draft(drafter, text, first, sampling, engine)


def _of_target(
    engine: TorchEngine, text: Sequence[int], first: int, sampling: SamplingParams
) -> list[FloatArray]:
    count = len(text)
    item = StepItem(
        session=0,
        prefix_slots=_ints([]),
        tokens=_ints(text),
        positions=_ints(range(count)),
        parents=_ints(range(-1, count - 1)),
        slots=_ints(range(count)),
        outputs=_ints(range(first, count)),
        sampling=sampling,
    )
    logits = engine.logits(StepPlan((item,))).numpy()
    return [probabilities(row, asked) for row, asked in zip(logits, choice_rows(item), strict=True)]


def _of_draft(
    drafter: LlamaDrafter, text: Sequence[int], first: int, sampling: SamplingParams, engine: TorchEngine
) -> list[FloatArray]:
    size = engine.info.vocab_size
    drafter.start(text[: first + 1], 0, sampling, size)
    rows = [DraftRow(0, None, text[first], first)]
    rows += [DraftRow(p - first, p - first - 1, text[p], p) for p in range(first + 1, len(text))]
    return [_softmax(found, size) for row in rows for found in drafter.expand([row])]


def _softmax(found: Expansion, size: int) -> FloatArray:
    weights = np.zeros(size)
    weights[list(found.tokens)] = np.exp(np.array(found.scores) - found.scores[0])
    return np.asarray(weights / weights.sum())


def _rounded(law: FloatArray, top: int) -> Draft:
    best = np.argsort(-law, kind="stable")[:top]
    kept = best[law[best] > 0.0]
    return quantised(kept.tolist(), np.log(law[kept]).tolist())


def _dense(draft: Draft, size: int) -> FloatArray:
    law = np.zeros(size)
    tokens, chances = draft.after(())
    law[tokens] = chances
    return law


def _coupled(target: FloatArray, draft: FloatArray) -> float:
    """Sum over x of 1 / sum over y of max(p_y / p_x, q_y / q_x) (Daliri et al. 2024).

    The larger is p's where p_y / q_y >= p_x / q_x, so that sums in the order of p / q do for every x.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(np.where(target > 0.0, target / draft, 0.0), kind="stable")
    p, q = target[order], draft[order]
    above, below = p[::-1].cumsum()[::-1], q.cumsum() - q
    able = (p > LEAST) & (q > LEAST)
    return float((1.0 / (above[able] / p[able] + below[able] / q[able])).sum())


def _coupled_two(target: FloatArray, draft: FloatArray, position: int) -> float:
    """By drawing the noise: the chance that the target's choice is one of the draft's best two."""
    hits, tokens = 0, np.arange(target.size, dtype=np.int64)
    with np.errstate(divide="ignore"):
        by_target, by_draft = np.log(target), np.log(draft)
    for seed in range(NUM_NOISES):
        noise = gumbel(seed, position, tokens)
        best = np.argpartition(-(by_draft + noise), 2)[:2]
        hits += int((by_target + noise).argmax()) in best.tolist()
    return hits / NUM_NOISES


def _either_of_two(target: FloatArray, draft: Draft) -> float:
    """That one of two children, drawn without replacement, is accepted: over all first children."""
    tokens, shares = draft.after(())
    left = residual(target, tokens, shares)
    accepted = float(np.minimum(target[tokens], shares).sum())
    for token, share in zip(tokens.tolist(), shares.tolist(), strict=True):
        rejected = max(0.0, share - float(target[token]))
        if rejected > 0.0 and len(tokens) > 1:
            others, chances = draft.after((token,))
            accepted += rejected * float(np.minimum(left[others], chances).sum())
    return accepted


def _ints(values: Sequence[int] | range) -> IntArray:
    return np.array(values, dtype=np.int32)
