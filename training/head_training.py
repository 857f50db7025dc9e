"""Trains heads on texts that the target has written, and measures what they know of other such texts.

At each row and level the loss is the cross-entropy of the heads' distribution against the target's own
(self-distillation). Levels below the first meet the heads' own outputs, as they do in a guess.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from cloud_verifier.core.engine_protocol import IntArray
from cloud_verifier.engine.attention.backend import KVStore, StepAttention, StepContext, current_step
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from common.errors import UserError
from schemes.drafters.heads import Heads, MedusaHeads, logits_of
from schemes.drafters.ranking import gumbel, noise_keys
from training.unrolled import UnrolledAttention

TOKENS_PER_STEP = 2048
"""Rows of one update."""

MATRIX_RATE, OTHER_RATE = 0.02, 0.003
"""Learning rates at their highest: from `WARM_UP` to `FLAT_UNTIL` of all steps. They fall to 0 in a straight
line."""

WARM_UP, FLAT_UNTIL = 0.05, 0.4
MOMENTUM = 0.95
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
        longest = max(len(text.tokens) for text in texts)
        device = texts[0].hidden.device
        tokens = torch.zeros((len(texts), longest), dtype=torch.int64)
        is_real = torch.zeros((len(texts), longest), dtype=torch.bool)
        for row, text in enumerate(texts):
            tokens[row, : len(text.tokens)] = torch.from_numpy(text.tokens.astype(np.int64))
            is_real[row, : len(text.tokens)] = True
        hidden = torch.nn.utils.rnn.pad_sequence([text.hidden for text in texts], batch_first=True)
        return cls(tokens.to(device), hidden, is_real.to(device))


class Trainer:
    """Trains `heads` for `num_steps` updates; an update is one call of `step`.

    The order of the texts is a function of `seed` alone, so `state` is all that training needs to go on.
    """

    def __init__(
        self,
        heads: Heads,
        target: TargetModel,
        texts: Sequence[WrittenText],
        num_steps: int,
        seed: int = 0,
    ) -> None:
        self.heads = heads.requires_grad_(True)
        self.num_steps = num_steps
        self.done = 0
        self._target = target
        self._texts = texts
        self._batches = batches([len(text.tokens) for text in texts], seed)
        self._optimizer = _Optimizer(dict(heads.named_parameters()))

    def step(self) -> list[float]:
        """Make one update. Return the mean loss at each level that it trained, in nats."""
        batch = Batch.of([self._texts[place] for place in next(self._batches)])
        depth = num_levels(self.done / self.num_steps, self.heads.depth)
        losses = list(level_losses(self.heads, self._target, batch, depth))
        total = sum((LEVEL_WEIGHT**level * loss for level, loss in enumerate(losses)), torch.zeros(()))
        total.backward()  # type: ignore[no-untyped-call]  # torch ships this one method without types
        self._optimizer.step(_factor(self.done / self.num_steps))
        self.done += 1
        return [loss.item() for loss in losses]

    def state(self) -> dict[str, Tensor]:
        """Return the weights and the optimizer's moments by name."""
        tensors = {f"heads.{name}": weight for name, weight in self.heads.state_dict().items()}
        tensors |= {f"moments.{name}": moment for name, moment in self._optimizer.moments.items()}
        return tensors | {"done": torch.tensor(self.done)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state` of a training with the same arguments."""
        own = {name.removeprefix("heads."): state[name] for name in state if name.startswith("heads.")}
        self.heads.load_state_dict(own)
        for name, moment in self._optimizer.moments.items():
            moment.copy_(state[f"moments.{name}"])
        self.done = int(state["done"])
        for _ in range(self.done):
            next(self._batches)


def num_levels(done: float, depth: int) -> int:
    """Return the levels to train when this share of the steps is done. The first level teaches all others
    most of what they need, and each costs as much time."""
    return min(depth, 1 + int(max(0.0, done - DEEPER_FROM) / (1.0 - DEEPER_FROM) * depth))


def _factor(done: float) -> float:
    """Return the share of the highest learning rates, when this share of the steps is done."""
    if done < WARM_UP:
        return (done + 0.1 * WARM_UP) / (1.1 * WARM_UP)
    return min(1.0, (1.0 - done) / (1.0 - FLAT_UNTIL))


class _Optimizer:
    """Moves matrices by Muon (Jordan et al. 2024), which takes a third of Adam's steps, and all else by Adam
    (Kingma and Ba 2014). torch's own Muon multiplies in bfloat16, which most CPUs only emulate."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self.moments = {f"{name}.mean": torch.zeros_like(each) for name, each in parameters.items()}
        self.moments |= {
            f"{name}.square": torch.zeros_like(each) for name, each in parameters.items() if each.ndim < 2
        }

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Apply one update with `factor` times the highest rates, and clear the gradients."""
        for name, each in self._parameters.items():
            gradient, mean = each.grad, self.moments[f"{name}.mean"]
            if gradient is None:
                continue
            mean.lerp_(gradient, 1.0 - MOMENTUM)
            if each.ndim < 2:
                square = self.moments[f"{name}.square"].lerp_(gradient.square(), 1.0 - MOMENTUM)
                each.addcdiv_(mean, square.sqrt() + 1e-10, value=-factor * OTHER_RATE)
            else:
                scale = max(1.0, each.shape[-2] / each.shape[-1]) ** 0.5
                update = orthogonal(gradient.lerp(mean, MOMENTUM))
                each.add_(update, alpha=-factor * MATRIX_RATE * scale)
            each.grad = None


def orthogonal(matrix: Tensor) -> Tensor:
    """Return about the nearest matrix [..., R, C] whose singular values are 1, by Newton and Schulz."""
    wide = matrix.shape[-2] <= matrix.shape[-1]
    wide_matrix = matrix if wide else matrix.mT
    wide_matrix = wide_matrix / (wide_matrix.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        squared = wide_matrix @ wide_matrix.mT
        wide_matrix = 3.4445 * wide_matrix + (-4.7750 * squared + 2.0315 * squared @ squared) @ wide_matrix
    result: Tensor = wide_matrix if wide else wide_matrix.mT
    return result


def batches(lengths: Sequence[int], seed: int) -> Iterator[list[int]]:
    """Yield texts of about `TOKENS_PER_STEP` tokens together, without end. Each pass has its own order."""
    most = min(len(lengths), max(1, TOKENS_PER_STEP // max(lengths)))
    epoch = 0
    while True:
        order = np.random.default_rng((seed, epoch)).permutation(len(lengths)).tolist()
        for at in range(0, len(order) - most + 1, most):
            yield order[at : at + most]
        epoch += 1


def level_states(heads: Heads, tokens: Tensor, hidden: Tensor, depth: int) -> Iterator[Tensor]:
    """Yield each level's hidden states [B, T - L, H] of the rows from L on, as training sees them.

    Level L of a row of a recurrent head sees its L - 1 rows before at the levels above, and all earlier rows
    at level 1. Args: tokens int64 [B, T]; hidden [B, T, H], the target's.
    """
    if isinstance(heads, MedusaHeads):
        for level in range(1, depth + 1):
            yield heads.state_below(hidden[:, :-level], level)
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
    for level, states in enumerate(level_states(heads, batch.tokens, batch.hidden, depth), 1):
        got = logits_of(target, states).log_softmax(dim=-1)
        apart = functional.kl_div(got, wanted[:, level:], reduction="none", log_target=True).sum(dim=-1)
        yield apart[batch.is_real[:, level:]].mean()


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
    hits = np.zeros((heads.depth, 2))
    rows = np.zeros(heads.depth)
    for number, text in enumerate(texts):
        batch = Batch.of([text])
        logits = logits_of(target, batch.hidden)[0]
        noise = gumbel(
            noise_keys([number] * len(logits), range(len(logits)), logits.device).unsqueeze(1),
            torch.arange(logits.shape[1], device=logits.device),
        )
        noise = (noise * temperature).float()
        chosen = logits.argmax(dim=-1), (logits + noise).argmax(dim=-1)
        for level, states in enumerate(level_states(heads, batch.tokens, batch.hidden, heads.depth), 1):
            own = logits_of(target, states)[0]
            hits[level - 1, 0] += (own.argmax(dim=-1) == chosen[0][level:]).sum().item()
            hits[level - 1, 1] += ((own + noise[level:]).argmax(dim=-1) == chosen[1][level:]).sum().item()
            rows[level - 1] += len(own)
    return [LevelAccuracy(*pair) for pair in (hits / rows[:, None]).tolist()]


def digest(target: TargetModel, prompts: Sequence[Sequence[int]]) -> str:
    """Return a digest of prompts and of the first values of each of the target's weights."""
    hashed = hashlib.blake2b(digest_size=16)
    for prompt in prompts:
        hashed.update(np.array([len(prompt), *prompt], np.int64).tobytes())
    for weights in target.module.parameters():
        hashed.update(weights.detach().reshape(-1)[:DIGESTED].double().cpu().numpy().tobytes())
    return hashed.hexdigest()


class Checkpoint:
    """Keeps an interrupted training in one file: the texts of the target, and a trainer's state.

    `told` says what is trained and how. Raises `UserError` for a file of another training.
    """

    def __init__(self, path: Path, told: Mapping[str, object]) -> None:
        self.path = path
        self.texts: list[IntArray] = []
        self.state: dict[str, Tensor] = {}
        self._told = {name: str(value) for name, value in told.items()}
        if path.exists():
            self._read()

    def save(
        self, texts: Sequence[IntArray] | None = None, state: Mapping[str, Tensor] | None = None
    ) -> None:
        """Keep texts or a state beside what is kept."""
        self.texts = self.texts if texts is None else list(texts)
        self.state = self.state if state is None else dict(state)
        kept = {"texts": torch.from_numpy(np.concatenate(self.texts))}
        kept["lengths"] = torch.tensor([len(text) for text in self.texts])
        kept |= {f"state.{name}": tensor.contiguous() for name, tensor in self.state.items()}
        partial = self.path.with_name(self.path.name + ".part")
        save_file(kept, partial, self._told)
        partial.replace(self.path)

    def _read(self) -> None:
        try:
            with safe_open(self.path, "pt") as file:
                told, names = file.metadata(), list(file.keys())
                saved = {name: file.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise UserError(f"{self.path} cannot be read: {error}; delete it to train anew") from error
        if told != self._told:
            raise UserError(
                f"{self.path} is left of another training ({told}); repeat that one's options, or delete it"
            )
        ends = saved["lengths"].cumsum(0).tolist()
        self.texts = np.split(saved["texts"].numpy(), ends[:-1])
        self.state = {
            name.removeprefix("state."): tensor for name, tensor in saved.items() if name.startswith("state.")
        }
