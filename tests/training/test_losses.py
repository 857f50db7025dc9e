"""Each loss is least where draft and target are equal; the coupled one is the chance it claims to be."""

import pytest
import torch
from torch import Tensor

from training.losses import LOSSES, coupled_acceptance

pytestmark = pytest.mark.torch

SAMPLES = 200_000


def pair(num_rows: int, num_columns: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    target = 2.0 * torch.randn(num_rows, num_columns, generator=random, dtype=torch.float64)
    draft = target + torch.randn(num_rows, num_columns, generator=random, dtype=torch.float64)
    return target.log_softmax(-1), draft.log_softmax(-1)


def by_pairs(target: Tensor, draft: Tensor) -> Tensor:
    """Return the coupled acceptance by its definition, a double sum."""
    p, q = target.exp(), draft.exp()
    weights = torch.maximum(p.unsqueeze(-2) / p.unsqueeze(-1), q.unsqueeze(-2) / q.unsqueeze(-1))
    return (1.0 / weights.sum(dim=-1)).sum(dim=-1)


def test_coupled_acceptance_is_the_double_sum() -> None:
    target, draft = pair(50, 17)
    torch.testing.assert_close(coupled_acceptance(target, draft), by_pairs(target, draft))


def test_coupled_acceptance_is_how_often_both_choose_alike() -> None:
    target, draft = pair(1, 6)
    random = torch.Generator().manual_seed(1)
    noise = -torch.empty(SAMPLES, 6, dtype=torch.float64).exponential_(generator=random).log()
    alike = ((target + noise).argmax(-1) == (draft + noise).argmax(-1)).double().mean()
    assert alike.item() == pytest.approx(coupled_acceptance(target, draft).item(), abs=0.005)


def test_other_tokens_together_are_no_same_token() -> None:
    target, draft = pair(20, 8)
    rest = [torch.cat((each[:, :5], each[:, 5:].logsumexp(-1, keepdim=True)), -1) for each in (target, draft)]
    without = coupled_acceptance(rest[0], rest[1], has_rest=True)
    assert (without < coupled_acceptance(rest[0], rest[1])).all()


@pytest.mark.parametrize("name", LOSSES)
def test_an_equal_draft_has_the_least_loss(name: str) -> None:
    target, draft = pair(30, 12)
    equal, other = (LOSSES[name](target, each).mean().item() for each in (target, draft))
    assert equal < other
    if name != "sequence":
        assert equal == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_its_gradient_leads_to_more_equal_choices(name: str) -> None:
    target, draft = pair(30, 12)
    logits = draft.clone().requires_grad_(True)
    before = coupled_acceptance(target, draft).mean()
    for _ in range(50):
        (gradient,) = torch.autograd.grad(LOSSES[name](target, logits.log_softmax(-1)).sum(), logits)
        logits = (logits - 0.2 * gradient).detach().requires_grad_(True)
    assert coupled_acceptance(target, logits.log_softmax(-1)).mean() > before


@pytest.mark.parametrize("name", LOSSES)
def test_a_token_without_any_chance_has_a_finite_gradient(name: str) -> None:
    target = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    logits = torch.tensor([[0.0, 200.0, -300.0]], requires_grad=True)
    loss = LOSSES[name](target, logits.log_softmax(-1))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
