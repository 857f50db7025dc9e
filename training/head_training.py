"""Trains heads on texts that the target has written, and measures what they know of other such texts.

At each row and level the loss is the cross-entropy of the heads' distribution against the target's own
(self-distillation). Levels below the first meet the heads' own outputs, as they do in a guess.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cloud_verifier.core.engine_protocol import IntArray
from cloud_verifier.engine.attention.backend import KVStore, StepAttention, StepContext, current_step
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from schemes.drafters.heads import ExitHeads, Heads, MedusaHeads, PassRows, RecurrentHead, logits_of
from training.lessons import shared_noise
from training.trainer import Losses, side_by_side
from training.unrolled import UnrolledAttention

RATES = 0.02, 0.003
"""Highest learning rates of matrices and of all else."""

DIGESTED = 64  # values of each of the target's weights
DEEPER_FROM = 0.4
"""Share of the steps after which levels below the first are trained, one by one."""

LEVEL_WEIGHT = 0.85
"""Weight of a level's loss over that of the level above it. A guess reaches deep levels more rarely."""


@dataclass(frozen=True, slots=True)
class WrittenText:
    """Holds a prompt with the text after it, and what the target makes of them."""

    tokens: IntArray  # [T]
    hidden: Tensor  # [T, H] the target's last hidden states


@torch.inference_mode()
def read_texts(target: TargetModel, texts: Sequence[IntArray]) -> Iterator[WrittenText]:
    """Yield the texts with the target's hidden states, by transformers alone."""
    outputs = list[Tensor]()
    hook = target.decoder.register_forward_hook(lambda _module, _inputs, output: outputs.append(output[0]))
    try:
        with target.plain():
            for tokens in texts:
                target.plain_logits(tokens.tolist(), 1)
                yield WrittenText(tokens, outputs.pop()[0].clone())
    finally:
        hook.remove()


@dataclass(frozen=True, slots=True)
class Batch:
    """Holds texts side by side, padded at their ends."""

    tokens: Tensor  # int64 [B, T]
    hidden: Tensor  # [B, T, H]
    is_real: Tensor  # bool [B, T]

    @classmethod
    def of(cls, texts: Sequence[WrittenText]) -> Batch:
        device = texts[0].hidden.device
        tokens, is_real = side_by_side([text.tokens for text in texts], repeat(0))
        hidden = torch.nn.utils.rnn.pad_sequence([text.hidden for text in texts], batch_first=True)
        return cls(tokens.to(device), hidden, is_real.to(device))


def head_losses(heads: Heads, target: TargetModel, texts: Sequence[WrittenText]) -> Losses:
    """Return what a `Trainer` lowers: the mean loss at each level that it trains, in nats."""

    def losses(places: Sequence[int], done: float) -> Iterator[Tensor]:
        batch = Batch.of([texts[place] for place in places])
        all_levels = num_trained(heads)
        depth = num_levels(done, all_levels) if isinstance(heads, RecurrentHead) else all_levels
        levels = level_losses(heads, target, batch, depth)
        yield torch.stack([LEVEL_WEIGHT**level * loss for level, loss in enumerate(levels)])

    return losses


def num_trained(heads: Heads) -> int:
    """Return the levels that a training has, exits or rows below a tip: the depth of the heads' file."""
    return heads.num_trained if isinstance(heads, ExitHeads | PassRows) else heads.depth


def num_levels(done: float, depth: int) -> int:
    """Return the levels to train when this share of the steps is done, where levels share their weights. The
    first level teaches all others most of what they need, and each costs as much time."""
    return min(depth, 1 + int(max(0.0, done - DEEPER_FROM) / (1.0 - DEEPER_FROM) * depth))


def level_states(heads: Heads, tokens: Tensor, hidden: Tensor, depth: int) -> Iterator[Tensor]:
    """Yield each level's hidden states [B, T - L, H] of the rows from L on, as training sees them. Exits are
    levels of all rows, [B, T, H].

    Level L of a row of a recurrent head sees its L - 1 rows before at the levels above, and all earlier rows
    at level 1. Args: tokens int64 [B, T]; hidden [B, T, H], the target's.
    """
    if isinstance(heads, ExitHeads):
        yield from heads.read(tokens)
        return
    if isinstance(heads, PassRows):
        passes = UnrolledAttention()
        with current_step(StepContext(cast(KVStore, passes), tokens, cast(StepAttention, passes))):
            with torch.no_grad():
                heads.read(tokens, 0)
            for level in range(1, depth + 1):
                yield heads.read(tokens, level)[:, level:]
        return
    if isinstance(heads, MedusaHeads):
        for level in range(1, depth + 1):
            yield heads.turned(hidden[:, :-level], level)
        return
    tokens, hidden = tokens[:, 1:], hidden[:, :-1]
    passes = UnrolledAttention()
    with current_step(StepContext(cast(KVStore, passes), tokens, cast(StepAttention, passes))):
        for level in range(1, depth + 1):
            hidden = heads.read(tokens, hidden)
            yield hidden[:, level - 1 :]
            hidden = functional.pad(hidden, (0, 0, 1, 0))[:, :-1]


def level_losses(heads: Heads, target: TargetModel, batch: Batch, depth: int) -> Iterator[Tensor]:
    """Yield the mean of KL(target || heads) over the real rows, in nats, at each of `depth` levels."""
    with torch.no_grad():
        wanted = logits_of(target, batch.hidden).log_softmax(dim=-1)
    for states in level_states(heads, batch.tokens, batch.hidden, depth):
        got, rows = logits_of(target, states).log_softmax(dim=-1), _last(states, batch)
        apart = functional.kl_div(got, wanted[:, rows], reduction="none", log_target=True).sum(dim=-1)
        yield apart[batch.is_real[:, rows]].mean()


def _last(states: Tensor, batch: Batch) -> slice:
    """Return the rows of a batch that a level's states are of: the last ones, perhaps none."""
    return slice(batch.tokens.shape[1] - states.shape[1], None)


@dataclass(frozen=True, slots=True)
class LevelAccuracy:
    """Tells how often the heads' best candidate is the target's choice, if all levels above were right."""

    plain: float  # the likeliest token
    coupled: float  # the best token under shared noise, at the temperature of the measurement


@torch.inference_mode()
def accuracy(
    heads: Heads, target: TargetModel, texts: Sequence[WrittenText], temperature: float
) -> list[LevelAccuracy]:
    """Return each level's accuracy on whole texts."""
    depth = num_trained(heads)
    hits, num_rows = np.zeros((depth, 2)), np.zeros(depth)
    for number, text in enumerate(texts):
        batch = Batch.of([text])
        logits = logits_of(target, batch.hidden)[0]
        noise = (shared_noise(number, logits) * temperature).float()
        chosen = logits.argmax(dim=-1), (logits + noise).argmax(dim=-1)
        for level, states in enumerate(level_states(heads, batch.tokens, batch.hidden, depth)):
            own, rows = logits_of(target, states)[0], _last(states, batch)
            hits[level, 0] += (own.argmax(dim=-1) == chosen[0][rows]).sum().item()
            hits[level, 1] += ((own + noise[rows]).argmax(dim=-1) == chosen[1][rows]).sum().item()
            num_rows[level] += len(own)
    return [LevelAccuracy(*pair) for pair in (hits / num_rows[:, None]).tolist()]


def digest(target: TargetModel, prompts: Sequence[Sequence[int]]) -> str:
    """Return a digest of prompts and of the first values of each of the target's weights."""
    hashed = hashlib.blake2b(digest_size=16)
    for prompt in prompts:
        hashed.update(np.array([len(prompt), *prompt], np.int64).tobytes())
    for weights in target.module.parameters():
        hashed.update(weights.detach().reshape(-1)[:DIGESTED].double().cpu().numpy().tobytes())
    return hashed.hexdigest()
