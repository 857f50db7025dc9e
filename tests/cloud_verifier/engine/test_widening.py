"""A widened model computes what its weights say in float32, layer by layer, and is itself again after."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytestmark = pytest.mark.torch

HALF = ("bfloat16", "float16")


def half_model(family: str, dtype: str) -> Any:
    import torch

    from tests.cloud_verifier.engine.tiny import plain_model

    return plain_model(family, getattr(torch, dtype)).eval()


def logits_of(model: Any) -> Any:
    import torch

    with torch.inference_mode():
        return model(input_ids=torch.arange(20)[None], use_cache=False).logits


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "qwen3_moe", "opt"])
def test_it_computes_what_a_float32_copy_computes(family: str, dtype: str) -> None:
    import torch

    from cloud_verifier.engine.widening import float32_inside

    model = half_model(family, dtype)
    expected = logits_of(copy.deepcopy(model).float())
    before = logits_of(model)
    with float32_inside(model, 2):
        widened = logits_of(model)
    assert widened.dtype == torch.float32
    torch.testing.assert_close(widened, expected, rtol=1e-5, atol=1e-5)
    assert before.dtype == getattr(torch, dtype)
    assert torch.equal(logits_of(model), before)


def test_one_weight_of_embeddings_and_head_is_widened_once() -> None:
    """It is the largest tensor of a small model, so a second copy would be most of the probe's memory."""
    from cloud_verifier.engine.widening import float32_inside

    model = half_model("gemma2", "bfloat16")
    with float32_inside(model, 2):
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_only_the_layer_that_computes_is_wide() -> None:
    import torch

    from cloud_verifier.engine.widening import float32_inside

    model = half_model("llama", "bfloat16")
    layers = model.model.layers
    seen: list[list[torch.dtype]] = []
    for layer in layers:
        layer.mlp.register_forward_hook(
            lambda *_: seen.append([one.mlp.up_proj.weight.dtype for one in layers])
        )
    with float32_inside(model, 2):
        assert model.model.embed_tokens.weight.dtype == torch.float32
        assert model.dtype == torch.float32
        logits_of(model)
    wide, stored = torch.float32, torch.bfloat16
    assert seen == [[wide, stored], [stored, wide]]


def test_it_is_itself_again_after_a_failure() -> None:
    from cloud_verifier.engine.widening import float32_inside

    model = half_model("llama", "bfloat16")
    before = {name: id(parameter) for name, parameter in model.named_parameters()}

    def failing(*_: Any) -> None:
        raise RuntimeError("in the middle of a layer")

    hook = model.model.layers[1].mlp.register_forward_hook(failing)
    with pytest.raises(RuntimeError, match="middle"), float32_inside(model, 2):
        logits_of(model)
    hook.remove()
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.model.layers)


def test_a_model_without_a_list_of_its_layers_is_widened_whole() -> None:
    import torch

    from cloud_verifier.engine.widening import float32_inside

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)).to(torch.float16)
    with float32_inside(model, 7):
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}


def test_weights_that_are_integers_cannot_be_widened() -> None:
    from cloud_verifier.engine.widening import can_widen
    from tests.cloud_verifier.engine.packed_linear import pack_linear

    model = half_model("llama", "bfloat16")
    assert can_widen(model)
    pack_linear(model)
    assert not can_widen(model)
