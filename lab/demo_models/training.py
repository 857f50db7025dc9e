"""The two training runs: the target on next tokens, the draft on the target's distributions.

The optimizer is that of heads and aligned drafts.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from lab.demo_models.architecture import END_OF_TEXT_ID, TARGET_LAYERS, grow, new_model
from lab.demo_models.corpus import Text
from training.trainer import Optimizer

logger = logging.getLogger(__name__)

TOKENS_PER_STEP: Final = 4096
"""Tokens in every batch, whatever its context length."""

SHALLOW_LAYERS: Final = 5
GROW_AT: Final = 0.5
"""Part of the target's run that it spends with `SHALLOW_LAYERS` blocks."""

TOKENS_PER_PASS: Final = 1024
"""Tokens that go through the model at once: fewer than a step's, so that they stay in the cache."""

CONTEXTS: Final = ((0.93, 256), (0.98, 512), (1.0, 1024))
"""Length of the windows, in tokens, until each part of a run. Attention over 512 costs three times as much
as over 256, in which most functions fit; the longer ones teach positions that a chat reaches."""

MATRIX_RATE, OTHER_RATE = 0.015, 0.003
"""Learning rates of the target. A step has few tokens of bodies, and at twice these rates their noise
outweighs what they teach."""

REPORT_EVERY: Final = 20
"""Steps between two lines of progress."""

Packed: TypeAlias = tuple[Tensor, Tensor]
"""Tokens and their weights in the loss, of one shape."""

Loss: TypeAlias = Callable[[LlamaForCausalLM, Tensor], Tensor]
Checkpoint: TypeAlias = Callable[[LlamaForCausalLM], None]


# --- text -----------------------------------------------------------------------------------------------


def pack(tokenizer: Tokenizer, texts: Sequence[Text]) -> Packed:
    """Return the texts' tokens, int64, each text followed by the end-of-text token, and their f32 weights."""
    parts = [part for text in texts for part, _ in text]
    encodings = iter(tokenizer.encode_batch_fast(parts, add_special_tokens=False))
    ids, weights = [], []
    for text in texts:
        for _, weight in text:
            encoded = next(encodings).ids
            ids += [np.array(encoded, np.int64)]
            weights += [np.full(len(encoded), weight, np.float32)]
        ids += [np.array([END_OF_TEXT_ID])]
        weights += [weights[-1][-1:]]
    return torch.from_numpy(np.concatenate(ids)), torch.from_numpy(np.concatenate(weights))


class WindowStream:
    """Endless shuffled windows over packed texts. Each begins with a text, so that a model never has to
    complete a function of which it cannot see the beginning; in a long text, others follow the first."""

    def __init__(self, packed: Packed, seed: int) -> None:
        self._tokens, self._weights = packed
        self._begins = np.flatnonzero(self._tokens.numpy() == END_OF_TEXT_ID) + 1
        self._random = np.random.default_rng(seed)
        self._pending: list[int] = []
        self._length = 0

    def next_batch(self, context: int) -> Packed:
        """Return tokens and weights, each `[TOKENS_PER_STEP // context, context + 1]`: inputs, and targets
        shifted by one."""
        if context != self._length:
            self._length, self._pending = context, []
        starts = [self._next_start() for _ in range(TOKENS_PER_STEP // context)]
        tokens, weights = (
            torch.stack([vector[start : start + context + 1] for start in starts])
            for vector in (self._tokens, self._weights)
        )
        return tokens, weights

    def _next_start(self) -> int:
        if not self._pending:
            self._pending = [int(start) for start in self._random.permutation(self._starts())]
        return self._pending.pop()

    def _starts(self) -> list[int]:
        start, starts = 0, []
        while (end := start + self._length) < len(self._tokens):
            starts.append(start)
            begin = self._begins[np.searchsorted(self._begins, end) :][:1]
            start = int(begin[0]) if len(begin) and begin[0] - end < self._length else end
        return starts


# --- the optimizer --------------------------------------------------------------------------------------


def optimizer_of(model: torch.nn.Module, matrix_rate: float, other_rate: float) -> Optimizer:
    """Return the trainer's optimizer of a model, with these highest rates of matrices and of all else."""
    named = dict(model.named_parameters())
    return Optimizer(named, (matrix_rate, other_rate), [name for name in named if "embed" in name])


# --- how far a run is -----------------------------------------------------------------------------------


class Progress:
    """How much of a run is done: of `num_steps` (repeatable), else of `seconds` (fits the machine)."""

    def __init__(self, num_steps: int | None, seconds: float) -> None:
        self._most_steps, self._seconds = num_steps, seconds
        self._started_at = time.monotonic()
        self.num_steps = 0

    @property
    def elapsed_time(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._started_at

    @property
    def fraction(self) -> float:
        """Part of the run that is done, 0 to 1."""
        if self._most_steps is not None:
            return min(1.0, self.num_steps / self._most_steps)
        return min(1.0, self.elapsed_time / self._seconds)


def learning_rate_factor(fraction: float, flat_until: float = 0.35, final: float = 0.03) -> float:
    """Return the trapezoid: up over the first 2 %, flat, then down in a straight line to `final`."""
    if fraction < 0.02:
        return 0.1 + 0.9 * fraction / 0.02
    if fraction < flat_until:
        return 1.0
    return final + (1.0 - final) * (1.0 - fraction) / (1.0 - flat_until)


# --- the runs -------------------------------------------------------------------------------------------


def train_target(packed: Packed, progress: Progress, seed: int, checkpoint: Checkpoint) -> None:
    """Train the target on packed texts, shallow first."""
    stream = WindowStream(packed, seed)
    model = new_model(SHALLOW_LAYERS, seed)
    optimizer = optimizer_of(model, MATRIX_RATE, OTHER_RATE)
    for until in (0.25, GROW_AT, 0.6, 0.7, 0.8, 0.9, 1.0):
        fit(model, optimizer, stream, next_token_loss, progress, until)
        checkpoint(model)
        if until == GROW_AT:
            model = grow(model, TARGET_LAYERS)
            optimizer = optimizer_of(model, MATRIX_RATE, OTHER_RATE)


def distil_draft(
    draft: LlamaForCausalLM,
    target: LlamaForCausalLM,
    packed: Packed,
    progress: Progress,
    seed: int,
    checkpoint: Checkpoint,
) -> None:
    """Train `draft` in place towards the target's distributions over packed texts."""
    stream = WindowStream(packed, seed)
    optimizer = optimizer_of(draft, 0.01, 0.0015)
    for until in (0.25, 0.5, 0.75, 1.0):
        fit(draft, optimizer, stream, distillation_loss(target), progress, until)
        checkpoint(draft)


def fit(
    model: LlamaForCausalLM,
    optimizer: Optimizer,
    stream: WindowStream,
    loss_of: Loss,
    progress: Progress,
    until: float,
) -> None:
    """Take steps until `progress` reaches `until`; learning rate and window length follow from it."""
    model.train()
    recent: list[float] = []
    while (fraction := progress.fraction) < until:
        recent.append(accumulate(model, stream.next_batch(context_length(fraction)), loss_of))
        optimizer.step(learning_rate_factor(fraction))
        progress.num_steps += 1
        if progress.num_steps % REPORT_EVERY == 0:
            logger.info(
                "%3.0f %%  step %d  loss %.3f  %.0f tokens/s  %.0f s",
                100 * progress.fraction,
                progress.num_steps,
                sum(recent) / len(recent),
                progress.num_steps * TOKENS_PER_STEP / progress.elapsed_time,
                progress.elapsed_time,
            )
            recent.clear()


def context_length(fraction: float) -> int:
    """Return the length of the windows at a part of a run."""
    return next(length for until, length in CONTEXTS if fraction <= until)


def accumulate(model: LlamaForCausalLM, batch: Packed, loss_of: Loss) -> float:
    """Add up the gradients of a batch, `TOKENS_PER_PASS` at a time, and return its weighted mean loss."""
    tokens, weights = batch
    shares = weights[:, 1:] / weights[:, 1:].sum()
    rows, total = max(1, TOKENS_PER_PASS // shares.size(1)), 0.0
    for some, share in zip(torch.split(tokens, rows), torch.split(shares, rows), strict=True):
        loss = (loss_of(model, some) * share.flatten()).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch ships this one method without types
        total += loss.item()
    return total


def next_token_loss(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Return the cross-entropy in nats of each token that `tokens` `[rows, context + 1]` predicts."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")


def distillation_loss(target: LlamaForCausalLM) -> Loss:
    """Return KL(target || draft) in nats of each token (Hinton et al. 2015, at temperature 1)."""

    def loss(draft: LlamaForCausalLM, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = target(input_ids=tokens[:, :-1], use_cache=False).logits.log_softmax(-1)
        got = draft(input_ids=tokens[:, :-1], use_cache=False).logits.log_softmax(-1)
        return F.kl_div(got.flatten(0, 1), wanted.flatten(0, 1), reduction="none", log_target=True).sum(-1)

    return loss
