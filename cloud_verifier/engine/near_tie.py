"""Below which margin a choice could be another one after other rounding."""

from __future__ import annotations

import torch

NEAR_TIE = {torch.float32: 1e-4, torch.float16: 0.025, torch.bfloat16: 0.2}
"""In logits, by what the model computes in.

Measured on the demo target (10 layers, logits of spread 2.6): 400 rows of text, decoded alone against packed
by 7, 64 and 400 in company, changed the gap of the two best logits by 2.2e-5 at most in float32 and by 0.09
in bfloat16; the choice changed at margins up to 0.02. These are two to five times that. float16 has three
more bits than bfloat16.
"""


def near_tie(dtype: torch.dtype) -> float:
    """The margin for a model of `dtype`; an unknown one is taken for the coarsest."""
    return NEAR_TIE.get(dtype, NEAR_TIE[torch.bfloat16])
