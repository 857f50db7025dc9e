"""Looks for the layers that a target can best skip when it drafts for itself (`--drafter skip:LIST`).

The search is greedy: of all blocks of adjacent layers it skips the one whose loss of agreement per saved
weight is least, then the next, and remembers the set of the best predicted pace. Draft & Verify (arXiv
2309.08168) searches by Bayesian optimisation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import IntArray
from cloud_verifier.engine.attention.backend import KVStore, StepAttention, StepContext, current_step
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from schemes.drafters.drafter import MOST_LEVELS
from schemes.drafters.other_layers import without_layers
from training.lessons import shared_noise
from training.unrolled import UnrolledAttention

MOST_BLOCKS = 16
"""Blocks of adjacent layers that are skipped together, of models with more layers."""


@dataclass(frozen=True, slots=True)
class SkippedSet:
    """Tells what a target knows without some layers."""

    skipped: tuple[int, ...]
    same: float  # share of the target's choices that it makes, each behind the target's own text
    left: float  # share of the weights that a row reads

    @property
    def pace(self) -> float:
        """Tokens in the time of a target step, with chains of the best depth (Leviathan et al. 2023, 3.8)."""
        return best_pace(self.same, self.left)


def best_pace(same: float, cost: float) -> float:
    """Return the tokens that draft and target write in the time of a target step, if each draft row takes
    `cost` steps and is right with chance `same`. Below 1, drafts lose."""
    return max(
        sum(same**level for level in range(depth + 1)) / (1.0 + cost * depth)
        for depth in range(1, MOST_LEVELS + 1)
    )


@dataclass(frozen=True, slots=True)
class ReadText:
    """Holds a text that the target has read: its KV, and what it chooses."""

    tokens: Tensor  # int64 [1, T]
    first: int  # row whose choice is the text's first token behind the prompt
    kv: UnrolledAttention
    noise: Tensor  # float32 [R, V] of the rows from `first` on but the last
    chosen: Tensor  # int64 [R]

    @classmethod
    def of(cls, target: TargetModel, tokens: IntArray, first: int, seed: int, temperature: float) -> ReadText:
        """Let the target read a text, and choose at each row from `first` on."""
        rows, kv = torch.from_numpy(tokens).long()[None].to(target.device), UnrolledAttention()
        logits = _logits(target, rows, first, kv)
        noise = (shared_noise(seed, logits, first + 1) * temperature).float()
        return cls(rows, first, kv, noise, (logits + noise).argmax(dim=-1))

    def num_same(self, draft: TargetModel) -> int:
        """Return how many of the choices a draft makes that reads the target's KV of the rows before."""
        logits = _logits(draft, self.tokens, self.first, self.kv)
        self.kv.forget(1)
        return int(((logits + self.noise).argmax(dim=-1) == self.chosen).sum())


@torch.inference_mode()
def search(
    target: TargetModel, texts: Sequence[IntArray], firsts: Sequence[int], temperature: float
) -> Iterator[SkippedSet]:
    """Yield the best set of each number of skipped blocks, until no larger one can be faster.

    Args: texts: of the target, with their prompts; firsts: place of each prompt's last token.
    """
    read = [
        ReadText.of(target, tokens, first, seed, temperature)
        for seed, (tokens, first) in enumerate(zip(texts, firsts, strict=True))
    ]
    num_choices = sum(len(text.chosen) for text in read)
    weights = [sum(each.numel() for each in layer.parameters()) for layer in target.layers]
    total = sum(weights) + sum(each.numel() for each in target.module.get_output_embeddings().parameters())
    size = math.ceil(target.num_layers / MOST_BLOCKS)
    blocks = [range(at, min(at + size, len(weights))) for at in range(0, len(weights), size)]
    best, pace = SkippedSet((), 1.0, 1.0), 1.0

    def tried(block: Sequence[int]) -> SkippedSet:
        skipped = (*best.skipped, *block)
        draft = without_layers(target, skipped)
        same = sum(text.num_same(draft) for text in read) / num_choices
        return SkippedSet(tuple(sorted(skipped)), same, 1.0 - sum(weights[each] for each in skipped) / total)

    def loss(found: SkippedSet) -> float:
        return (best.same - found.same) / (best.left - found.left)

    least = 1.0 - (sum(weights) - min(weights)) / total  # left with one layer
    while len(blocks) > 1 and best_pace(best.same, least) > pace:
        found = {block: tried(block) for block in blocks}
        block = min(blocks, key=lambda each: loss(found[each]))
        blocks.remove(block)
        best = found[block]
        pace = max(pace, best.pace)
        yield best


def _logits(model: TargetModel, tokens: Tensor, first: int, kv: UnrolledAttention) -> Tensor:
    """Return logits float32 [R, V] of a text from row `first` on, without the last, at one more level of
    `kv`."""
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    with current_step(StepContext(cast(KVStore, kv), positions, cast(StepAttention, kv))):
        return model.forward(tokens, positions[None], positions[first:-1])
