"""Ranks rows of logits for drafters: the best candidates of each, under the target's own noise.

`common.choice` is the reference. The noise here is `common.noise` in torch, for many rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import FloatArray
from cloud_verifier.engine.sampling.device_rows import adjusted_rows, check_best
from cloud_verifier.engine.sampling.host_choice import ChoiceRow, row_changes
from common import choice as reference
from common import noise

FRONT = 1024
"""Tokens of a row that are ranked, the likeliest ones. A candidate beyond them costs a guess, no more."""

Candidates = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens, best first, and their scores in nats, as in `Followers`."""


def rank_on_host(logits: FloatArray, rows: Sequence[ChoiceRow], count: int) -> list[Candidates]:
    """Return the `count` best candidates of each row of logits float32 [R, V]; filtered ones are left out."""
    candidates = list[Candidates]()
    changes = row_changes(rows, logits.shape[1])
    for own, row, changed in zip(logits, rows, changes, strict=True):
        ranking = reference.rank_adjusted(reference.adjust(own, changed), row.params, row.position, count)
        candidates.append((tuple(ranking.tokens.tolist()), tuple(ranking.scores.tolist())))
    return candidates


def rank_rows(logits: Tensor, rows: Sequence[ChoiceRow], count: int) -> list[Candidates]:
    """Return the `count` best candidates of each row of float32 logits [R, V], as `common.choice.rank` does.

    Filtered tokens are left out. On a CPU every row goes through the reference, which evaluates noise only
    for tokens that can still win. Raises `LocalError` for logits without a finite maximum in each row.
    """
    if logits.device.type == "cpu":
        return rank_on_host(logits.detach().numpy(), rows, count)
    return rank_on_device(logits, rows, count)


def rank_on_device(logits: Tensor, rows: Sequence[ChoiceRow], count: int) -> list[Candidates]:
    """Rank the `FRONT` likeliest tokens of each row, for one transfer of the candidates to the host."""
    check_best(logits)
    adjusted = adjusted_rows(logits, rows)
    params = [row.params for row in rows]
    front, tokens = adjusted.topk(min(FRONT, adjusted.shape[1]), dim=1)
    best = front[:, :1].double()
    heat = _column([one.temperature or 1.0 for one in params], best)
    scaled = (front.double() - best) / heat
    top_k = _column([0 if one.greedy else one.top_k for one in params], tokens)
    in_top_k = (torch.arange(front.shape[1], device=tokens.device) < top_k) | (top_k == 0)
    least = _column([-np.inf if one.greedy else reference.log_min_p(one) for one in params], scaled)
    kept = in_top_k & (scaled >= least)
    if any(one.top_p < 1.0 for one in params):
        weights = scaled.exp().masked_fill_(~in_top_k, 0.0)
        whole = ((adjusted.double() - best) / heat).exp().sum(dim=1, keepdim=True)
        total = torch.where(top_k > 0, weights.sum(dim=1, keepdim=True), whole)
        top_p = _column([1.0 if one.greedy else one.top_p for one in params], total)
        kept &= (weights.cumsum(dim=1) - weights < top_p * total) | (top_p >= 1.0)
    keys = noise_keys([one.seed for one in params], [row.position + 1 for row in rows], logits.device)
    noisy = _column([not one.greedy for one in params], kept)
    scores = torch.where(noisy, scaled + gumbel(keys.unsqueeze(1), tokens), scaled)
    scores, places = scores.masked_fill_(~kept, -torch.inf).topk(min(count, scores.shape[1]), dim=1)
    packed = torch.stack((scores, tokens.gather(1, places).double())).cpu().tolist()  # ids are exact there
    return [_finite(own, ids) for own, ids in zip(*packed, strict=True)]


def _finite(scores: Sequence[float], tokens: Sequence[float]) -> Candidates:
    kept = [place for place, score in enumerate(scores) if score > -float("inf")]
    return tuple(int(tokens[place]) for place in kept), tuple(scores[place] for place in kept)


def _column(numbers: Sequence[float], like: Tensor) -> Tensor:
    """Return one number per row, [R, 1], with the type and device of `like`."""
    return torch.tensor(numbers, dtype=like.dtype).to(like.device, non_blocking=True).unsqueeze(1)


# `common.noise` in torch: the same 64-bit integers on CPU and CUDA, many rows at once. torch has hardly any
# unsigned 64-bit arithmetic, so the integers are int64: sums and products wrap the same, and a logical shift
# is an arithmetic one with the copied sign bits masked off.


def _signed(number: int) -> int:
    """Return the int64 with the bits of an unsigned 64-bit integer."""
    return number - 2**64 if number >= 2**63 else number


_GAMMA = _signed(noise.GAMMA)
_FACTORS = tuple(_signed(factor) for factor in noise.MIX_FACTORS)
_UNUSED_BITS = 64 - noise.UNIFORM_BITS


def noise_keys(seeds: Sequence[int], positions: Sequence[int], device: torch.device) -> Tensor:
    """Return keys of rows, int64 [R], from their seeds (unsigned 64 bits) and positions; made on the host."""
    keys = noise.noise_keys(np.array(seeds, np.uint64), np.array(positions, np.int64))
    return torch.from_numpy(keys.view(np.int64)).to(device)


def noise_bits(keys: Tensor, tokens: Tensor) -> Tensor:
    """Return 64 noise bits, as int64, of token ids under keys (both int64, broadcast: [R, 1] and [V])."""
    state = keys + (tokens + 1) * _GAMMA
    scratch = torch.empty_like(state)
    for shift, factor in zip(noise.MIX_SHIFTS[:2], _FACTORS, strict=True):
        state.bitwise_xor_(_shifted(state, shift, scratch)).mul_(factor)
    return state.bitwise_xor_(_shifted(state, noise.MIX_SHIFTS[2], scratch))


def gumbel(keys: Tensor, tokens: Tensor) -> Tensor:
    """Return standard Gumbel noise, float64, of token ids under keys; shapes as in `noise_bits`."""
    bits = noise_bits(keys, tokens)
    uniform = _shifted(bits, _UNUSED_BITS, bits).double().add_(0.5).mul_(2.0**-noise.UNIFORM_BITS)
    return uniform.log_().neg_().log_().neg_()


def _shifted(bits: Tensor, shift: int, out: Tensor) -> Tensor:
    """Logical right shift of int64, written to `out`."""
    torch.bitwise_right_shift(bits, shift, out=out)
    return out.bitwise_and_(2 ** (64 - shift) - 1)
