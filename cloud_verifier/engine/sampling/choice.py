"""Makes the choices of a whole step on the logits' device: `common.choice` for many rows at once.

On a CPU every row goes through the reference itself, which evaluates noise only for tokens that can still
win. On an accelerator evaluating all noise costs less than the check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.engine.sampling.host import ChoiceRow, RowGroup, choose_on_host, row_groups
from common import choice as reference
from common import noise
from common.errors import LocalError
from common.sampling import SamplingParams

CHUNK = 2**24  # logits at a time: 128 rows of 131,072; each temporary array then takes 128 MiB
FRONT = 1024  # tokens sorted for a filter before all are; top-k and top-p of ordinary text end well within
UNBOUNDED = 2**63 - 1
ENTRIES = 2**22  # logits that penalties change at a time: some 64 bytes each for a moment


def choose(logits: Tensor, rows: Sequence[ChoiceRow]) -> tuple[Tensor, Tensor]:
    """Return the choices int64 [O] and margins float32 [O] of logits float32 [O, V], on the logits' device.

    Raises `LocalError` for logits of another shape or type, without a finite maximum in each row, or
    penalties without their tokens.
    """
    check_rows(logits, rows)
    if logits.device.type != "cpu":
        return choose_dense(logits, rows)
    choices, margins = choose_on_host(logits.detach().numpy(), rows)
    return torch.from_numpy(choices.astype(np.int64)), torch.from_numpy(margins)


def choose_dense(logits: Tensor, rows: Sequence[ChoiceRow]) -> tuple[Tensor, Tensor]:
    """Choose as `choose` does, without pruning; only checks and deep filters are brought to the host."""
    check_rows(logits, rows)
    size = max(1, CHUNK // logits.shape[1])
    choices, margins = [logits.new_empty(0, dtype=torch.int64)], [logits.new_empty(0)]
    for at in range(0, len(rows), size):
        part = rows[at : at + size]
        chosen, ahead = _choose_adjusted(adjusted_rows(logits[at : at + size], part), part)
        choices.append(chosen)
        margins.append(ahead)
    return torch.cat(choices), torch.cat(margins)


def check_rows(logits: Tensor, rows: Sequence[ChoiceRow]) -> None:
    """Raise as `choose`."""
    if (
        logits.ndim != 2
        or logits.dtype != torch.float32
        or logits.shape[0] != len(rows)
        or not logits.shape[1]
    ):
        raise LocalError(
            f"float32 logits of shape [{len(rows)}, V] are wanted, one row per choice; "
            f"these are {logits.dtype} of shape {list(logits.shape)}"
        )
    _check_best(logits)


def _check_best(logits: Tensor) -> None:
    """`common.choice.check_best` of every row, for one transfer of one byte if all is well."""
    best = logits.amax(dim=1)
    if not bool(torch.isfinite(best).all()):
        reference.check_best(float(best[~torch.isfinite(best)][0]))


def _choose_adjusted(logits: Tensor, rows: Sequence[ChoiceRow]) -> tuple[Tensor, Tensor]:
    """Choose for the greedy rows and the others apart, and put the choices back in order."""
    greedy = [index for index, row in enumerate(rows) if row.params.greedy]
    noisy = [index for index, row in enumerate(rows) if not row.params.greedy]
    choices = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    margins = torch.empty(len(rows), device=logits.device)
    if greedy:
        choices[greedy], margins[greedy] = _top_two(_take(logits, greedy).clone())
    if noisy:
        scores = noisy_scores(_take(logits, noisy), [rows[index] for index in noisy])
        choices[noisy], margins[noisy] = _top_two(scores)
    return choices, margins


def _top_two(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best token int64 [R] of each row of [R, V] and how far it is ahead, float32 [R]. Spoils
    `scores`.

    torch promises that `max` along a dimension gives the first of equals, so the lowest id; `topk` does not.
    """
    best, choices = scores.max(dim=1)
    scores.scatter_(1, choices.unsqueeze(1), -torch.inf)
    return choices, (best.double() - scores.amax(dim=1).double()).float()


def noisy_scores(logits: Tensor, rows: Sequence[ChoiceRow]) -> Tensor:
    """Processed logits plus noise, float64 [R, V], of rows that are all sampled."""
    scaled = logits.double()
    scaled.sub_(scaled.amax(dim=1, keepdim=True))
    scaled.div_(_column([row.params.temperature for row in rows], scaled))
    filtered = [index for index, row in enumerate(rows) if reference.has_filters(row.params)]
    if filtered:
        part = _take(scaled, filtered)
        kept = part.masked_fill(~_kept(part, [rows[index].params for index in filtered]), -torch.inf)
        scaled[filtered] = kept
    keys = noise_keys(
        [row.params.seed for row in rows], [row.position + 1 for row in rows], logits.device
    ).unsqueeze(1)
    return gumbel(keys, torch.arange(logits.shape[1], device=logits.device)).add_(scaled)


def _kept(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Return which tokens of [R, V] the filters keep: those not behind the last one kept, best first, then by
    id."""
    value, token, settled = _last_kept(scaled, params, FRONT)
    if not bool(settled.all()):
        deep = (~settled.squeeze(1)).nonzero().squeeze(1).tolist()
        value[deep], token[deep], _ = _last_kept(_take(scaled, deep), [params[index] for index in deep], None)
    tokens = torch.arange(scaled.shape[1], device=scaled.device)
    return (scaled > value) | ((scaled == value) & (tokens <= token))


def _last_kept(
    scaled: Tensor, params: Sequence[SamplingParams], front: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """`last_of_front` of the `front` best tokens of each row; of all, if it is None."""
    values, tokens = _sorted_front(scaled, front)
    whole = values.shape[1] == scaled.shape[1]
    return last_of_front(values, tokens, whole, params, lambda: _weights(scaled).sum(dim=1, keepdim=True))


def last_of_front(
    values: Tensor,
    tokens: Tensor,
    whole: bool,
    params: Sequence[SamplingParams],
    everything: Callable[[], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return value and id of the last token that the filters keep in each row, and whether that is sure;
    each [R, 1].

    `values` [R, K] and `tokens` are each row's best, best first and equal ones by id; `whole` says that the
    row has no more. `everything` gives the integer weight of all tokens, int64 [R, 1]. The result is sure if
    the last token kept stands above the front's end: `topk` decides which of several equal tokens at the end
    are in the front.
    """
    top_k = _column([one.top_k or UNBOUNDED for one in params], tokens)
    count = torch.minimum(top_k, _num_nucleus(values, top_k, params, everything))
    least = _column([reference.log_min_p(one) for one in params], values)
    count = torch.minimum(count, (values >= least).sum(dim=1, keepdim=True)).clamp_(1, values.shape[1])
    value, token = values.gather(1, count - 1), tokens.gather(1, count - 1)
    within = (value > values[:, -1:]) & ((top_k <= values.shape[1]) | (top_k == UNBOUNDED))
    return value, token, within | torch.isneginf(value) | whole


def _sorted_front(scaled: Tensor, front: int | None) -> tuple[Tensor, Tensor]:
    """Return the `front` best values [R, K] and their ids, equal values by id; all of them if `front` is
    None."""
    if front is None or front >= scaled.shape[1]:
        return torch.sort(scaled, dim=1, descending=True, stable=True)
    values, tokens = scaled.topk(front, dim=1)
    tokens, order = tokens.sort(dim=1)
    values, best_first = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, tokens.gather(1, best_first)


def _num_nucleus(
    values: Tensor, top_k: Tensor, params: Sequence[SamplingParams], everything: Callable[[], Tensor]
) -> Tensor:
    """Return how many of `values` [R, K], best first, top-p keeps of those that top-k left; int64 [R, 1]."""
    if all(one.top_p >= 1.0 for one in params):
        return torch.full_like(top_k, UNBOUNDED)
    columns = torch.arange(values.shape[1], device=values.device)
    sums = _weights(values).masked_fill_(columns >= top_k, 0).cumsum(dim=1)
    total = sums[:, -1:]
    if any(not one.top_k and one.top_p < 1.0 for one in params):
        total = torch.where(top_k == UNBOUNDED, everything(), total)
    top_p = _column([one.top_p for one in params], values)
    goal = torch.minimum(total, (total.double() * top_p).ceil_().long())
    count = (sums < goal).sum(dim=1, keepdim=True) + 1
    return torch.where(top_p < 1.0, count, UNBOUNDED)


def _weights(scaled: Tensor) -> Tensor:
    """Unnormalised probabilities as integers, int64: their sums are exact in any order."""
    return scaled.exp().mul_(reference.WEIGHT_UNIT).round_().long()


def masked_rows(logits: Tensor, rows: Sequence[ChoiceRow]) -> Tensor:
    """Set logits to -inf where a row's grammar forbids the token: a copy, or the input."""
    found = [(index, row.allowed) for index, row in enumerate(rows) if row.allowed is not None]
    if not found:
        return logits
    for _, allowed in found:
        reference.check_allowed(allowed, logits.shape[1])
    forbidden = torch.from_numpy(~np.stack([allowed for _, allowed in found])).to(logits.device)
    masked = logits.clone(memory_format=torch.contiguous_format)
    where = torch.tensor([index for index, _ in found], device=logits.device)
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


def _take(table: Tensor, rows: Sequence[int]) -> Tensor:
    """Return the named rows; the table itself if those are all."""
    return table if len(rows) == table.shape[0] else table[list(rows)]


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
