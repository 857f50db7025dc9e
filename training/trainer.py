"""Updates parameters from the gradients of a loss: the one trainer of heads and of drafts.

An update is a function of the seed and of the updates before it. So an interrupted training goes on as if it
had not been interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from cloud_verifier.core.engine_protocol import IntArray
from common.errors import UserError

TOKENS_PER_STEP = 2048
"""Rows of one update."""

WARM_UP, FLAT_UNTIL = 0.05, 0.4
"""Shares of the updates after which the learning rates are at their highest, and from which they fall to 0
in a straight line."""

MOMENTUM = 0.95

Losses = Callable[[Sequence[int], float], Iterator[Tensor]]
"""Yields the parts of a batch's loss, each [L] with L numbers to show, from the places of its texts and the
share of the updates that is done. All numbers' gradients are added up, part by part to save memory."""


class Trainer:
    """Makes `num_updates` updates of `parameters`; an update is one call of `step`.

    Args: parameters by name; losses; lengths: tokens of each text; rates: highest learning rates of matrices
    and of all else; seed of the order of the texts; tables: names of matrices with a row for each token.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        losses: Losses,
        lengths: Sequence[int],
        num_updates: int,
        rates: tuple[float, float],
        seed: int = 0,
        tables: Collection[str] = (),
    ) -> None:
        self.num_updates, self.done = num_updates, 0
        self._parameters = dict(parameters)
        self._losses = losses
        self._batches = batches(lengths, seed)
        self._optimizer = Optimizer(self._parameters, rates, tables)

    @property
    def share(self) -> float:
        """Share of the updates that is done."""
        return self.done / self.num_updates

    def step(self) -> list[float]:
        """Make one update. Return the loss's numbers."""
        numbers = torch.zeros(())
        for part in self._losses(next(self._batches), self.share):
            part.sum().backward()  # type: ignore[no-untyped-call]  # torch ships this method without types
            numbers = numbers + part.detach()
        self._optimizer.step(rate_factor(self.share))
        self.done += 1
        return numbers.tolist()

    def updates(self) -> Iterator[tuple[list[float], float]]:
        """Make the updates that are left. Yield the loss's numbers after each, and the seconds to go."""
        began_at, begun = time.monotonic(), self.done
        while self.done < self.num_updates:
            numbers = self.step()
            pace = (time.monotonic() - began_at) / (self.done - begun)
            yield numbers, pace * (self.num_updates - self.done)

    def weights(self) -> dict[str, Tensor]:
        """Return the parameters by name."""
        return {f"weights.{name}": weight.detach() for name, weight in self._parameters.items()}

    def state(self) -> dict[str, Tensor]:
        """Return the parameters and what the optimizer knows by name."""
        tensors = self.weights()
        tensors |= {f"moments.{name}": moment for name, moment in self._optimizer.moments.items()}
        return tensors | {"done": torch.tensor(self.done), "share": torch.tensor(self._optimizer.share)}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the weights of a `state`."""
        for name, weight in self._parameters.items():
            weight.copy_(state[f"weights.{name}"])

    def go_back(self, weights: Mapping[str, Tensor]) -> None:
        """Take earlier `weights`, and go on from there more slowly: the updates since then did harm."""
        self.load(weights)
        self._optimizer.slow_down()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state` of a training with the same arguments."""
        self.load(state)
        for name, moment in self._optimizer.moments.items():
            moment.copy_(state[f"moments.{name}"])
        self._optimizer.share = float(state.get("share", 1.0))
        self.done = int(state["done"])
        for _ in range(self.done):
            next(self._batches)


@contextmanager
def matrix_products_in(precision: str) -> Iterator[None]:
    """Let float32 matrices be multiplied in a precision of `torch.set_float32_matmul_precision`."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def rate_factor(done: float) -> float:
    """Return the share of the highest learning rates, when this share of the updates is done."""
    if done < WARM_UP:
        return (done + 0.1 * WARM_UP) / (1.1 * WARM_UP)
    return min(1.0, (1.0 - done) / (1.0 - FLAT_UNTIL))


class Optimizer:
    """Moves matrices by Muon (Jordan et al. 2024), which takes a third of Adam's steps, and all else by Adam
    (Kingma and Ba 2014). torch's own Muon multiplies in bfloat16, which most CPUs only emulate."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], rates: tuple[float, float], tables: Collection[str]
    ) -> None:
        self._parameters, self._rates = parameters, rates
        self.share = 1.0  # of the rates that is used
        self._by_adam = {name for name, weight in parameters.items() if weight.ndim < 2 or name in tables}
        self.moments = {f"{name}.mean": torch.zeros_like(weight) for name, weight in parameters.items()}
        self.moments |= {f"{name}.square": torch.zeros_like(parameters[name]) for name in self._by_adam}

    def slow_down(self) -> None:
        """Use a quarter of the present rates, and forget the direction of earlier updates."""
        self.share *= 0.25
        for moment in self.moments.values():
            moment.zero_()

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Apply one update with `factor` times the highest rates, and clear the gradients."""
        factor *= self.share
        for name, weight in self._parameters.items():
            gradient, mean = weight.grad, self.moments[f"{name}.mean"]
            if gradient is None:
                continue
            mean.lerp_(gradient, 1.0 - MOMENTUM)
            if name in self._by_adam:
                square = self.moments[f"{name}.square"].lerp_(gradient.square(), 1.0 - MOMENTUM)
                weight.addcdiv_(mean, square.sqrt() + 1e-10, value=-factor * self._rates[1])
            else:
                scale = max(1.0, weight.shape[-2] / weight.shape[-1]) ** 0.5
                update = orthogonal(gradient.lerp(mean, MOMENTUM))
                weight.add_(update, alpha=-factor * self._rates[0] * scale)
            weight.grad = None


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


def side_by_side(texts: Sequence[IntArray], firsts: Iterable[int]) -> tuple[Tensor, Tensor]:
    """Return texts padded at their ends, int64 [B, T], and which places hold tokens from a text's `first` on,
    bool [B, T]."""
    longest = max(len(text) for text in texts)
    tokens = torch.zeros((len(texts), longest), dtype=torch.int64)
    is_real = torch.zeros((len(texts), longest), dtype=torch.bool)
    for row, (text, first) in enumerate(zip(texts, firsts, strict=False)):
        tokens[row, : len(text)] = torch.from_numpy(text.astype(np.int64))
        is_real[row, first : len(text)] = True
    return tokens, is_real


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
        kept = {"texts": torch.from_numpy(np.concatenate([np.zeros(0, np.int32), *self.texts]))}
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
