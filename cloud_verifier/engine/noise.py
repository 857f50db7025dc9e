"""`common.noise` in torch: the same 64-bit integers on CPU and CUDA, many rows at once.

torch has hardly any unsigned 64-bit arithmetic, so the integers are int64: sums and products wrap the same,
and a logical shift is an arithmetic one with the copied sign bits masked off.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from common import noise as reference


def _signed(number: int) -> int:
    """The int64 with the bits of an unsigned 64-bit integer."""
    return number - 2**64 if number >= 2**63 else number


_GAMMA = _signed(reference.GAMMA)
_FACTORS = tuple(_signed(factor) for factor in reference.MIX_FACTORS)
_UNUSED_BITS = 64 - reference.UNIFORM_BITS


def noise_keys(seeds: Sequence[int], positions: Sequence[int], device: torch.device) -> Tensor:
    """Keys of rows, int64 [R], from their seeds (unsigned 64 bits) and positions; made on the host."""
    keys = reference.noise_keys(np.array(seeds, np.uint64), np.array(positions, np.int64))
    return torch.from_numpy(keys.view(np.int64)).to(device)


def noise_bits(keys: Tensor, tokens: Tensor) -> Tensor:
    """64 noise bits, as int64, of token ids under keys (both int64); they broadcast, as in [R, 1] and [V]."""
    state = keys + (tokens + 1) * _GAMMA
    scratch = torch.empty_like(state)
    for shift, factor in zip(reference.MIX_SHIFTS[:2], _FACTORS, strict=True):
        state.bitwise_xor_(_shifted(state, shift, scratch)).mul_(factor)
    return state.bitwise_xor_(_shifted(state, reference.MIX_SHIFTS[2], scratch))


def gumbel(keys: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise, float64, of token ids under keys; shapes as in `noise_bits`."""
    bits = noise_bits(keys, tokens)
    noise = _shifted(bits, _UNUSED_BITS, bits).double()
    noise.add_(0.5).mul_(2.0**-reference.UNIFORM_BITS)
    return noise.log_().neg_().log_().neg_()


def _shifted(bits: Tensor, shift: int, out: Tensor) -> Tensor:
    """Logical right shift of int64, written to `out`."""
    torch.bitwise_right_shift(bits, shift, out=out)
    return out.bitwise_and_(2 ** (64 - shift) - 1)
