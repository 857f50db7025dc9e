"""The two training runs: the target on next tokens, the draft on the target's distributions."""

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from demo_models.architecture import TARGET_LAYERS, grow, new_model
from demo_models.batches import TOKENS_PER_STEP, WindowStream
from demo_models.optimizer import PairOptimizer
from demo_models.schedule import Budget, Progress, context_length, learning_rate_factor

logger = logging.getLogger(__name__)

SHALLOW_LAYERS: Final = 5
GROW_AT: Final = 0.5
"""Part of the target's run that it spends with `SHALLOW_LAYERS` blocks."""

REPORT_EVERY: Final = 20
"""Steps between two lines of progress."""

Loss: TypeAlias = Callable[[LlamaForCausalLM, Tensor], Tensor]
Checkpoint: TypeAlias = Callable[[LlamaForCausalLM], None]


def train_target(
    tokens: Tensor, budget: Budget, seed: int, checkpoint: Checkpoint
) -> tuple[LlamaForCausalLM, int]:
    """Train the target on packed `tokens`, shallow first; return it and the number of steps taken."""
    progress = Progress(budget)
    stream = WindowStream(tokens, seed)
    model = new_model(SHALLOW_LAYERS, seed)
    optimizer = PairOptimizer(model, 0.02, 0.003)
    for until in (0.15, 0.3, GROW_AT):
        fit(model, optimizer, stream, next_token_loss, progress, until=until)
        checkpoint(model)
    model = grow(model, TARGET_LAYERS)
    optimizer = PairOptimizer(model, 0.02, 0.003)
    for until in (0.6, 0.8, 1.0):
        fit(model, optimizer, stream, next_token_loss, progress, until=until)
        checkpoint(model)
    return model, progress.num_steps


def distil_draft(
    draft: LlamaForCausalLM,
    target: LlamaForCausalLM,
    stream: WindowStream,
    budget: Budget,
    checkpoint: Checkpoint,
    rate: float = 1.0,
) -> int:
    """Train `draft` in place towards the target's distributions on windows of `stream`; return the steps.

    `rate` scales the learning rates.
    """
    progress = Progress(budget)
    optimizer = PairOptimizer(draft, 0.01 * rate, 0.0015 * rate)
    for until in (0.25, 0.5, 0.75, 1.0):
        fit(draft, optimizer, stream, distillation_loss(target), progress, until=until)
        checkpoint(draft)
    return progress.num_steps


def fit(
    model: LlamaForCausalLM,
    optimizer: PairOptimizer,
    stream: WindowStream,
    loss_of: Loss,
    progress: Progress,
    until: float,
) -> None:
    """Take steps until `progress` reaches `until`; learning rate and window length follow from it."""
    model.train()
    recent: list[float] = []
    while (fraction := progress.fraction) < until:
        optimizer.scale(learning_rate_factor(fraction))
        loss = loss_of(model, stream.next_batch(context_length(fraction)))
        loss.backward()  # type: ignore[no-untyped-call]  # torch ships this one method without types
        optimizer.step()
        recent.append(loss.item())
        progress.num_steps += 1
        if progress.num_steps % REPORT_EVERY == 0:
            report(progress, recent)
            recent.clear()


def report(progress: Progress, recent: list[float]) -> None:
    """Log one line of progress."""
    logger.info(
        "%3.0f %%  step %d  loss %.3f  %.0f tokens/s  %.0f s",
        100 * progress.fraction,
        progress.num_steps,
        sum(recent) / max(len(recent), 1),
        progress.num_steps * TOKENS_PER_STEP / progress.elapsed_time,
        progress.elapsed_time,
    )


def next_token_loss(model: LlamaForCausalLM, batch: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per token of `batch` `[rows, context + 1]`."""
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def distillation_loss(target: LlamaForCausalLM) -> Loss:
    """Return the mean KL(target || draft) in nats per token (Hinton et al. 2015, at temperature 1)."""

    def loss(draft: LlamaForCausalLM, batch: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = target(input_ids=batch[:, :-1], use_cache=False).logits.log_softmax(-1)
        got = draft(input_ids=batch[:, :-1], use_cache=False).logits.log_softmax(-1)
        return F.kl_div(got.flatten(0, 1), wanted.flatten(0, 1), reduction="batchmean", log_target=True)

    return loss
