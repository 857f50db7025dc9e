"""Training brings heads nearer to their target, goes on where it stopped, and measures what they know."""

import itertools
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from common.sampling import SamplingParams
from schemes.drafters.heads import Heads, RecurrentHead
from schemes.drafters.other_layers import without_layers
from schemes.drafters.whole_models import EarlyExit, SkippedLayers
from tests.cloud_verifier.engine.tiny import Session, Slots, ints, target
from tests.schemes.drafters.rig import DEPTH, NUM_SLOTS, draft_of, engine_of, guess, guess_item
from tests.schemes.drafters.test_heads import PROMPT, deep_model, features_of, one_level_on
from training import drafter_trial as trial
from training import head_training, trainer
from training.drafter_trial import NODES, LevelReport, TrialReport, TriedText, num_steps, try_drafter
from training.head_training import (
    RATES,
    Batch,
    LevelAccuracy,
    WrittenText,
    accuracy,
    head_losses,
    level_losses,
    level_states,
    num_trained,
    read_texts,
)
from training.layer_search import ReadText, best_pace, search
from training.trainer import Checkpoint, Trainer

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def model() -> TargetModel:
    return target("llama")


@pytest.fixture(scope="module")
def texts(model: TargetModel) -> list[WrittenText]:
    random = np.random.default_rng(0)
    lengths = (19, 24, 7, 24, 30, 12)
    return list(read_texts(model, [ints(random.integers(0, 97, length).tolist()) for length in lengths]))


def heads_of(kind: str, model: TargetModel) -> Heads:
    heads = draft_of(kind, model)
    assert isinstance(heads, Heads)
    return heads


def trainer_of(
    heads: Heads, model: TargetModel, texts: list[WrittenText], updates: int, seed: int = 0
) -> Trainer:
    parameters = dict(heads.requires_grad_(True).named_parameters())
    lengths = [len(text.tokens) for text in texts]
    return Trainer(parameters, head_losses(heads, model, texts), lengths, updates, RATES, seed)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss", "gpt2"])
def test_levels_in_training_are_those_of_a_guess(family: str) -> None:
    model = target(family)
    head = draft_of("recurrent", model)
    assert isinstance(head, RecurrentHead)
    texts = [PROMPT, PROMPT[::-1]]
    hidden = torch.stack([features_of(model, text) for text in texts])
    with torch.inference_mode():
        found = list(level_states(head, torch.tensor(texts), hidden, DEPTH))
    assert [each.shape[1] for each in found] == [len(PROMPT) - level for level in range(1, DEPTH + 1)]
    for own, text in enumerate(texts):
        for level, row in [(1, 1), (1, 7), (2, 2), (2, 6), (3, 5), (4, 4), (4, 7)]:
            tip = row - level + 1
            features = hidden[own, :tip]
            for last in range(tip, row + 1):
                features, _ = one_level_on(model, head, text[: last + 1], features)
            torch.testing.assert_close(found[level - 1][own, row - level], features[-1], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("kind", "most"), [("recurrent", 0.7), ("medusa", 1.0), ("exits", 0.9), ("pass", 1.0)]
)
def test_each_level_comes_nearer_to_the_target(
    model: TargetModel, texts: list[WrittenText], kind: str, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "TOKENS_PER_STEP", 90)
    heads, batch = heads_of(kind, model), Batch.of(texts)
    depth = num_trained(heads)
    with torch.no_grad():
        before = [float(loss) for loss in level_losses(heads, model, batch, depth)]
    training = trainer_of(heads, model, texts, 30)
    for _ in range(30):
        training.step()
    with torch.no_grad():
        after = [float(loss) for loss in level_losses(heads, model, batch, depth)]
    assert all(later < most * earlier for earlier, later in zip(before, after, strict=True)), (before, after)


def test_padding_changes_no_loss(model: TargetModel, texts: list[WrittenText]) -> None:
    heads = heads_of("recurrent", model)
    with torch.no_grad():
        for short, long in ((texts[2], texts[4]), (texts[0], texts[5])):
            both = [float(loss) for loss in level_losses(heads, model, Batch.of([short, long]), DEPTH)]
            alone = [
                list(map(float, level_losses(heads, model, Batch.of([one]), DEPTH))) for one in (short, long)
            ]
            for level, loss in enumerate(both, 1):
                counts = [len(one.tokens) - level for one in (short, long)]
                expected = np.average([losses[level - 1] for losses in alone], weights=counts)
                assert loss == pytest.approx(expected, rel=1e-4)


def test_an_interrupted_training_ends_as_one_that_is_not(
    model: TargetModel, texts: list[WrittenText], tmp_path: Path
) -> None:
    def training() -> Trainer:
        return trainer_of(heads_of("recurrent", model), model, texts, 6, seed=3)

    whole, first, second = training(), training(), training()
    for _ in range(6):
        whole.step()
    for _ in range(3):
        first.step()
    path, told = tmp_path / "heads.training", {"steps": 6}
    Checkpoint(path, told).save([text.tokens for text in texts], first.state())
    kept = Checkpoint(path, told)
    assert [text.tolist() for text in kept.texts] == [text.tokens.tolist() for text in texts]
    second.restore(kept.state)
    for _ in range(3):
        second.step()
    for name, weights in whole.state().items():
        assert torch.equal(weights, second.state()[name])


def test_heads_that_say_what_the_target_says_are_always_right(
    model: TargetModel, texts: list[WrittenText], monkeypatch: pytest.MonkeyPatch
) -> None:
    def levels(_heads: Heads, _tokens: Tensor, hidden: Tensor, _depth: int) -> Iterator[Tensor]:
        yield hidden[:, 1:]
        yield -hidden[:, 2:]

    monkeypatch.setattr(head_training, "level_states", levels)
    heads: Any = SimpleNamespace(depth=2)
    right, wrong = accuracy(heads, model, texts, 0.8)
    assert right == LevelAccuracy(1.0, 1.0)
    assert wrong.plain < 0.1
    assert wrong.coupled < 0.8


# A trial counts the steps of texts by the guesses below each token, and times what it counts.


@pytest.fixture(autouse=True)
def few_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "TIMED", 2)


def test_a_step_ends_where_the_text_leaves_the_tree() -> None:
    tokens = (1, 2, 3, 4, 5)
    trees = (((2,), (9,), (2, 3), (2, 9)), ((3,),), ((4,),), ((9,), (9, 5)))
    text = TriedText(tokens, ((),) * 4, trees)
    # depth 1: 1 -> 2 3 | 3 -> 4 5
    assert num_steps(text, 1) == 2
    # depth 2: 1 -> 2 3 4 | 4 -> 5
    assert num_steps(text, 2) == 2
    assert num_steps(TriedText(tokens, ((),) * 4, ((),) * 4), 2) == 4
    unlikely = tuple((9, each) for each in range(NODES))
    assert num_steps(TriedText((1, 2, 3), ((),) * 2, ((*unlikely, (2,)), ())), 2) == 2


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_drafter_that_knows_the_target_is_always_right(temperature: float) -> None:
    model = target("llama")
    engine = engine_of(EarlyExit(model, model.num_layers, depth=4), model)
    sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=13)
    ticks = count()
    report = try_drafter(
        engine, [[5, 9, 2, 41], [7, 80]], sampling, step_floor=0.002, clock=lambda: 0.001 * next(ticks)
    )
    assert report.num_tokens == 24
    assert all(each.best == each.listed == 1.0 for each in report.levels[:3])
    assert [each.level for each in report.levels] == [1, 2, 3, 4]
    assert report.levels[0].steps_per_token == 0.5
    assert report.step_ms == report.tree_step_ms == pytest.approx(2.0)
    for each in report.levels:
        assert each.ms_per_token == pytest.approx(
            each.steps_per_token * (each.guess_ms + report.tree_step_ms)
        )


def test_the_best_depth_takes_least_time_and_none_is_better_than_a_loss() -> None:
    levels = tuple(LevelReport(level, 0.5, 0.5, 1.0, 0.6, ms) for level, ms in enumerate((9.0, 7.0, 8.0), 1))
    assert TrialReport(10, 7.5, 8.0, levels).best_depth == 2
    assert TrialReport(10, 6.5, 8.0, levels).best_depth == 0


# A search of layers finds the one that does nothing, and counts the choices that a guess would make.


IDLE = 2


@pytest.fixture(scope="module")
def idle_model() -> TargetModel:
    """A target whose layer 2 adds nothing."""
    plain = deep_model("llama")
    for weights in (plain.model.layers[IDLE].self_attn.o_proj, plain.model.layers[IDLE].mlp.down_proj):
        torch.nn.init.zeros_(weights.weight)
    return TargetModel("llama", plain)


TEXTS = [ints(np.random.default_rng(seed).integers(0, 97, 24).tolist()) for seed in range(3)]


def test_the_layer_that_does_nothing_goes_first_and_the_best_set_has_it(idle_model: TargetModel) -> None:
    sets = list(search(idle_model, TEXTS, [3] * 3, 0.8))
    assert sets[0].skipped == (IDLE,)
    assert sets[0].same == 1.0
    assert sets[0].pace > 1.0
    assert all(set(one.skipped) < set(next.skipped) for one, next in itertools.pairwise(sets))
    assert all(one.left > next.left > 0 for one, next in itertools.pairwise(sets))
    assert all(found.same < 1.0 for found in sets[1:])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_choices_are_those_of_a_guess_behind_the_targets_text(
    idle_model: TargetModel, temperature: float
) -> None:
    tokens, first, skipped = TEXTS[0], 3, (0, 3)
    text = ReadText.of(idle_model, tokens, first, 9, temperature)
    engine = engine_of(SkippedLayers(idle_model, skipped), idle_model)
    session = Session(0, Slots(NUM_SLOTS), SamplingParams(temperature=temperature, seed=9, ignore_eos=True))
    best = []
    for row, token in enumerate(tokens.tolist()):
        if row >= first:
            best.append(guess(engine, guess_item(session, token, depth=1))[0][0].tokens[0])
        item = session.chunk([token])
        engine.evaluate(StepPlan((item,)))
        session.keep(item, [0])
    same = sum(own == int(chosen) for own, chosen in zip(best, text.chosen, strict=False))
    assert 0 < text.num_same(without_layers(idle_model, skipped)) == same < len(text.chosen)
    assert text.num_same(idle_model) == len(text.chosen), "what was asked before is forgotten"


def test_the_pace_is_that_of_the_best_depth() -> None:
    assert best_pace(1.0, 0.0) == 17.0
    assert best_pace(0.5, 1.0) == pytest.approx(0.75)
    # Leviathan et al. 2023, theorem 3.8, by its closed form
    closed = [(1 - 0.8 ** (depth + 1)) / (0.2 * (0.1 * depth + 1)) for depth in range(1, 17)]
    assert best_pace(0.8, 0.1) == pytest.approx(max(closed))
