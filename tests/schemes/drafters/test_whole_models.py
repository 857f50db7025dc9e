"""A target without some of its layers guesses as transformers does without them, behind the target's KV."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from cloud_verifier.engine.model.transformers_adapter import TargetModel
from common.choice import rank
from common.errors import UserError
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from schemes.drafters.whole_models import SkippedLayers, first_layers, numbered, skipped_layers
from tests import wording
from tests.cloud_verifier.engine.tiny import EXTRAS, SHAPE, from_config, target
from tests.schemes.drafters.rig import SAMPLINGS, engine_of, guess, guess_item, read

pytestmark = pytest.mark.torch

PROMPT = [5, 9, 2, 41, 7, 7, 80, 13]
VOCABULARY = Vocabulary((b"a", b"b"))
LAYERS = 4


def deep_model(family: str) -> Any:
    """A random model of four layers, which differ in kind in some families."""
    torch.manual_seed(0)
    shape = {**SHAPE, "num_hidden_layers": LAYERS, "initializer_range": 0.2, **EXTRAS.get(family, {})}
    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 2} if "sliding_window" in shape else {}
    return from_config(hf.AutoConfig.for_model(family, **shape, **(kinds if family != "mistral" else {})))


def logits_without(plain: Any, skipped: tuple[int, ...], before: list[int], tokens: list[int]) -> Any:
    """Logits [T, V] of tokens by transformers alone: a model that has only the other layers, with the whole
    model's cache of the tokens before."""
    cache = hf.DynamicCache(config=plain.config)
    cut = copy.deepcopy(plain)
    kept = [number for number in range(LAYERS) if number not in skipped]
    cut.model.layers = torch.nn.ModuleList(cut.model.layers[number] for number in kept)
    cut.config.num_hidden_layers = len(kept)
    if (kinds := getattr(plain.config, "layer_types", None)) is not None:
        cut.config.layer_types = [kinds[number] for number in kept]
    with torch.inference_mode():
        plain(torch.tensor([before]), past_key_values=cache, use_cache=True)
        return cut(torch.tensor([tokens]), past_key_values=cache, use_cache=True).logits[0].numpy()


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss", "mistral"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "warm"])
def test_skipped_layers_guess_by_their_definition(family: str, sampling: SamplingParams) -> None:
    plain, model = deep_model(family), TargetModel(family, deep_model(family))
    plain.set_attn_implementation("eager")
    for skipped in ((1,), (1, 2), (0, 3)):
        engine = engine_of(SkippedLayers(model, skipped), model)
        session, tip = read(engine, PROMPT, sampling)
        (found,) = guess(engine, guess_item(session, tip, depth=3))
        assert max(len(each.path) for each in found) == 2
        for each in found:
            text = [tip, *each.path]
            logits = logits_without(plain, skipped, PROMPT, text)[-1]
            expected = rank(logits, sampling, len(PROMPT) + len(text) - 1, len(each.tokens))
            np.testing.assert_allclose(each.scores, expected.scores, atol=1e-3)


def test_a_list_of_layers_is_read_and_written() -> None:
    model = TargetModel("llama", deep_model("llama"))
    draft = skipped_layers("skip:3,0-1", model, VOCABULARY)
    assert draft.depth > 1
    assert numbered((3, 0, 1)) == "0-1,3"
    assert numbered((3, 5, 8, 9, 10, 11)) == "3,5,8-11"


@pytest.mark.parametrize(
    "source",
    [
        "skip",
        "skip:",
        "skip:a",
        "skip:0,",
        "skip:-1",
        "skip:2-1",
        "skip:0,0",
        "skip:0,0-1",
        "skip:2",
        "skip:0-1",
    ],
)
def test_other_lists_of_layers_are_refused(source: str) -> None:
    with wording.raises(UserError):
        skipped_layers(source, target("llama"), VOCABULARY)


@pytest.mark.parametrize("source", ["exit", "exit:x", "exit:0", "exit:3"])
def test_exits_that_a_target_has_not_are_refused(source: str) -> None:
    with wording.raises(UserError):
        first_layers(source, target("llama"), VOCABULARY)
