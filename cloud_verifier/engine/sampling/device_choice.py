"""Makes a step's choices on an accelerator: parameters go there in one array, tokens come back in one.

Rows that are greedy, or sampled from the logits as they are, need nothing more, so they can be part of a
CUDA graph. Rows with filters, a grammar, a bias or penalties are late: they are chosen from the logits in a
second pass, all together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from cloud_verifier.core.nouns import FloatArray, IntArray, StepItem
from cloud_verifier.engine.packing import IndexArray, PackedStep
from cloud_verifier.engine.sampling import choice
from cloud_verifier.engine.sampling.choice import adjusted_rows, choose_dense, last_of_front
from cloud_verifier.engine.sampling.host import ChoiceRow
from cloud_verifier.engine.sampling.triton_kernels import find_best, find_winner, merge, weigh
from common.choice import has_filters
from common.noise import noise_keys
from common.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class ChoiceTable:
    """Holds what the choices of a step's output rows depend on, besides the logits."""

    temperatures: NDArray[np.float64]  # [O] 0 for greedy rows, and for late ones
    keys: IndexArray  # [O] of the noise, as int64
    late: tuple[int, ...]  # output rows that are chosen from once more
    late_rows: tuple[ChoiceRow, ...]  # of them

    @property
    def num_rows(self) -> int:
        return len(self.keys)


def choice_table(step: PackedStep, rows_of: Callable[[StepItem], list[ChoiceRow]]) -> ChoiceTable:
    """Return the table of `step`; `rows_of` gives the rows of an item that has late ones."""
    counts, temperatures, seeds = list[int](), list[float](), list[int]()
    late, late_rows, at = list[int](), list[ChoiceRow](), 0
    for item in step.items:
        count, sampling = len(item.outputs), item.sampling
        is_late = count > 0 and needs_more(sampling)
        if is_late:
            late += range(at, at + count)
            late_rows += rows_of(item)
        counts.append(count)
        temperatures.append(0.0 if is_late else sampling.temperature)
        seeds.append(sampling.seed)
        at += count
    return ChoiceTable(
        np.repeat(np.array(temperatures), counts),
        _keys(step, counts, seeds) if any(temperatures) else np.zeros(at, np.int64),
        tuple(late),
        tuple(late_rows),
    )


def needs_more(sampling: SamplingParams) -> bool:
    """Return whether the choice depends on more than the logits, the temperature and the noise."""
    return sampling.reads_text or bool(sampling.logit_bias) or has_filters(sampling)


def _keys(step: PackedStep, counts: Sequence[int], seeds: Sequence[int]) -> IndexArray:
    written_at = step.positions[step.outputs] + 1
    return noise_keys(np.repeat(np.array(seeds, np.uint64), counts), written_at).view(np.int64)


def choose_plain(logits: Tensor, temperatures: Tensor, keys: Tensor, out: Tensor) -> None:
    """Write the choices of logits float32 [O, V] to `out`, int32 [2, O]: tokens, and the margins' bits.

    Nothing waits for the host. Tables as in `ChoiceTable`, on the device; late rows get wrong values here.
    """
    tokens, margins = choose_rows(logits, temperatures, keys)
    out[0].copy_(tokens)
    out[1].copy_(margins.view(torch.int32))


def finish(logits: Tensor, plain: Tensor, table: ChoiceTable) -> tuple[IntArray, FloatArray]:
    """Return choices int32 [O] and margins float32 [O] on the host, of `choose_plain` and of late rows.

    Raises `LocalError` for logits without a finite maximum in each row.
    """
    late = _choose_late(logits, table) if table.late else None
    found = _on_host(plain)[:, : table.num_rows]
    choices, margins = found[0].copy(), found[1].view(np.float32).copy()
    broken = np.isnan(margins)
    if late is not None:
        places = np.array(table.late)
        choices[places], margins[places] = late
        broken |= np.isnan(margins)
    if bool(broken.any()):
        row = int(broken.argmax())
        choose_dense(logits[row : row + 1], [_row(table, row)])  # raises, with the value
    return choices, margins


def _on_host(results: Tensor) -> IntArray:
    """Return all of `results`, int32, through pinned memory: a slice of it would be a kernel more."""
    if not results.is_cuda:
        return results.numpy()
    pinned = torch.empty(results.shape, dtype=results.dtype, pin_memory=True)
    pinned.copy_(results, non_blocking=True)
    torch.cuda.current_stream(results.device).synchronize()
    return pinned.numpy()


def _row(table: ChoiceTable, row: int) -> ChoiceRow:
    """Return the row for an error's sake: late ones as they are, others greedy, as broken logits are so for
    all."""
    return table.late_rows[table.late.index(row)] if row in table.late else ChoiceRow(SamplingParams(), 0)


def _choose_late(logits: Tensor, table: ChoiceTable) -> tuple[IntArray, FloatArray]:
    """Choices and margins of the late rows, with two transfers for all of them unless filters reach deep."""
    rows = table.late_rows
    numbers = torch.tensor(table.late, device=logits.device)
    adjusted = adjusted_rows(logits.index_select(0, numbers), rows)
    keys = noise_keys(
        np.array([row.params.seed for row in rows], np.uint64), np.array([row.position + 1 for row in rows])
    )
    packed = np.stack(
        (np.array([row.params.temperature for row in rows]).view(np.int64), keys.view(np.int64))
    )
    on_device = torch.from_numpy(packed).to(logits.device)
    temperatures, device_keys = on_device[0].view(torch.float64), on_device[1]
    found = best_of(adjusted)
    bounds, settled = _bounds(adjusted, temperatures, found[0], [row.params for row in rows])
    tokens, margins = choose_rows(adjusted, temperatures, device_keys, found, bounds)
    packed_result = torch.stack((tokens, margins.view(torch.int32), settled.int())).cpu().numpy()
    choices, margin_bits, was_settled = packed_result[0].copy(), packed_result[1].copy(), packed_result[2]
    scores = margin_bits.view(np.float32)
    deep = np.flatnonzero(was_settled == 0)
    if len(deep):
        again = choose_dense(logits[[table.late[row] for row in deep]], [rows[row] for row in deep])
        choices[deep], scores[deep] = again[0].cpu().numpy(), again[1].cpu().numpy()
    return choices, scores


def _bounds(
    logits: Tensor, temperatures: Tensor, block_best: Tensor, params: Sequence[SamplingParams]
) -> tuple[Bounds, Tensor]:
    """Return the last token that each row's filters keep, and whether `choice.FRONT` tokens told it, bool
    [R]."""
    num_rows = len(params)
    values = torch.full((num_rows,), -torch.inf, dtype=torch.float64, device=logits.device)
    tokens = torch.full((num_rows,), logits.shape[1], dtype=torch.int64, device=logits.device)
    settled = torch.ones(num_rows, dtype=torch.bool, device=logits.device)
    filtered = [row for row, one in enumerate(params) if has_filters(one)]
    if filtered:
        rows = torch.tensor(filtered, device=logits.device)
        parts = (table.index_select(0, rows) for table in (logits, temperatures, block_best))
        last = _last_kept([params[row] for row in filtered], *parts)
        for whole, part in zip((values, tokens, settled), last, strict=True):
            whole.index_copy_(0, rows, part.squeeze(1))
    return (values, tokens), settled


def _last_kept(
    params: Sequence[SamplingParams], logits: Tensor, temperatures: Tensor, block_best: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`choice.last_of_front` of filtered rows, from their best `choice.FRONT` tokens."""
    front, tokens = logits.topk(min(choice.FRONT, logits.shape[1]), dim=1)
    highest = front[:, :1].double()
    tokens, order = tokens.sort(dim=1)
    values = (front.gather(1, order).double() - highest) / temperatures.unsqueeze(1)
    values, best_first = values.sort(dim=1, descending=True, stable=True)
    whole = front.shape[1] == logits.shape[1]
    everything = partial(total_weights, logits, temperatures, block_best)
    return last_of_front(values, tokens.gather(1, best_first), whole, params, everything)


NUM_TOKENS = 2048
"""Tokens in a block."""


Bests = tuple[Tensor, Tensor, Tensor]
"""Each block's best logit float32, its token int32 and the second best logit, of `find_best`; [R, blocks]."""

Bounds = tuple[Tensor, Tensor]
"""The last token that filters keep in each row [R]: its logit below the best over the temperature, float64,
and its id, int64. Those before it, best first, are kept, too."""


def best_of(logits: Tensor) -> Bests:
    """Run the first pass over float32 logits [R, V] whose columns lie side by side."""
    num_rows, num_tokens = logits.shape
    shape = num_rows, triton.cdiv(num_tokens, NUM_TOKENS)
    found = logits.new_empty(shape), logits.new_empty(shape, dtype=torch.int32), logits.new_empty(shape)
    find_best[shape[::-1]](logits, logits.stride(0), *found, num_tokens, BLOCK=NUM_TOKENS, num_warps=8)
    return found


def total_weights(logits: Tensor, temperatures: Tensor, block_best: Tensor) -> Tensor:
    """Sum the integer weights of all tokens of each row, int64 [R, 1]; temperatures float64 [R], none 0."""
    blocks = block_best.shape[1]
    weights = torch.empty(block_best.shape, dtype=torch.int64, device=logits.device)
    weigh[blocks, len(logits)](
        logits, logits.stride(0), temperatures, block_best, weights, logits.shape[1],
        BLOCK=NUM_TOKENS, BLOCKS=triton.next_power_of_2(blocks), num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    return weights.sum(dim=1, keepdim=True)


def choose_rows(
    logits: Tensor,
    temperatures: Tensor,
    keys: Tensor,
    found: Bests | None = None,
    bounds: Bounds | None = None,
) -> tuple[Tensor, Tensor]:
    """Return choices int32 [R] and margins float32 [R] of logits float32 [R, V]; nothing goes to the host.

    `temperatures` float64 [R], 0 for greedy rows; `keys` int64 [R] of `noise.noise_keys`. A margin is nan
    where a row of logits has no finite maximum.
    """
    found = found or best_of(logits)
    shape = num_rows, blocks = found[0].shape
    kinds = (torch.float64, torch.int32, torch.float64)
    winners = [torch.empty(shape, dtype=kind, device=logits.device) for kind in kinds]
    limits = bounds or (temperatures, keys)
    padded = triton.next_power_of_2(blocks)
    find_winner[blocks, num_rows](
        logits, logits.stride(0), temperatures, keys, *limits, found[0], *winners, logits.shape[1],
        BLOCK=NUM_TOKENS, BLOCKS=padded, BOUNDED=bounds is not None, num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    choices = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    margins = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    merge[(num_rows,)](temperatures, *found, *winners, choices, margins, blocks, BLOCKS=padded)
    return choices, margins
