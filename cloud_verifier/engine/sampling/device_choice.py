"""Makes a step's choices on an accelerator: parameters go there in one array, tokens come back in one.

Rows that are greedy or sampled, with filters or without, need nothing more, so they can be part of a CUDA
graph. Rows with a grammar, a bias or penalties are late: they are chosen from the logits in a second pass,
all together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from cloud_verifier.core.engine_protocol import FloatArray, IntArray, StepItem
from cloud_verifier.engine.packing import IndexArray, PackedStep
from cloud_verifier.engine.sampling.choice_kernels import (
    EDGES,
    PASSES,
    find_best,
    find_edge,
    find_winner,
    merge,
    narrow,
)
from cloud_verifier.engine.sampling.device_rows import adjusted_rows
from cloud_verifier.engine.sampling.host_choice import ChoiceRow, choose_on_host
from common.choice import has_filters, log_min_p
from common.noise import noise_keys
from common.sampling import SamplingParams

SETTINGS = 4
"""Numbers of a row's choice: temperature, top-k (0: all), top-p, and the logarithm of min-p."""

GREEDY = (0.0, 0.0, 1.0, -np.inf)
"""Settings of greedy rows, and in the first pass of late ones."""


@dataclass(frozen=True, slots=True)
class ChoiceTable:
    """Holds what the choices of a step's output rows depend on, besides the logits."""

    settings: NDArray[np.float64]  # [4, O]
    keys: IndexArray  # [O] of the noise, as int64
    late: tuple[int, ...]  # output rows that are chosen from once more
    late_rows: tuple[ChoiceRow, ...]  # of them

    @property
    def num_rows(self) -> int:
        return len(self.keys)

    @property
    def filtered(self) -> bool:
        """Return whether any row of the first pass has filters."""
        return bool((self.settings[1:] != np.array(GREEDY[1:])[:, None]).any())

    @classmethod
    def of(cls, rows: Sequence[ChoiceRow], *, adjusted: bool = False) -> ChoiceTable:
        """Return the table of these rows. None is late if their logits are `adjusted` already."""
        late = () if adjusted else tuple(index for index, row in enumerate(rows) if is_late(row.params))
        settings = [GREEDY if index in late else settings_of(row.params) for index, row in enumerate(rows)]
        seeds = np.array([row.params.seed for row in rows], np.uint64)
        keys = noise_keys(seeds, np.array([row.position + 1 for row in rows], np.int64)).view(np.int64)
        numbers = np.array(settings, np.float64).reshape(-1, SETTINGS)
        return cls(np.ascontiguousarray(numbers.T), keys, late, tuple(rows[index] for index in late))


def choice_table(step: PackedStep, rows_of: Callable[[StepItem], list[ChoiceRow]]) -> ChoiceTable:
    """Return the table of `step`; `rows_of` gives the rows of an item that has late ones."""
    counts, settings, seeds = list[int](), list[tuple[float, ...]](), list[int]()
    late, late_rows, at = list[int](), list[ChoiceRow](), 0
    for item in step.items:
        count, sampling = len(item.outputs), item.sampling
        later = count > 0 and is_late(sampling)
        if later:
            late += range(at, at + count)
            late_rows += rows_of(item)
        counts.append(count)
        settings.append(GREEDY if later else settings_of(sampling))
        seeds.append(sampling.seed)
        at += count
    numbers = np.array(settings, np.float64).reshape(-1, SETTINGS)
    return ChoiceTable(
        numbers.T.repeat(counts, axis=1),
        _keys(step, counts, seeds) if numbers[:, 0].any() else np.zeros(at, np.int64),
        tuple(late),
        tuple(late_rows),
    )


def is_late(sampling: SamplingParams) -> bool:
    """Return whether the choice depends on more than the logits, `settings_of` and the noise."""
    return sampling.reads_text or bool(sampling.logit_bias)


def settings_of(sampling: SamplingParams) -> tuple[float, ...]:
    """Return the settings of a row that is not late, or whose logits are adjusted already."""
    if not has_filters(sampling):
        return (sampling.temperature, *GREEDY[1:])
    return sampling.temperature, float(sampling.top_k), sampling.top_p, log_min_p(sampling)


def _keys(step: PackedStep, counts: Sequence[int], seeds: Sequence[int]) -> IndexArray:
    written_at = step.positions[step.outputs] + 1
    return noise_keys(np.repeat(np.array(seeds, np.uint64), counts), written_at).view(np.int64)


def choose_plain(logits: Tensor, settings: Tensor, keys: Tensor, out: Tensor, *, filtered: bool) -> None:
    """Write the choices of logits float32 [O, V] to `out`, int32 [2, O]: tokens, and the margins' bits.

    Nothing waits for the host. Tables as in `ChoiceTable`, on the device; late rows get wrong values here.
    Without `filtered`, filters are ignored.
    """
    tokens, margins = choose_rows(logits, settings, keys, filtered=filtered)
    out[0].copy_(tokens)
    out[1].copy_(margins.view(torch.int32))


def choose_eagerly(logits: Tensor, table: ChoiceTable) -> Tensor:
    """Return what `choose_plain` writes, int32 [2, O] on the logits' device, with one transfer to it."""
    packed = torch.from_numpy(np.concatenate((table.settings.view(np.int64), table.keys[None])))
    there = packed.to(logits.device)
    result = torch.empty((2, table.num_rows), dtype=torch.int32, device=logits.device)
    settings = there[:SETTINGS].view(torch.float64)
    choose_plain(logits, settings, there[SETTINGS], result, filtered=table.filtered)
    return result


def finish(logits: Tensor, plain: Tensor, table: ChoiceTable) -> tuple[IntArray, FloatArray]:
    """Return choices int32 [O] and margins float32 [O] on the host, of `choose_plain` and of late rows.

    Raises `LocalError` for logits without a finite maximum in each row.
    """
    late = _choose_late(logits, table) if table.late else None
    early = _on_host(plain)[:, : table.num_rows]
    choices, margins = early[0].copy(), early[1].view(np.float32).copy()
    broken = np.isnan(margins)
    if late is not None:
        places, later = np.array(table.late), _on_host(late)
        choices[places], margins[places] = later[0], later[1].view(np.float32)
        broken |= np.isnan(margins)
    if bool(broken.any()):
        row = int(broken.argmax())
        choose_on_host(logits[row : row + 1].cpu().numpy(), [ChoiceRow(SamplingParams(), 0)])  # raises
    return choices, margins


def _choose_late(logits: Tensor, table: ChoiceTable) -> Tensor:
    numbers = torch.tensor(table.late, device=logits.device)
    adjusted = adjusted_rows(logits.index_select(0, numbers), table.late_rows)
    return choose_eagerly(adjusted, ChoiceTable.of(table.late_rows, adjusted=True))


def _on_host(results: Tensor) -> IntArray:
    """Return all of `results`, int32, through pinned memory: a slice of it would be a kernel more."""
    if not results.is_cuda:
        return results.numpy()
    pinned = torch.empty(results.shape, dtype=results.dtype, pin_memory=True)
    pinned.copy_(results, non_blocking=True)
    torch.cuda.current_stream(results.device).synchronize()
    return pinned.numpy()


NUM_TOKENS = 2048
"""Tokens in a block."""

SHARE = 4
"""Blocks of a program of `narrow` and `find_edge`: most programs find nothing to do, and starting one costs
as much as a block of work."""


def choose_rows(logits: Tensor, settings: Tensor, keys: Tensor, *, filtered: bool) -> tuple[Tensor, Tensor]:
    """Return choices int32 [R] and margins float32 [R] of logits float32 [R, V]; nothing goes to the host.

    The logits' columns lie side by side. `settings` float64 [4, R] as in `ChoiceTable`, `keys` int64 [R] of
    `noise.noise_keys`. A margin is nan where a row of logits has no finite maximum.
    """
    num_rows, num_tokens = logits.shape
    blocks = triton.cdiv(num_tokens, NUM_TOKENS)
    sizes = {"BLOCK": NUM_TOKENS, "BLOCKS": triton.next_power_of_2(blocks)}
    given, shape = (logits, logits.stride(0)), (num_rows, blocks)

    def table(*size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype, device=logits.device)

    best, second = table(*shape, dtype=torch.float32), table(*shape, dtype=torch.float32)
    best_token, winner, runner_up = (table(*shape, dtype=torch.int32) for _ in range(3))
    find_best[blocks, num_rows](*given, best, best_token, second, num_tokens, BLOCK=NUM_TOKENS, num_warps=8)
    edges = (settings, keys, best_token, best_token)  # unread without filters
    if filtered:
        edges = _edges(logits, settings, best, sizes)
    find_winner[blocks, num_rows](
        *given, settings, keys, *edges, best, winner, runner_up, num_tokens,
        FILTERED=filtered, **sizes, num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    choices, margins = table(num_rows, dtype=torch.int32), table(num_rows, dtype=torch.float32)
    merge[(num_rows,)](
        *given, settings, keys, best, best_token, second, winner, runner_up, choices, margins, blocks,
        BLOCKS=sizes["BLOCKS"], enable_fp_fusion=False,
    )  # fmt: skip
    return choices, margins


Edges = tuple[Tensor, Tensor, Tensor, Tensor]
"""What `find_edge` finds of the last token that each row's filters keep."""


def _edges(logits: Tensor, settings: Tensor, block_best: Tensor, sizes: Mapping[str, int]) -> Edges:
    """Search the last tokens that the filters keep; all programs of rows without filters end at once."""
    (num_rows, blocks), num_tokens, device = block_best.shape, logits.shape[1], logits.device
    states = torch.empty((2, PASSES, num_rows, 4), dtype=torch.int64, device=device)
    sums = torch.zeros((2, PASSES, num_rows, EDGES), dtype=torch.int64, device=device)
    grid = triton.cdiv(blocks, SHARE), num_rows
    given = logits, logits.stride(0), settings, block_best, states, sums
    for weights in (False, True):
        for turn in range(PASSES):
            narrow[grid](
                *given, num_tokens, blocks, turn, SHARE=SHARE, WEIGHTS=weights, FIRST=turn == 0, **sizes,
                num_warps=8, enable_fp_fusion=False,
            )  # fmt: skip
    edges = (
        torch.empty(num_rows, dtype=torch.float64, device=device),
        torch.empty(num_rows, dtype=torch.int64, device=device),
        torch.empty_like(block_best, dtype=torch.int32),
        torch.empty_like(block_best, dtype=torch.int32),
    )
    find_edge[grid](
        *given, *edges, num_tokens, blocks, SHARE=SHARE, **sizes, num_warps=8, enable_fp_fusion=False
    )
    return edges
