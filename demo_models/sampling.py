"""Text in the target's own words, for the draft to learn from: continuations of training prefixes.

At run time the draft continues what the target has committed, not library source; training on such text is
what DistillSpec (Zhou et al. 2024) found to raise acceptance most.
"""

from typing import Final

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

PREFIX_TOKENS: Final = 64
GREEDY_SHARE: Final = 0.75
"""Part of the rows continued greedily; the others are sampled at temperature 0.8, so that the text varies."""


@torch.no_grad()
def continue_prefixes(
    target: LlamaForCausalLM, tokens: Tensor, num_rows: int, length: int, seed: int
) -> Tensor:
    """Return one packed int64 vector of `num_rows * length` tokens: windows of `tokens`, continued.

    The first `PREFIX_TOKENS` of every row come from the packed vector `tokens`, the rest from the model.
    """
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - PREFIX_TOKENS, (num_rows,), generator=generator)
    rows = torch.stack([tokens[start : start + PREFIX_TOKENS] for start in starts.tolist()])
    num_greedy = int(GREEDY_SHARE * num_rows)
    step, cache, out = rows, None, [rows]
    for _ in range(length - PREFIX_TOKENS):
        result = target(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits, cache = result.logits[:, -1], result.past_key_values
        step = logits.argmax(-1, keepdim=True)
        step[num_greedy:] = torch.multinomial((logits[num_greedy:] / 0.8).softmax(-1), 1, generator=generator)
        out.append(step)
    return torch.cat(out, dim=1).flatten()
