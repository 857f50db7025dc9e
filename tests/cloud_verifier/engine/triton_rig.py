"""What the tests of Triton kernels share: where they run, and random steps with KV for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    import torch

    from cloud_verifier.core.target import StepPlan
    from cloud_verifier.engine.attention import AttentionTerms, StepAttention
    from cloud_verifier.engine.attention_plan import Cuts
    from cloud_verifier.engine.packing import PackedStep

NUM_SLOTS = 1024
Shape = tuple[int, int, str]
"""Prefix length, rows, "tree" or "chain"."""


def device_for_kernels() -> torch.device:
    """CUDA if there is any; else the CPU, where Triton must have been told to interpret
    (tests/conftest.py)."""
    import torch

    from cloud_verifier.engine.triton_attention import INTERPRETED

    if not INTERPRETED and not torch.cuda.is_available():
        pytest.skip("this machine has a CUDA driver and no device: set TRITON_INTERPRET=1")
    return torch.device("cpu" if INTERPRETED else "cuda")


class Uncut:
    """The kernels, for a probe without its long step: the interpreter takes minutes for a model's."""

    def prepare(self, step: PackedStep, device: torch.device) -> StepAttention:
        from cloud_verifier.engine.triton_attention import TritonBackend

        return TritonBackend().prepare(step, device)


def small_cuts() -> Cuts:
    """Cuts that make short contexts come in several splits, and small chunks wide."""
    from cloud_verifier.engine.attention_plan import Cut, Cuts

    return Cuts(narrow=Cut(rows=4, split=64), wide=Cut(rows=16, split=96), most_narrow=12)


def random_plan(shapes: Sequence[Shape], seed: int = 3) -> StepPlan:
    """Sessions of these shapes with scattered slots."""
    from cloud_verifier.core.target import StepPlan
    from tests.cloud_verifier.engine.tiny import Session, Slots

    random = np.random.default_rng(seed)
    slots = Slots(NUM_SLOTS)
    items = []
    for key, (prefix, count, kind) in enumerate(shapes):
        session = Session(key, slots, held=slots.take(prefix))
        tree = [int(random.integers(-1, row)) if row else -1 for row in range(count)]
        items.append(session.item([0] * count, tree if kind == "tree" else range(-1, count - 1), ()))
    return StepPlan(tuple(items))


def packed(shapes: Sequence[Shape], seed: int = 3) -> PackedStep:
    from cloud_verifier.engine.packing import StepLimits, pack

    return pack(random_plan(shapes, seed), StepLimits(10, 1000, NUM_SLOTS))


def both(
    step: PackedStep,
    heads: tuple[int, int, int, int],
    terms: AttentionTerms,
    dtype: torch.dtype,
    cuts: Cuts,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's attention and, on the same numbers in float32, the reference backend's; each [1, T, Hq,
    Dv].

    `heads` is Hq, Hkv, Dk, Dv.
    """
    import torch

    from cloud_verifier.engine.kv import LayerKV
    from cloud_verifier.engine.torch_ref import TorchRefBackend
    from cloud_verifier.engine.triton_attention import TritonBackend

    device = device_for_kernels()
    num_heads, num_kv_heads, key_depth, value_depth = heads
    torch.manual_seed(1)
    rows = torch.randn(NUM_SLOTS, num_kv_heads, key_depth + value_depth).to(device, dtype)
    query = torch.randn(1, step.num_rows, num_heads, key_depth).to(device, dtype).transpose(1, 2)
    kv = LayerKV(rows, rows[..., :key_depth], rows[..., key_depth:])
    wide = rows.float()
    reference = LayerKV(wide, wide[..., :key_depth], wide[..., key_depth:])
    expected = TorchRefBackend().prepare(step, device).attend(query.float(), reference, terms)
    attention = TritonBackend(cuts).prepare(step, device)
    return attention.attend(query, kv, terms), expected
