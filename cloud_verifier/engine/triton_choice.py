"""Choices by Triton: what `choice.choose_dense` computes, in two passes over the logits.

torch alone needs some forty passes in float64 for rows that are sampled, half a step of an 8B model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from cloud_verifier.engine.triton_choice_kernel import find_best, find_winner, merge, weigh

NUM_TOKENS = 2048
"""Tokens in a block."""


@dataclass(frozen=True, slots=True)
class Bests:
    """What `find_best` found, each [R, blocks]."""

    logits: Tensor  # float32
    tokens: Tensor  # int32
    seconds: Tensor  # float32


@dataclass(frozen=True, slots=True)
class Bounds:
    """The last token that filters keep in each row, each [R]; those before it, best first, are kept, too."""

    values: Tensor  # float64, logit below the best over the temperature
    tokens: Tensor  # int64


def best_of(logits: Tensor) -> Bests:
    """The first pass, over float32 logits [R, V] whose columns lie side by side."""
    num_rows, num_tokens = logits.shape
    shape = num_rows, triton.cdiv(num_tokens, NUM_TOKENS)
    found = Bests(
        logits.new_empty(shape), logits.new_empty(shape, dtype=torch.int32), logits.new_empty(shape)
    )
    find_best[shape[::-1]](
        logits,
        logits.stride(0),
        found.logits,
        found.tokens,
        found.seconds,
        num_tokens,
        BLOCK=NUM_TOKENS,
        num_warps=8,
    )
    return found


def total_weights(logits: Tensor, temperatures: Tensor, found: Bests) -> Tensor:
    """The integer weights of all tokens of each row, int64 [R]; temperatures float64 [R], none 0."""
    blocks = found.logits.shape[1]
    weights = torch.empty(found.logits.shape, dtype=torch.int64, device=logits.device)
    weigh[blocks, len(logits)](
        logits, logits.stride(0), temperatures, found.logits, weights, logits.shape[1],
        BLOCK=NUM_TOKENS, BLOCKS=triton.next_power_of_2(blocks), num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    return weights.sum(dim=1)


def choose_rows(
    logits: Tensor,
    temperatures: Tensor,
    keys: Tensor,
    found: Bests | None = None,
    bounds: Bounds | None = None,
) -> tuple[Tensor, Tensor]:
    """The choices int32 [R] and margins float32 [R] of logits float32 [R, V]; nothing is brought to the host.

    `temperatures` float64 [R], 0 for greedy rows; `keys` int64 [R] of `noise.noise_keys`. A margin is nan
    where a row of logits has no finite maximum.
    """
    found = found or best_of(logits)
    shape, num_rows = found.logits.shape, len(logits)
    blocks = shape[1]
    kinds = (torch.float64, torch.int32, torch.float64)
    winners = [torch.empty(shape, dtype=kind, device=logits.device) for kind in kinds]
    limits = (temperatures, keys) if bounds is None else (bounds.values, bounds.tokens)
    padded = triton.next_power_of_2(blocks)
    find_winner[blocks, num_rows](
        logits, logits.stride(0), temperatures, keys, *limits, found.logits, *winners, logits.shape[1],
        BLOCK=NUM_TOKENS, BLOCKS=padded, BOUNDED=bounds is not None, num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    choices = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    margins = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    merge[(num_rows,)](
        temperatures,
        found.logits,
        found.tokens,
        found.seconds,
        *winners,
        choices,
        margins,
        blocks,
        BLOCKS=padded,
    )
    return choices, margins
