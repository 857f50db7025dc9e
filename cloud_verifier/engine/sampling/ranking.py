"""Ranks the candidates of the verifier's own drafter under the noise that the target's choices meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cloud_verifier.engine.sampling.choice import adjusted_rows, check_rows, noisy_scores
from cloud_verifier.engine.sampling.host import ChoiceRow, row_changes
from common import choice as reference
from common.sampling import SamplingParams

Candidates = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens, best first, and their scores in nats, as in `Followers`."""


def rank_rows(logits: Tensor, rows: Sequence[ChoiceRow], count: int) -> list[Candidates]:
    """Return the `count` best candidates of each row of float32 logits [R, V], as `common.choice.rank` does.

    Filtered tokens are left out. On a CPU every row goes through the reference, which evaluates noise only
    for tokens that can still win. Raises as `choice.choose`.
    """
    check_rows(logits, rows)
    return (
        _rank_on_cpu(logits, rows, count) if logits.device.type == "cpu" else rank_dense(logits, rows, count)
    )


def _rank_on_cpu(logits: Tensor, rows: Sequence[ChoiceRow], count: int) -> list[Candidates]:
    found = list[Candidates]()
    changes = row_changes(rows, logits.shape[1])
    for own, row, changed in zip(logits.detach().numpy(), rows, changes, strict=True):
        adjusted = reference.adjust(own, changed)
        ranking = reference.rank(adjusted, _without_changes(row.params), row.position, count)
        found.append((tuple(ranking.tokens.tolist()), tuple(ranking.scores.tolist())))
    return found


def _without_changes(params: SamplingParams) -> SamplingParams:
    """Return the parameters of logits that bias and penalties have changed already."""
    if not params.logit_bias and not params.has_penalties:
        return params
    return replace(params, logit_bias=(), repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)


def rank_dense(logits: Tensor, rows: Sequence[ChoiceRow], count: int) -> list[Candidates]:
    """Rank as `rank_rows` does, with all noise, for one transfer of the candidates to the host."""
    adjusted = adjusted_rows(logits, rows)
    scores = adjusted.double()
    scores -= scores.amax(dim=1, keepdim=True)
    noisy = [index for index, row in enumerate(rows) if not row.params.greedy]
    if noisy:
        scores[noisy] = noisy_scores(adjusted[noisy], [rows[index] for index in noisy])
    best, tokens = scores.topk(min(count, scores.shape[1]), dim=1)
    packed = torch.stack((best, tokens.double())).cpu().tolist()  # ids are exact in float64
    return [_finite(own, found) for own, found in zip(*packed, strict=True)]


def _finite(scores: Sequence[float], tokens: Sequence[float]) -> Candidates:
    kept = [place for place, score in enumerate(scores) if score > -float("inf")]
    return tuple(int(tokens[place]) for place in kept), tuple(scores[place] for place in kept)
