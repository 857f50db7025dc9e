"""Make the choices of a batch's rows by Forerun's rule, and write them into the engine's logits.

This runs in the engine's process: `common`, torch and the choices of `cloud_verifier.engine` alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloud_verifier.engine.sampling.host_choice import ChoiceRow, choose_on_host
from common.errors import UserError
from common.sampling import SamplingParams

PARAMETER = "forerun"
"""Key of `custom_params` that holds a session's sampling parameters, as a JSON text."""


def told(prompt_length: int, sampling: SamplingParams) -> str:
    """Return what the plug-in must know of a session to choose its tokens."""
    return json.dumps({"prompt_length": prompt_length, "sampling": asdict(sampling)})


@lru_cache(maxsize=4096)
def read(text: object) -> tuple[int, SamplingParams] | None:
    """Return prompt length and parameters from what `told` wrote.

    Any client of the server may write there, so what cannot be read counts as nothing.
    """
    try:
        document = json.loads(str(text))
        fields = dict(document["sampling"])
        for name in ("logit_bias", "stop_token_ids"):  # JSON knows no tuples
            fields[name] = tuple(tuple(each) if isinstance(each, list) else each for each in fields[name])
        return int(document["prompt_length"]), SamplingParams(**fields)
    except (KeyError, TypeError, ValueError, UserError):
        return None


@dataclass(frozen=True, slots=True)
class Text:
    """Holds one session's text in the batch."""

    parts: tuple[Sequence[int], ...]  # its tokens, the prompt's first; not joined, as most rows need none
    prompt_length: int
    sampling: SamplingParams

    @property
    def needs_choice(self) -> bool:
        """Whether the engine's own argmax might be another token."""
        return not self.sampling.greedy or self.sampling.has_penalties or bool(self.sampling.logit_bias)

    def row(self, path: Sequence[int] = ()) -> ChoiceRow:
        """Return the row of the last token of the text and `path`."""
        position = sum(map(len, self.parts)) + len(path) - 1
        if not self.sampling.has_penalties:
            return ChoiceRow(self.sampling, position)
        tokens = np.fromiter(chain(*self.parts, path), np.int32)
        prompt, generated = tokens[: self.prompt_length], tokens[self.prompt_length :]
        return ChoiceRow(self.sampling, position, prompt, generated)


Tree = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Tokens [n] and mask [n, n] of one text's rows, as `DraftTree.rows` gives them."""


def choose_in(logits: Tensor, texts: Sequence[Text | None], trees: Sequence[Tree] | None) -> None:
    """Make each row's choice the greatest of its logits [R, V], in place; None: a text of somebody else.

    The engine, which decodes these texts greedily, then finds it. There is one row for each text, or there
    are those of its tree. Raises `LocalError` for logits without a finite maximum.
    """
    where, rows = list[int](), list[ChoiceRow]()
    for at, text in enumerate(texts):
        if text is None or not text.needs_choice:
            continue
        tokens, mask = (np.zeros(1, np.int64), np.eye(1)) if trees is None else trees[at]
        for row, above in enumerate(mask):
            where.append(at * len(tokens) + row)
            rows.append(text.row(tokens[np.flatnonzero(above)][1:].tolist()))
    if rows:
        logits[where, _choices(logits[where].float(), rows)] = torch.finfo(logits.dtype).max


def _choices(logits: Tensor, rows: Sequence[ChoiceRow]) -> Tensor:
    if not logits.is_cuda:
        return torch.from_numpy(choose_on_host(logits.numpy(), rows)[0]).long()
    from cloud_verifier.engine.sampling import device_choice  # needs triton

    table = device_choice.ChoiceTable.of(rows)
    choices, _ = device_choice.finish(logits, device_choice.choose_eagerly(logits, table), table)
    return torch.from_numpy(choices).long().to(logits.device)
