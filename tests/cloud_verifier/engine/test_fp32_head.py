"""Final logits are float32 products of the stored weights, not rounded to half precision."""

from __future__ import annotations

import pytest

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
