"""Packed token streams and the random windows that training reads from them."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo_models.architecture import END_OF_TEXT_ID

TOKENS_PER_STEP: Final = 4096
"""Tokens in every batch, whatever its context length."""


def pack(tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """Return one int64 vector: the texts' tokens, each text followed by the end-of-text token."""
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    ids = [token for encoding in encodings for token in (*encoding.ids, END_OF_TEXT_ID)]
    return torch.tensor(ids, dtype=torch.int64)


class WindowStream:
    """Endless shuffled windows over a packed vector; each epoch cuts it at another random offset."""

    def __init__(self, tokens: Tensor, seed: int) -> None:
        self._tokens = tokens
        self._random = np.random.default_rng(seed)
        self._pending: list[int] = []
        self._length = 0

    def next_batch(self, context: int) -> Tensor:
        """Return int64 `[TOKENS_PER_STEP // context, context + 1]`: inputs, and targets shifted by one."""
        if context != self._length:
            self._length, self._pending = context, []
        starts = [self._next_start() for _ in range(TOKENS_PER_STEP // context)]
        return torch.stack([self._tokens[start : start + context + 1] for start in starts])

    def _next_start(self) -> int:
        if not self._pending:
            offset = int(self._random.integers(self._length))
            starts = np.arange(offset, len(self._tokens) - self._length, self._length)
            self._pending = [int(start) for start in self._random.permutation(starts)]
        return self._pending.pop()
