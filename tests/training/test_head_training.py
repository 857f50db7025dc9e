"""Training brings heads nearer to their target, goes on where it stopped, and measures what they know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cloud_verifier.engine.model.transformers_adapter import TargetModel
from schemes.drafters.heads import Heads, RecurrentHead
from tests.cloud_verifier.engine.tiny import ints, target
from tests.schemes.drafters.rig import DEPTH, draft_of
from tests.schemes.drafters.test_heads import PROMPT, features_of, one_level_on
from training import head_training, trainer
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
