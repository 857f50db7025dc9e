"""Changes and ranks rows of logits on their device: grammar, bias, penalties, and a drafter's candidates.

`common.choice` is the reference. The noise here is `common.noise` in torch, for many rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.engine.sampling.host_choice import (
    Candidates,
    ChoiceRow,
    RowGroup,
    rank_on_host,
    row_groups,
)
from common import choice as reference
from common import noise

ENTRIES = 2**22
"""Logits that penalties change at a time: some 64 bytes each for a moment."""

FRONT = 1024
"""Tokens of a row that are ranked, the likeliest ones. A candidate beyond them costs a guess, no more."""


def _check_best(logits: Tensor) -> None:
    """`common.choice.check_best` of every row, for one transfer of one byte if all is well."""
    best = logits.amax(dim=1)
    if not bool(torch.isfinite(best).all()):
        reference.check_best(float(best[~torch.isfinite(best)][0]))


def masked_rows(logits: Tensor, rows: Sequence[ChoiceRow]) -> Tensor:
    """Set logits to -inf where a row's grammar forbids the token: a copy, or the input."""
    masks = {index: row.allowed for index, row in enumerate(rows) if row.allowed is not None}
    if not masks:
        return logits
    for allowed in masks.values():
        reference.check_allowed(allowed, logits.shape[1])
    forbidden = torch.from_numpy(~np.stack(list(masks.values()))).to(logits.device)
    masked = logits.clone(memory_format=torch.contiguous_format)
    where = torch.tensor(list(masks), device=logits.device)
    masked[where] = masked[where].masked_fill_(forbidden, -torch.inf)
    _check_best(masked)
    return masked


def adjusted_rows(logits: Tensor, rows: Sequence[ChoiceRow]) -> Tensor:
    """Return logits after grammar, bias and penalties: a changed copy, or the input."""
    logits, groups = masked_rows(logits, rows), row_groups(rows, logits.shape[1])
    if not groups:
        return logits
    adjusted = logits.clone(memory_format=torch.contiguous_format)
    _write_shared(logits, adjusted, groups)
    _write_own(logits, adjusted, groups)
    _check_best(adjusted)
    return adjusted


def _write_shared(logits: Tensor, adjusted: Tensor, groups: Sequence[RowGroup]) -> None:
    """Change each row by its group's history, `ENTRIES` logits or a row at a time."""
    tables = [group.history.changes for group in groups]
    sizes = np.array([table.tokens.size for table in tables])
    repeats = [len(group.rows) for group in groups]
    rows = np.concatenate([group.rows for group in groups])
    starts, counts = (sizes.cumsum() - sizes).repeat(repeats), sizes.repeat(repeats)
    tokens = torch.from_numpy(np.concatenate([table.tokens for table in tables])).to(logits.device)
    numbers = _numbers(tables).to(logits.device)
    pieces = (counts.cumsum() - 1) // ENTRIES
    for piece in np.unique(pieces):
        part = pieces == piece
        spans = np.stack((rows[part], starts[part], counts[part]))
        total = int(spans[2].sum())
        on_device = torch.from_numpy(spans).to(logits.device)
        spread = on_device.repeat_interleave(on_device[2], dim=1, output_size=total)
        ends = on_device[2].cumsum(0).repeat_interleave(on_device[2], output_size=total)
        entry = torch.arange(total, device=logits.device) - (ends - spread[2]) + spread[1]
        _write(logits, adjusted, spread[0] * logits.shape[1] + tokens[entry], numbers[:, entry])


def _write_own(logits: Tensor, adjusted: Tensor, groups: Sequence[RowGroup]) -> None:
    """Change each row along its own path."""
    rows = np.concatenate([np.array(group.rows)[group.owners] for group in groups])
    tokens = np.concatenate([group.own.tokens for group in groups])
    where = torch.from_numpy(rows * logits.shape[1] + tokens).to(logits.device)
    _write(logits, adjusted, where, _numbers([group.own for group in groups]).to(logits.device))


def _numbers(tables: Sequence[reference.Adjustments]) -> Tensor:
    """Bias, factor and minus of all entries, float64 [3, N]."""
    return torch.from_numpy(
        np.concatenate([(table.bias, table.factor, table.minus) for table in tables], axis=1)
    )


def _write(logits: Tensor, adjusted: Tensor, where: Tensor, numbers: Tensor) -> None:
    """`common.choice.adjusted_values` of the flat places `where` [N], written to `adjusted`."""
    bias, factor, minus = numbers
    values = logits.reshape(-1)[where].double() + bias
    values = torch.where(values > 0, values / factor, values * factor) - minus
    adjusted.view(-1)[where] = values.clamp_(max=reference.FLOAT32_MAX).float()


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
    _check_best(logits)
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
