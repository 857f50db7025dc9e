"""Muon: updates are orthogonal, and both optimizers move the weights downhill."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("shape", [(3, 16, 48), (2, 48, 16), (1, 32, 32)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    import torch

    from demo_models.optimizer import orthogonalise

    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert values.max() < 1.3  # the quintic's band is about 0.7 to 1.2 (Jordan 2024)
    assert values.median() > 0.6


def test_a_step_changes_each_matrix_by_the_learning_rate() -> None:
    import torch

    from demo_models.optimizer import Muon

    weights = [torch.zeros(8, 8, requires_grad=True), torch.zeros(8, 8, requires_grad=True)]
    for seed, weight in enumerate(weights):
        weight.grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))
    Muon(weights, lr=0.1).step()
    for weight in weights:
        assert 0.03 < torch.linalg.svdvals(weight.detach()).max() < 0.14


def test_training_on_one_batch_lowers_its_loss() -> None:
    import torch

    from demo_models.architecture import new_model
    from demo_models.optimizer import PairOptimizer
    from demo_models.training import next_token_loss

    model = new_model(1, seed=0)
    batch = torch.arange(64).view(2, 32)
    optimizer = PairOptimizer(model, matrix_lr=0.02, other_lr=0.003)
    losses = []
    for _ in range(6):
        loss = next_token_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1.0


def test_the_factor_scales_from_the_base_not_from_the_last_value() -> None:
    import torch

    from demo_models.optimizer import PairOptimizer

    module = torch.nn.ModuleDict({"embed": torch.nn.Embedding(4, 4), "dense": torch.nn.Linear(4, 4)})
    optimizer = PairOptimizer(module, matrix_lr=0.02, other_lr=0.004)
    optimizer.scale(0.5)
    optimizer.scale(0.5)
    assert optimizer.learning_rates == [0.01, 0.002]
