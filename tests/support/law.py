"""The law by which a token is chosen, for tests that compare choices with it."""

from __future__ import annotations

from common.choice import FloatArray, Logits, Mask, TokenIds, adjusted_logits, process_adjusted
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
