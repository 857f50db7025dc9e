"""Choices of a whole step on an accelerator: parameters go there in one array, tokens come back in one.

Rows that are greedy, or sampled from the logits as they are, need nothing more, so they can be part of a
CUDA graph. Rows with filters, a grammar, a bias or penalties are late: they are chosen from the logits once
more, all together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloud_verifier.core.target import FloatArray, IntArray, StepItem
from cloud_verifier.engine import choice
from cloud_verifier.engine.choice import ChoiceRow, adjusted_rows, choose_dense, last_of_front
from cloud_verifier.engine.packing import IndexArray, PackedStep
from cloud_verifier.engine.triton_choice import Bests, Bounds, best_of, choose_rows, total_weights
from common.choice import has_filters
from common.noise import noise_keys
from common.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class ChoiceTable:
    """What the choices of a step's output rows depend on, besides the logits."""

    temperatures: NDArray[np.float64]  # [O] 0 for greedy rows, and for late ones
    keys: IndexArray  # [O] of the noise, as int64
    late: tuple[int, ...]  # output rows that are chosen from once more
    late_rows: tuple[ChoiceRow, ...]  # of them

    @property
    def num_rows(self) -> int:
        return len(self.keys)


def choice_table(step: PackedStep, rows_of: Callable[[StepItem], list[ChoiceRow]]) -> ChoiceTable:
    """The table of `step`; `rows_of` tells the rows of an item that has late ones."""
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
    """Whether the choice depends on more than the logits, the temperature and the noise."""
    return sampling.reads_text or bool(sampling.logit_bias) or has_filters(sampling)


def _keys(step: PackedStep, counts: Sequence[int], seeds: Sequence[int]) -> IndexArray:
    written_at = step.positions[step.outputs] + 1
    return noise_keys(np.repeat(np.array(seeds, np.uint64), counts), written_at).view(np.int64)


def choose_plain(logits: Tensor, temperatures: Tensor, keys: Tensor, out: Tensor) -> None:
    """The choices of logits float32 [O, V] into `out`, int32 [2, O]: tokens, and the margins' bits.

    Nothing waits for the host. Tables as in `ChoiceTable`, on the device; what late rows get is not theirs.
    """
    tokens, margins = choose_rows(logits, temperatures, keys)
    out[0].copy_(tokens)
    out[1].copy_(margins.view(torch.int32))


def finish(logits: Tensor, plain: Tensor, table: ChoiceTable) -> tuple[IntArray, FloatArray]:
    """Choices int32 [O] and margins float32 [O] on the host: those of `choose_plain`, and those of late rows.

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
    """All of `results`, int32, through pinned memory: a slice of it would be a kernel more."""
    if not results.is_cuda:
        return results.numpy()
    pinned = torch.empty(results.shape, dtype=results.dtype, pin_memory=True)
    pinned.copy_(results, non_blocking=True)
    torch.cuda.current_stream(results.device).synchronize()
    return pinned.numpy()


def _row(table: ChoiceTable, row: int) -> ChoiceRow:
    """The row for an error's sake: late ones as they are, others greedy, as broken logits are so for all."""
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
    bounds, settled = _bounds(adjusted, temperatures, found, [row.params for row in rows])
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
    logits: Tensor, temperatures: Tensor, found: Bests, params: Sequence[SamplingParams]
) -> tuple[Bounds, Tensor]:
    """The last token that each row's filters keep, and whether `choice.FRONT` tokens told it, bool [R]."""
    num_rows = len(params)
    values = torch.full((num_rows,), -torch.inf, dtype=torch.float64, device=logits.device)
    tokens = torch.full((num_rows,), logits.shape[1], dtype=torch.int64, device=logits.device)
    settled = torch.ones(num_rows, dtype=torch.bool, device=logits.device)
    filtered = [row for row, one in enumerate(params) if has_filters(one)]
    if filtered:
        rows = torch.tensor(filtered, device=logits.device)
        last = _last_kept(logits, temperatures, found, rows, [params[row] for row in filtered])
        for whole, part in zip((values, tokens, settled), last, strict=True):
            whole.index_copy_(0, rows, part.squeeze(1))
    return Bounds(values, tokens), settled


def _last_kept(
    logits: Tensor, temperatures: Tensor, found: Bests, rows: Tensor, params: Sequence[SamplingParams]
) -> tuple[Tensor, Tensor, Tensor]:
    """`choice.last_of_front` of the named rows, from their best `choice.FRONT` tokens."""
    part, cooled = logits.index_select(0, rows), temperatures.index_select(0, rows)
    best = Bests(*(table.index_select(0, rows) for table in (found.logits, found.tokens, found.seconds)))
    front, tokens = part.topk(min(choice.FRONT, part.shape[1]), dim=1)
    highest = front[:, :1].double()
    tokens, order = tokens.sort(dim=1)
    values = (front.gather(1, order).double() - highest) / cooled.unsqueeze(1)
    values, best_first = values.sort(dim=1, descending=True, stable=True)
    whole = front.shape[1] == part.shape[1]
    return last_of_front(
        values,
        tokens.gather(1, best_first),
        whole,
        params,
        lambda: total_weights(part, cooled, best).unsqueeze(1),
    )
