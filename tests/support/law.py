"""The law by which a token is chosen, and the best tokens under its noise, of logits as they are."""

from __future__ import annotations

from common.choice import (
    FloatArray,
    Logits,
    Mask,
    Ranking,
    TokenIds,
    adjusted_logits,
    process_adjusted,
    rank_adjusted,
)
from common.sampling import SamplingParams


def process_logits(
    logits: Logits,
    params: SamplingParams,
    prompt: TokenIds | None = None,
    generated: TokenIds | None = None,
    allowed: Mask | None = None,
) -> FloatArray:
    """Return the logits [V] whose softmax is the law of `choose`: filtered tokens are -inf, the best is 0."""
    return process_adjusted(adjusted_logits(logits, params, prompt, generated, allowed), params)


def rank(
    logits: Logits,
    params: SamplingParams,
    position: int,
    count: int,
    prompt: TokenIds | None = None,
    generated: TokenIds | None = None,
    allowed: Mask | None = None,
) -> Ranking:
    """Return the `count` (>= 1) best tokens for `position + 1`; arguments and errors are of `choose`."""
    adjusted = adjusted_logits(logits, params, prompt, generated, allowed)
    return rank_adjusted(adjusted, params, position, count)
