"""Final logits are float32 products of the stored weights, not rounded to half precision."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("with_bias", [False, True])
def test_half_precision_heads_sum_in_float32(with_bias: bool) -> None:
    import torch

    from cloud_verifier.engine.fp32_head import install_fp32_head

    head = torch.nn.Linear(16, 7, bias=with_bias, dtype=torch.bfloat16)
    hidden = torch.randn(1, 3, 16, dtype=torch.bfloat16)
    rounded = head(hidden)
    install_fp32_head(head)
    logits = head(hidden)
    exact = hidden.double() @ head.weight.double().T + (head.bias.double() if with_bias else 0.0)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), exact, rtol=1e-5, atol=1e-6)
    assert not torch.equal(logits.to(torch.bfloat16).float(), logits)
    torch.testing.assert_close(rounded.float(), logits, rtol=0.02, atol=0.02)


def test_other_heads_are_left_alone() -> None:
    import torch

    from cloud_verifier.engine.fp32_head import install_fp32_head

    for head in (torch.nn.Linear(4, 4), torch.nn.Identity(), None):
        install_fp32_head(head)
        assert head is None or "forward" not in vars(head)


def test_an_engine_of_a_half_precision_model_gives_float32_logits() -> None:
    import torch

    from cloud_verifier.core.target import StepPlan
    from cloud_verifier.engine.engine import TorchEngine
    from tests.cloud_verifier.engine.tiny import Session, Slots, target

    engine = TorchEngine(target("gemma2", torch.bfloat16), 16)
    logits = engine.logits(StepPlan((Session(1, Slots(16)).chunk([1, 2, 3], [0, 2]),)))
    assert logits.dtype == torch.float32
    assert not torch.equal(logits.to(torch.bfloat16).float(), logits)


def on_cuda(hidden: torch.Tensor, patch: pytest.MonkeyPatch) -> torch.Tensor:
    """The same numbers, which say that they lie on a GPU. `torch.mm` then takes what only CUDA's does."""
    import torch

    class OnCuda(torch.Tensor):
        is_cuda = True

    def mm(left: torch.Tensor, right: torch.Tensor, **words: Any) -> torch.Tensor:
        assert left.dtype == right.dtype != words["out_dtype"] == torch.float32
        return left.float() @ right.float()

    patch.setattr(torch, "mm", mm)
    return hidden.as_subclass(OnCuda)


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_head_on_a_gpu_takes_any_number_of_rows(
    rows: int, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from cloud_verifier.engine.fp32_head import install_fp32_head

    head = torch.nn.Linear(16, 7, bias=with_bias, dtype=torch.bfloat16)
    hidden = torch.randn(1, rows, 16, dtype=torch.bfloat16)
    install_fp32_head(head)
    expected = head(hidden)
    logits = head(on_cuda(hidden, monkeypatch))
    assert (tuple(logits.shape), logits.dtype) == ((1, rows, 7), torch.float32)
    torch.testing.assert_close(logits.as_subclass(torch.Tensor), expected)


def test_a_head_computes_nothing_where_no_row_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from cloud_verifier.engine.fp32_head import install_fp32_head

    head = torch.nn.Linear(16, 7, dtype=torch.bfloat16)
    hidden = on_cuda(torch.randn(1, 0, 16, dtype=torch.bfloat16), monkeypatch)
    install_fp32_head(head)
    monkeypatch.delattr(torch, "mm")
    assert head(hidden).shape == (1, 0, 7)


def test_a_head_on_a_gpu_keeps_no_float32_weight_of_a_time_when_it_was_widened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from cloud_verifier.engine.fp32_head import install_fp32_head
    from cloud_verifier.engine.widening import float32_inside

    head = torch.nn.Linear(19, 11, bias=False, dtype=torch.bfloat16)
    hidden = on_cuda(torch.randn(1, 3, 19, dtype=torch.bfloat16), monkeypatch)
    install_fp32_head(head)
    head(hidden)
    with float32_inside(head, 1):
        assert head.weight.dtype == torch.float32
        head(hidden.float())
    gc.collect()
    kept = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    assert not [tensor for tensor in kept if tensor.shape == (11, 19) and tensor.dtype == torch.float32]
