"""Quantised targets: smaller weights, the same engine, and the same text with drafts as without."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from cloud_verifier.engine.conformance_probe import COARSE_TOLERANCE, probe
from cloud_verifier.engine.model import transformers_adapter
from cloud_verifier.engine.model.precision import weight_bytes
from cloud_verifier.engine.model.transformers_adapter import TargetModel, load_target
from common.errors import UserError
from tests import wording
from tests.cloud_verifier.engine.mistakes import mix_neighbours
from tests.cloud_verifier.engine.tiny import from_config, plain_model

pytestmark = [pytest.mark.torch, pytest.mark.quantized]

TARGET = str(Path(__file__).parents[4] / "lab" / "demo_models" / "target")


def quantized(model: Any) -> Any:
    """The model with the linear layers of its decoder in 8 bits."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model.model, Int8WeightOnlyConfig())
    return model


def kinds(model: Any) -> dict[str, str]:
    return {name: type(parameter).__name__ for name, parameter in model.named_parameters()}


def test_bytes_are_those_that_are_stored_and_shared_weights_count_once() -> None:
    config = plain_model("llama").config
    config.tie_word_embeddings = True
    model = quantized(from_config(config).eval())
    linear = sum(parameter.numel() for name, parameter in model.named_parameters() if "proj" in name)
    other = sum(parameter.nbytes for name, parameter in model.named_parameters() if "proj" not in name)
    rows = sum(parameter.shape[0] for name, parameter in model.named_parameters() if "proj" in name)
    assert weight_bytes(model) == linear + rows * (4 + 1) + other  # a scale and a zero point a row


@pytest.mark.parametrize("family", ["gemma2", "qwen3_moe"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_quantized_family_passes_the_probe(family: str, dtype: str) -> None:
    model = TargetModel(family, quantized(plain_model(family, getattr(torch, dtype)).eval()))
    assert model.can_widen
    assert probe(model).worst < 1e-5


def test_a_mistake_is_found_in_a_quantized_model_too() -> None:
    plain = quantized(plain_model("llama", torch.bfloat16).eval())
    mix_neighbours(plain.model.layers[1].mlp, 0.05)
    with wording.raises(UserError):
        probe(TargetModel("llama", plain))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder whose weights are stored quantized, as transformers saves them."""
    from torchao.quantization import Int8WeightOnlyConfig

    plain, place = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("stored")
    plain_model("llama").save_pretrained(plain)
    kind = hf.TorchAoConfig(Int8WeightOnlyConfig())
    model: Any = hf.AutoModelForCausalLM.from_pretrained(plain, quantization_config=kind)
    model.save_pretrained(place)
    return str(place)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_what_is_stored_quantized_is_served_if_it_passes(stored: str, dtype: str) -> None:
    model = load_target(stored, dtype=dtype, with_tokenizer=False)
    assert "Int8Tensor" in kinds(model.module).values()
    assert probe(model).worst < 1e-5


def test_what_unpacks_at_its_first_forward_meets_modules_as_they_were_loaded(
    stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As compressed-tensors does, which fails where a module's forward is not a method."""
    load, seen = transformers_adapter._load_weights, list[tuple[str, bool]]()

    def loaded(*given: Any) -> Any:
        model = load(*given)
        head, layer = model.lm_head, model.model.layers[0].mlp.up_proj

        def unpack(*_: Any) -> None:
            seen.append((model.config._attn_implementation, "forward" in vars(head)))
            layer.forward = layer.forward.__func__.__get__(layer)
            hook.remove()

        hook = model.register_forward_pre_hook(unpack)
        return model

    monkeypatch.setattr(transformers_adapter, "_load_weights", loaded)
    model = load_target(stored, dtype="bfloat16", with_tokenizer=False)
    assert seen == [("eager", False)]
    assert not model.can_widen  # its layers may round inside
    assert probe(model).tolerance == COARSE_TOLERANCE[torch.bfloat16]


def test_a_stored_kind_whose_package_is_missing_is_told(tmp_path: Path) -> None:
    if find_spec("gptqmodel") is not None:
        pytest.skip("gptqmodel is installed here")
    plain_model("llama").save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with wording.raises(UserError):
        load_target(str(tmp_path), with_tokenizer=False)
