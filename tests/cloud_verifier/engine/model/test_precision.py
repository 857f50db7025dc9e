"""Final logits are float32 products of the stored weights, not rounded to half precision."""

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from cloud_verifier.engine.model import precision
from cloud_verifier.engine.model.precision import (
    FRONT,
    can_widen,
    computes_bfloat16,
    float32_inside,
    install_fp32_head,
)
from tests.cloud_verifier.engine.packed_linear import pack_linear
from tests.cloud_verifier.engine.tiny import plain_model

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("with_bias", [False, True])
def test_half_precision_heads_sum_in_float32(with_bias: bool) -> None:
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


@pytest.fixture
def bfloat16_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "computes_bfloat16", lambda: True)


@pytest.mark.usefixtures("bfloat16_processor")
@pytest.mark.parametrize("rows", [0, 1, 40])
@pytest.mark.parametrize("with_bias", [False, True])
def test_where_a_cpu_computes_in_bfloat16_the_best_logits_are_float32_sums(
    rows: int, with_bias: bool
) -> None:
    """The others are rounded, and no copy of the weight is kept."""
    torch.manual_seed(3)
    head = torch.nn.Linear(64, 12 * FRONT, bias=with_bias, dtype=torch.bfloat16)
    hidden = 9 * torch.randn(1, rows, 64, dtype=torch.bfloat16)
    install_fp32_head(head)
    logits = head(hidden)[0]
    exact = hidden[0].double() @ head.weight.double().T + (head.bias.double() if with_bias else 0.0)
    assert (tuple(logits.shape), logits.dtype) == ((rows, 12 * FRONT), torch.float32)
    best = exact.topk(FRONT // 2, dim=1).indices
    torch.testing.assert_close(logits.gather(1, best).double(), exact.gather(1, best), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits.double(), exact, rtol=0.01, atol=0.03)
    assert logits.argmax(dim=1).tolist() == exact.argmax(dim=1).tolist()
    kept = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    assert not [one for one in kept if one.shape == head.weight.shape and one.dtype == torch.float32]


@pytest.mark.usefixtures("bfloat16_processor")
def test_a_row_whose_best_tokens_are_equal_in_bfloat16_is_float32_throughout() -> None:
    """More tokens share the rounded maximum than are computed again; one of them is the best."""
    torch.manual_seed(3)
    head = torch.nn.Linear(2, 12 * FRONT, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        head.weight[:, 0] = 1.0
        head.weight[:, 1] = torch.randn(12 * FRONT) * 1e-4
    hidden = torch.tensor([[[16.0, 1.0], [0.0, 9.0]]], dtype=torch.bfloat16)
    install_fp32_head(head)
    exact = hidden[0].double() @ head.weight.double().T
    logits = head(hidden)[0]
    torch.testing.assert_close(logits[0].double(), exact[0], rtol=1e-6, atol=1e-6)
    assert logits.argmax(dim=1).tolist() == exact.argmax(dim=1).tolist()


@pytest.mark.parametrize(
    ("cpuinfo", "computes"),
    [
        ("processor : 0\nflags\t\t: fpu avx512f avx512_bf16\n", True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("flags : fpu avx512f avx512_vnni\nbugs : bf16\n", False),
        (None, False),
    ],
)
def test_a_processor_tells_whether_it_computes_in_bfloat16(
    cpuinfo: str | None, computes: bool, tmp_path: Path
) -> None:
    file = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        file.write_text(cpuinfo)
    assert computes_bfloat16(file) is computes


def test_other_heads_are_left_alone() -> None:
    for head in (torch.nn.Linear(4, 4), torch.nn.Identity(), None):
        install_fp32_head(head)
        assert head is None or "forward" not in vars(head)


# A widened model computes what its weights say in float32, layer by layer, and is itself again after.

HALF = ("bfloat16", "float16")


def half_model(family: str, dtype: str) -> Any:
    return plain_model(family, getattr(torch, dtype)).eval()


def logits_of(model: Any) -> Any:
    with torch.inference_mode():
        return model(input_ids=torch.arange(20)[None], use_cache=False).logits


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("family", ["gemma2", "gpt2", "qwen3_moe"])
def test_it_computes_what_a_float32_copy_computes(family: str, dtype: str) -> None:
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
    model = half_model("gemma2", "bfloat16")
    with float32_inside(model, 2):
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_only_the_layer_that_computes_is_wide() -> None:
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
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)).to(torch.float16)
    with float32_inside(model, 7):
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}


def test_weights_that_are_integers_cannot_be_widened() -> None:
    model = half_model("llama", "bfloat16")
    assert can_widen(model)
    pack_linear(model)
    assert not can_widen(model)
