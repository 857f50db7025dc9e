"""An activation's bits depend on its row alone, and not on where the row stands.

torch's own do not keep to that: SiLU of 16 equal rows of 97 has two kinds of bits with AVX-512.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", ["silu", "gelu_new", "gelu_pytorch_tanh", "gelu", "sigmoid"])
@pytest.mark.parametrize(("num_rows", "width"), [(16, 97), (24, 897), (32, 5632)])
def test_an_activation_has_the_same_bits_in_every_row(name: str, num_rows: int, width: int) -> None:
    import torch
    from transformers.activations import ACT2FN

    from cloud_verifier.engine.exact_arithmetic import activate_row_by_row

    activation = ACT2FN[name]
    torch.manual_seed(0)
    row = torch.randn(width)
    plain = activation(row)
    assert activate_row_by_row(activation) == 1
    result = activation(row.expand(1, num_rows, width).contiguous())
    assert result.shape == (1, num_rows, width)
    assert bool((result == plain).all())


def test_a_model_is_changed_once() -> None:
    from cloud_verifier.engine.exact_arithmetic import activate_row_by_row
    from tests.cloud_verifier.engine.tiny import plain_model

    model = plain_model("llama")
    assert activate_row_by_row(model) == 2
    forward = model.model.layers[0].mlp.act_fn.forward
    assert activate_row_by_row(model) == 2
    assert model.model.layers[0].mlp.act_fn.forward is forward


def test_float32_products_are_not_rounded_to_less() -> None:
    import torch

    from cloud_verifier.engine.exact_arithmetic import use_exact_arithmetic

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        use_exact_arithmetic(torch.device("cpu"))
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)
