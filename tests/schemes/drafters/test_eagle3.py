"""Published heads compute what their own packages do: EAGLE-3 what was recorded there, and prediction modules
what transformers computes."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from cloud_verifier.engine.model.transformers_adapter import TargetModel, load_target
from cloud_verifier.engine.torch_loading import load_draft
from common.errors import UserError
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from schemes.drafters.drafter import DraftRows
from schemes.drafters.eagle3 import Eagle3Head
from schemes.drafters.heads import RecurrentHead
from tests import wording
from tests.cloud_verifier.engine.tiny import SHAPE, from_config
from tests.schemes.drafters.rig import SAMPLINGS, engine_of, guess, guess_item, plainly, read
from tests.support.law import rank

pytestmark = pytest.mark.torch

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("eagle3.json").read_text(encoding="utf-8"))
"""By package, its commit and the head's form: config.json, the weights' shapes, and the logits of four levels
that the package computed for `TEXT`, then `CHAIN` below it."""

TEXT = [5, 9, 2, 41, 7, 7, 80, 13, 60]
CHAIN = [17, 33, 4]
KNOWN = 40  # tokens that the head knows
VOCABULARY = Vocabulary(tuple(bytes([65 + index]) for index in range(97)))


def draft_ids() -> torch.Tensor:
    """The target's ids of the tokens that the head knows."""
    return torch.from_numpy(np.sort(np.random.default_rng(2).permutation(97)[:KNOWN]))


def weights_of(shapes: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    """The weights of the recording: each a function of its name."""
    found = {}
    for name, shape in shapes.items():
        values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
        values = 1 + 0.1 * values if len(shape) == 1 else 0.2 * values
        found[name] = torch.from_numpy(values.astype(np.float32))
    return found | {"d2t": draft_ids() - torch.arange(KNOWN)}


def save(folder: Path, case: dict[str, Any], **changes: Any) -> str:
    (folder / "config.json").write_text(json.dumps({**case["config"], **changes}))
    save_file(weights_of(case["shapes"]), folder / "model.safetensors")
    return str(folder)


def eight_layers() -> TargetModel:
    torch.manual_seed(0)
    return TargetModel("llama", from_config(hf.LlamaConfig(**{**SHAPE, "num_hidden_layers": 8})))


def alone(head: Eagle3Head, tokens: list[int], features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the head over a whole text in plain transformers, with the features before each row but the first.
    Returns the features with the last row's output behind them, and its logits [V]."""
    rows = torch.tensor(tokens[1:])
    head.decoder.set_attn_implementation("eager")  # type: ignore[operator]  # a method of transformers
    with torch.inference_mode():
        drafted = head.forward(
            DraftRows(rows, torch.arange(len(rows)), features, torch.tensor([len(rows) - 1]), 1)
        )
    head.decoder.set_attn_implementation("forerun")  # type: ignore[operator]
    assert drafted.features is not None
    return torch.cat((features, drafted.features)), drafted.logits[0]


@pytest.mark.parametrize("name", RECORDED)
def test_an_eagle3_head_computes_what_its_package_does(name: str, tmp_path: Path) -> None:
    case = RECORDED[name]
    head = load_draft(save(tmp_path, case), eight_layers(), VOCABULARY)
    assert isinstance(head, Eagle3Head)
    length = len(TEXT)
    states = np.random.default_rng(1).standard_normal((length + 3, 96))[:length].astype(np.float32)
    features = head.joined_states(list(torch.from_numpy(states).chunk(3, dim=1)))
    for level, expected in enumerate(case["levels"]):
        features, logits = alone(head, [0, *TEXT, *CHAIN[:level]], features)
        np.testing.assert_allclose(logits[draft_ids()], expected, atol=2e-4)
        assert torch.isinf(logits).sum() == 97 - KNOWN


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "warm"])
@pytest.mark.parametrize("name", RECORDED)
def test_an_eagle3_head_guesses_in_slots_as_it_does_alone(
    name: str, sampling: SamplingParams, tmp_path: Path
) -> None:
    model = eight_layers()
    head = load_draft(save(tmp_path, RECORDED[name]), model, VOCABULARY)
    assert isinstance(head, Eagle3Head)
    engine = engine_of(head, model)
    session, tip = read(engine, TEXT, sampling)
    (found,) = guess(engine, guess_item(session, tip))
    with plainly(model):
        every = model.module(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    sources = RECORDED[name]["config"].get("eagle_aux_hidden_state_layer_ids") or (2, 4, 5)
    above = head.joined_states([every[index][0] for index in sources])
    assert len(found) > 4
    for each in found:
        text, features, logits = [*TEXT, tip, *each.path], above, torch.empty(0)
        for length in range(len(TEXT) + 1, len(text) + 1):
            features, logits = alone(head, text[:length], features)
        expected = rank(logits.numpy(), sampling, len(text) - 1, len(each.tokens))
        np.testing.assert_allclose(each.scores, expected.scores, atol=1e-4)


def test_an_eagle3_head_of_another_target_is_refused(tmp_path: Path) -> None:
    model, case = eight_layers(), RECORDED["vllm-project/speculators c05b95b plain"]
    layers = "eagle_aux_hidden_state_layer_ids"
    for changes in ({layers: [2, 9, 11]}, {layers: [2, 4]}, {"draft_vocab_size": 41}):
        with wording.raises(UserError):
            load_draft(save(tmp_path, case, **changes), model, VOCABULARY)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with wording.raises(UserError):
        load_draft(str(tmp_path), model, VOCABULARY)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with wording.raises(UserError):
        load_draft(str(tmp_path), model, VOCABULARY)


# Prediction modules

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    # transformers knows a module of GLM by its number, which is that of the layers before it
    "glm4_moe": {**EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 45, "num_hidden_layers": 46},
    "mellum": {**EXPERTS, "num_experts": 4, "num_hidden_layers": 2, "mtp_layer_types": ["full_attention"]},
}
PUBLISHED = {
    "glm4_moe": {
        "enorm": "model.layers.46.enorm",
        "hnorm": "model.layers.46.hnorm",
        "eh_proj": "model.layers.46.eh_proj",
        "norm": "model.layers.46.shared_head.norm",
    },
    "mellum": {
        "enorm": "mtp.pre_fc_norm_embedding",
        "hnorm": "mtp.pre_fc_norm_hidden",
        "eh_proj": "mtp.fc",
        "norm": "mtp.norm",
        "model.layers.2": "mtp.layers.0",
    },
}
"""How a family's checkpoints name the parts of a module."""


def checkpoint(family: str, folder: Path, **settings: Any) -> str:
    """A tiny checkpoint with a prediction module: a model of one more layer, which is the module's."""
    names, own = PUBLISHED[family], {**SHAPE, **FAMILIES[family], **settings}
    count = own.pop("num_hidden_layers")
    torch.manual_seed(0)
    from_config(hf.AutoConfig.for_model(family, **own, num_hidden_layers=count + 1)).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    layer = f"model.layers.{count}"
    for name in [name for name in weights if name.startswith(layer + ".")]:
        weights[names.get(layer, layer) + name.removeprefix(layer)] = weights.pop(name)
    for part, shape in (("enorm", [32]), ("hnorm", [32]), ("eh_proj", [32, 64]), ("norm", [32])):
        weights[f"{names[part]}.weight"] = weights_of({part: shape})[part]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = hf.AutoConfig.for_model(family, **own, num_hidden_layers=count, num_nextn_predict_layers=1)
    config.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prediction_module_guesses_as_transformers_runs_it(family: str, tmp_path: Path) -> None:
    place = checkpoint(family, tmp_path)
    plain: Any = hf.AutoModelForCausalLM.from_pretrained(place, attn_implementation="eager")
    module: Any = MtpModel.from_pretrained(plain)
    model = load_target(place, with_tokenizer=False)
    head = load_draft("mtp", model, VOCABULARY)
    assert isinstance(head, RecurrentHead)
    engine = engine_of(head, model)
    session, tip = read(engine, TEXT)
    (found,) = guess(engine, guess_item(session, tip))
    assert len(found) > 4
    for each in found:
        text = [*TEXT, tip, *each.path]
        with torch.inference_mode():
            hidden = plain.model(torch.tensor([TEXT])).last_hidden_state
            for length in range(len(TEXT), len(text)):
                ids, positions = torch.tensor([text[1 : length + 1]]), torch.arange(length)[None]
                cache = MtpCache(config=module.config)
                levels = module.forward_layer(0, hidden, positions, cache, input_ids=ids)
                hidden = torch.cat((hidden, levels[:, -1:]), dim=1)
            logits = plain.lm_head(hidden[0, -1])
        expected = rank(logits.numpy(), session.sampling, len(text) - 1, len(each.tokens))
        np.testing.assert_allclose(each.scores, expected.scores, atol=1e-4)


def test_a_model_without_a_prediction_module_is_told(tmp_path: Path) -> None:
    with wording.raises(UserError):
        load_draft("mtp", eight_layers(), VOCABULARY)
    place = Path(checkpoint("mellum", tmp_path))
    weights = load_file(place / "model.safetensors")
    save_file(
        {name: each for name, each in weights.items() if "mtp.fc" not in name}, place / "model.safetensors"
    )
    with wording.raises(UserError):
        load_draft("mtp", load_target(str(place), with_tokenizer=False), VOCABULARY)
    checkpoint("mellum", tmp_path, mtp_layer_types=["sliding_attention"])
    with wording.raises(UserError):
        load_draft("mtp", load_target(str(place), with_tokenizer=False), VOCABULARY)
