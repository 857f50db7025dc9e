"""What the tests of Triton kernels share: where they run, and their results beside the right ones."""

import pytest
import torch

from cloud_verifier.engine.attention.attention_units import Cuts, WorkCut
from cloud_verifier.engine.attention.backend import AttentionBackend, AttentionTerms, LayerKV, StepAttention
from cloud_verifier.engine.attention.triton_backend import INTERPRETED, TritonBackend
from cloud_verifier.engine.packing import PackedStep
from tests.cloud_verifier.engine.attention_definition import attention_by_definition
from tests.cloud_verifier.engine.attention_rig import layer, query_for


def device_for_kernels() -> torch.device:
    """CUDA if there is any; else the CPU, where Triton must have been told to interpret
    (tests/conftest.py)."""
    if not INTERPRETED and not torch.cuda.is_available():
        pytest.skip("this machine has a CUDA driver and no device: set TRITON_INTERPRET=1")
    return torch.device("cpu" if INTERPRETED else "cuda")


class Uncut(AttentionBackend):
    """The kernels, for a probe without its long step: the interpreter takes minutes for a model's."""

    def prepare(self, step: PackedStep, device: torch.device) -> StepAttention:
        return TritonBackend().prepare(step, device)


def small_cuts() -> Cuts:
    """Cuts that make short contexts come in several splits, and small chunks wide."""
    return Cuts(narrow=WorkCut(rows=4, split=64), wide=WorkCut(rows=16, split=96), most_narrow=12)


def both(
    step: PackedStep, heads: tuple[int, int, int, int], terms: AttentionTerms, dtype: torch.dtype, cuts: Cuts
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's attention and, on the same numbers in float32, the definition's; each [T, Hq, Dv].

    `heads` is Hq, Hkv, Dk, Dv.
    """
    device = device_for_kernels()
    num_heads, num_kv_heads, key_depth, value_depth = heads
    rows = layer(num_kv_heads, key_depth, value_depth).rows.to(device, dtype)
    kv = LayerKV(rows, rows[..., :key_depth], rows[..., key_depth:])
    query = query_for(step.num_rows, num_heads, key_depth).to(device, dtype)
    attention = TritonBackend(cuts).prepare(step, device)
    return attention.attend(query, kv, terms)[0], attention_by_definition(step, query, kv, terms)
