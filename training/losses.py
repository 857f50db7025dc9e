"""Compare a draft's distribution with its target's: the losses that align a draft, by name.

Every loss takes `target` and `draft`, float [N, C]: the natural logarithms of N pairs of distributions over
C columns. It returns float [N], and it is differentiable in `draft`. The last column may hold the sum of all
tokens that are not listed (`training.lessons.with_rest`).

The coupled acceptance is the chance that both models choose the same token under the same Gumbel noise g:

    P = P(argmax_j (log p_j + g_j) = argmax_j (log q_j + g_j))

Token i wins in both models if g_j - g_i < min(log p_i - log p_j, log q_i - log q_j) for every j. So it wins
one race in which j has the weight w_j = max(p_j / p_i, q_j / q_i) and i has the weight 1. The winner of such
a race is i with the chance 1 / sum_j w_j (the Gumbel-max trick). These events exclude each other:

    P = sum_i 1 / sum_j max(p_j / p_i, q_j / q_i)        (Daliri et al. 2024, arXiv 2408.07978)

The maximum is q_j / q_i where r_j = q_j / p_j is at least r_i, else p_j / p_i. In the order of r both sums
are cumulative, which takes C log C operations in place of C^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]

LEAST = -30.0
"""Least logarithm that a loss sees: a token of chance 0 has no gradient and no infinite cost."""


def coupled_acceptance(target: Tensor, draft: Tensor, has_rest: bool = False) -> Tensor:
    """Return the chance [N] that both distributions [N, C] choose the same token under shared Gumbel noise.

    Args: has_rest: the last column is a sum of tokens, which never counts as the same token.
    """
    target, draft = target.clamp(min=LEAST), draft.clamp(min=LEAST)
    order = (draft - target).detach().argsort(dim=-1, descending=True)
    p, q = target.gather(-1, order), draft.gather(-1, order)
    above = q.logcumsumexp(dim=-1)  # of all j whose ratio is at least this one's
    below = p.flip(-1).logcumsumexp(dim=-1).flip(-1)[:, 1:]
    below = torch.nn.functional.pad(below, (0, 1), value=-torch.inf)
    chances = (-torch.logaddexp(above - q, below - p)).exp()
    if has_rest:
        chances = chances.masked_fill(order == target.shape[-1] - 1, 0.0)
    return chances.sum(dim=-1)


def coupled(target: Tensor, draft: Tensor) -> Tensor:
    """Return the negative logarithm of the coupled acceptance."""
    return -coupled_acceptance(target, draft).log()


def forward_kl(target: Tensor, draft: Tensor) -> Tensor:
    """Return KL(target || draft) in nats (Hinton et al. 2015)."""
    return (target.exp() * (target - draft).clamp(max=-LEAST)).nan_to_num().sum(dim=-1)


def reverse_kl(target: Tensor, draft: Tensor) -> Tensor:
    """Return KL(draft || target) in nats (Gu et al. 2023, MiniLLM)."""
    return forward_kl(draft, target.clamp(min=LEAST))


def jensen_shannon(target: Tensor, draft: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence in nats, the mean KL to the mean of both (Agarwal et al. 2024)."""
    mean = torch.logaddexp(target, draft) - math.log(2.0)
    return 0.5 * (forward_kl(target, mean) + forward_kl(draft, mean))


def total_variation(target: Tensor, draft: Tensor) -> Tensor:
    """Return half the sum of absolute differences: 1 minus the acceptance by rejection (Leviathan 2023)."""
    return 0.5 * (target.exp() - draft.exp()).abs().sum(dim=-1)


LOSSES: dict[str, Loss] = {
    "coupled": coupled,
    "forward-kl": forward_kl,
    "reverse-kl": reverse_kl,
    "jensen-shannon": jensen_shannon,
    "total-variation": total_variation,
    "sequence": forward_kl,
}
"""Losses by the name that `forerun align --loss` takes. Sequence-level distillation (Kim and Rush 2016) takes
lessons whose target has all its weight on the token that it wrote (`Lesson.as_written`)."""
