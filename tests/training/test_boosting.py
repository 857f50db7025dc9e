"""A second draft is trained on what the first misses, and both are measured by closed forms that hold."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from training.align import _losses
from training.boosting import Boosting, all_agree
from training.lessons import Lesson, Logits

pytestmark = pytest.mark.torch

VOCAB, ROWS, SAMPLES = 6, 4, 100_000
Models = tuple[Tensor, Tensor, Tensor]


@pytest.fixture
def models() -> Models:
    """Three distributions [ROWS, VOCAB] of nats: target, first and second draft."""
    random = torch.Generator().manual_seed(0)
    target = 2.0 * torch.randn(ROWS, VOCAB, generator=random)
    drafts = [target + 1.5 * torch.randn(ROWS, VOCAB, generator=random) for _ in range(2)]
    return target.log_softmax(-1), drafts[0].log_softmax(-1), drafts[1].log_softmax(-1)


def as_draft(said: Tensor) -> Logits:
    return lambda tokens, rows: said


def lesson_of(target: Tensor) -> Lesson:
    """Return a lesson that lists all tokens but the least likely of each row."""
    logprobs, best = target.topk(VOCAB - 1)
    return Lesson(np.zeros(ROWS, np.int32), 0, best.int().numpy(), logprobs.numpy())


def hits(models: Models) -> Tensor:
    """Return how often each model chooses the target's token under the same noise, bool [2, S, ROWS].

    The choice of the least likely token counts for none, as in a lesson.
    """
    random = torch.Generator().manual_seed(1)
    noise = -torch.empty(SAMPLES, ROWS, VOCAB).exponential_(generator=random).log()
    chosen, first, second = ((model + noise).argmax(-1) for model in models)
    listed = chosen != models[0].argmin(-1)
    return torch.stack([(chosen == each) & listed for each in (first, second)])


@pytest.fixture
def boosting(models: Models) -> Boosting:
    """Beside a first draft that says what the models' says."""
    return Boosting(as_draft(models[1]), 1.0)


def test_a_row_counts_as_often_as_the_first_misses(models: Models, boosting: Boosting) -> None:
    (weighted,) = boosting.weighted([lesson_of(models[0])])
    assert weighted.weights is not None
    missed = 1.0 - hits(models)[0].float().mean(0)
    np.testing.assert_allclose(weighted.weights, missed, atol=0.01)


def test_a_row_without_weight_teaches_nothing(models: Models, boosting: Boosting) -> None:
    (weighted,) = boosting.weighted([lesson_of(models[0])])
    assert weighted.weights is not None
    alone = replace(weighted, weights=weighted.weights * np.eye(ROWS, dtype=np.float32)[2])
    logits = models[2].clone().requires_grad_(True)
    module = SimpleNamespace(config=SimpleNamespace(vocab_size=VOCAB))
    draft: Any = SimpleNamespace(module=module, logits=as_draft(logits))
    options: Any = SimpleNamespace(loss="coupled", temperature=1.0)
    (loss,) = _losses(draft, [alone], options)([0], 0.0)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert (gradient.abs().sum(-1) > 0).tolist() == [False, False, True, False]
    assert alone.as_written().weights is not None


def test_chances_are_how_often_either_draft_is_right(models: Models, boosting: Boosting) -> None:
    first, second = hits(models)
    chances = boosting.chances(as_draft(models[2]), [lesson_of(models[0])])
    counted = [each.float().mean().item() for each in (first, second, first | second)]
    assert [chances.first, chances.second, chances.either] == pytest.approx(counted, abs=0.005)


def test_a_draft_beside_itself_adds_nothing(models: Models, boosting: Boosting) -> None:
    chances = boosting.chances(as_draft(models[1]), [lesson_of(models[0])])
    assert chances.either == pytest.approx(chances.first, abs=1e-6)


def test_three_models_agree_as_often_as_the_triple_sum_says() -> None:
    logits = torch.randn(3, 300, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    target, first, second = logits.log_softmax(-1)
    p, q, r = target.exp(), first.exp(), second.exp()
    expected = torch.zeros(300, dtype=torch.float64)
    for i in range(8):  # the last column is no token
        races = torch.stack([each / each[:, i : i + 1] for each in (p, q, r)]).amax(0)
        expected += 1.0 / races.sum(-1)
    torch.testing.assert_close(all_agree(target, first, second), expected)
