"""A search of layers finds the one that does nothing, and counts the choices that a guess would make."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from common.sampling import SamplingParams
from schemes.drafters.other_layers import without_layers
from schemes.drafters.whole_models import SkippedLayers
from tests.cloud_verifier.engine.tiny import Session, Slots, ints
from tests.schemes.drafters.rig import NUM_SLOTS, engine_of, guess, guess_item
from tests.schemes.drafters.test_whole_models import deep_model
from training.layer_search import ReadText, best_pace, search

pytestmark = pytest.mark.torch

IDLE = 2


@pytest.fixture(scope="module")
def model() -> TargetModel:
    """A target whose layer 2 adds nothing."""
    plain = deep_model("llama")
    for weights in (plain.model.layers[IDLE].self_attn.o_proj, plain.model.layers[IDLE].mlp.down_proj):
        torch.nn.init.zeros_(weights.weight)
    return TargetModel("llama", plain)


TEXTS = [ints(np.random.default_rng(seed).integers(0, 97, 24).tolist()) for seed in range(3)]


def test_the_layer_that_does_nothing_goes_first_and_the_best_set_has_it(model: TargetModel) -> None:
    sets = list(search(model, TEXTS, [3] * 3, 0.8))
    assert sets[0].skipped == (IDLE,)
    assert sets[0].same == 1.0
    assert sets[0].pace > 1.0
    assert all(set(one.skipped) < set(next.skipped) for one, next in itertools.pairwise(sets))
    assert all(one.left > next.left > 0 for one, next in itertools.pairwise(sets))
    assert all(found.same < 1.0 for found in sets[1:])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_choices_are_those_of_a_guess_behind_the_targets_text(model: TargetModel, temperature: float) -> None:
    tokens, first, skipped = TEXTS[0], 3, (0, 3)
    text = ReadText.of(model, tokens, first, 9, temperature)
    engine = engine_of(SkippedLayers(model, skipped), model)
    session = Session(0, Slots(NUM_SLOTS), SamplingParams(temperature=temperature, seed=9, ignore_eos=True))
    best = []
    for row, token in enumerate(tokens.tolist()):
        if row >= first:
            best.append(guess(engine, guess_item(session, token, depth=1))[0][0].tokens[0])
        item = session.chunk([token])
        engine.evaluate(StepPlan((item,)))
        session.keep(item, [0])
    same = sum(own == int(chosen) for own, chosen in zip(best, text.chosen, strict=False))
    assert 0 < text.num_same(without_layers(model, skipped)) == same < len(text.chosen)
    assert text.num_same(model) == len(text.chosen), "what was asked before is forgotten"


def test_the_pace_is_that_of_the_best_depth() -> None:
    assert best_pace(1.0, 0.0) == 17.0
    assert best_pace(0.5, 1.0) == pytest.approx(0.75)
    # Leviathan et al. 2023, theorem 3.8, by its closed form
    closed = [(1 - 0.8 ** (depth + 1)) / (0.2 * (0.1 * depth + 1)) for depth in range(1, 17)]
    assert best_pace(0.8, 0.1) == pytest.approx(max(closed))
