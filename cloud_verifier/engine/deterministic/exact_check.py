"""Checks level L2 at load time: a row must have the same bits alone and in company, on this machine.

Tiles and lone attention remove the known causes. A kernel of this device may still make a row depend on its
place or its company: on a CPU with three threads bfloat16 products of some shapes do. So the machine itself
is measured. The check meets all shapes that serving can meet: the forward
of one tile, and attention at every padded length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import IntArray, StepItem, StepPlan
from cloud_verifier.engine.conformance_probe import COARSE_TOLERANCE
from cloud_verifier.engine.deterministic.exact_engine import padded_length
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.packing import item_of
from cloud_verifier.engine.torch_engine import TorchEngine
from common.errors import UserError

CHECK_SLOTS = 2048
"""Room for a step that holds a row of every padded length and a full tile of copies."""

NUM_WRITTEN = 64
"""Slots that hold random tokens' KV. Prefixes of any length are made of them, with repetitions."""

LENGTHS_IN_PLACE = (1, 5, 32)
"""Keys of the rows that are evaluated at every place of a tile. Several, since few values round otherwise."""

CHAIN = 20
"""Tokens of the path that is evaluated row by row, as a chunk and as a branch of a tree."""

MOST_STRANGE = 7
"""Rows of a session that is there as company."""

NUM_LONE = 6
"""Lengths whose row is evaluated alone; every length is evaluated in two different steps."""

MakeEngine = Callable[[int], TorchEngine]
"""From a number of KV slots to an engine on the model that is checked."""


def check_exact(model: TargetModel, make_engine: MakeEngine, *, tile_rows: int, longest: int) -> int:
    """Compare rows alone and among others, up to `longest` keys; return how many are equal bit for bit.

    Raises `UserError` with the reason.
    """
    random = np.random.default_rng(0)
    count = min(CHAIN, model.max_positions)
    path = random.integers(model.vocab_size, size=count).astype(np.int32)
    with model.plain(), torch.inference_mode():
        plain = model.plain_logits(path.tolist(), count)  # before the engine changes the model
    lab = _Lab(make_engine(CHECK_SLOTS), random)
    alone = lab.by_rows(path)
    _check_right(model, alone, plain)
    num_rows = 0
    for where, first, second in _computed_twice(
        lab, path, alone, tile_rows, min(longest, model.max_positions)
    ):
        if not torch.equal(torch.stack(first).view(torch.int32), torch.stack(second).view(torch.int32)):
            raise UserError(
                f"model '{model.name}' cannot be served with --deterministic here: a row has other bits "
                f"{where}, so some kernel of this machine depends on a row's place or company. Another "
                "--threads (1 is the surest) or --dtype may help."
            )
        num_rows += len(first)
    return num_rows


def _check_right(model: TargetModel, rows: Sequence[Tensor], plain: Tensor) -> None:
    """Equal bits could be equally wrong: the path must also be what plain transformers computes."""
    difference = (torch.stack(list(rows)) - plain).square().mean().sqrt() / plain.std()
    if not float(difference) <= COARSE_TOLERANCE.get(model.dtype, COARSE_TOLERANCE[torch.bfloat16]):
        raise UserError(
            f"model '{model.name}' cannot be served with --deterministic: that path differs from plain "
            f"transformers by {float(difference):.2g} of the logits' spread, more than rounding explains."
        )


def _computed_twice(
    lab: _Lab, path: IntArray, alone: list[Tensor], tile_rows: int, longest: int
) -> Iterator[tuple[str, list[Tensor], list[Tensor]]]:
    """Yield the logits float32 [V] of rows that were computed twice, and what differed between the two."""
    for length in LENGTHS_IN_PLACE:
        tip = lab.tip(length)
        yield "at another place of its tile", lab.step([tip]) * tile_rows, lab.step([tip] * tile_rows)
    tips = [lab.tip(length) for length in _lengths(longest, lab.random)]
    mixed = lab.mixed(tips)
    yield "in other company", mixed, lab.mixed(tips)
    for index in sorted({*np.linspace(0, len(tips) - 1, NUM_LONE).astype(int).tolist()}):
        yield "alone", [mixed[index]], lab.step([tips[index]])
    # The path whose rows were evaluated alone, as a chunk of a prompt, and as a branch of a tree where each
    # row has a sibling.
    yield "in a chunk of a prompt", alone, lab.mixed([_Rows(path, range(-1, len(path) - 1))])
    tokens = np.repeat(path, 2)
    tokens[1::2] = lab.tokens(len(path))
    tree = _Rows(tokens, [-1, *(row // 2 * 2 for row in range(len(tokens) - 1))])
    yield "in a tree", alone, lab.mixed([tree])[::2]


def _lengths(longest: int, random: np.random.Generator) -> list[int]:
    """Return a number of keys for each padded length up to that of `longest`."""
    lengths, least = list[int](), 1
    while least <= longest:
        most = min(padded_length(least), longest)
        lengths.append(int(random.integers(least, most + 1)))
        least = padded_length(least) + 1
    return lengths


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows to evaluate below a prefix of slots; all their logits are wanted."""

    tokens: IntArray
    parents: Sequence[int]
    prefix: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))


class _Lab:
    """Runs steps of parts on an engine of its own; slots are handed out anew in every step."""

    def __init__(self, engine: TorchEngine, random: np.random.Generator) -> None:
        self.random = random
        self._engine = engine
        slots = random.permutation(engine.info.num_slots).astype(np.int32)
        count = min(NUM_WRITTEN, engine.info.max_positions - MOST_STRANGE)
        self._written, self._free = slots[:count], slots[count:]
        self._engine.logits(
            StepPlan((_item(_Rows(self.tokens(count), range(-1, count - 1)), self._written),))
        )

    def tokens(self, count: int) -> IntArray:
        return self.random.integers(self._engine.info.vocab_size, size=count).astype(np.int32)

    def tip(self, length: int) -> _Rows:
        """Return a row of `length` keys, its own included."""
        return _Rows(self.tokens(1), [-1], self.random.choice(self._written, length - 1))

    def step(self, parts: Sequence[_Rows]) -> list[Tensor]:
        """Return the logits float32 [V] of all rows of one step."""
        ends = np.cumsum([len(part.tokens) for part in parts])
        slots = np.split(self._free[: ends[-1]], ends[:-1])
        items = [_item(part, own) for part, own in zip(parts, slots, strict=True)]
        return list(self._engine.logits(StepPlan(tuple(items))))

    def mixed(self, parts: Sequence[_Rows]) -> list[Tensor]:
        """Evaluate the rows in random order with strangers between them, and return the rows' logits."""
        strangers = [self._stranger() for _ in range(3)]
        everyone = [*parts, *strangers]
        order = self.random.permutation(len(everyone)).tolist()
        logits = iter(self.step([everyone[index] for index in order]))
        rows = {index: [next(logits) for _ in everyone[index].tokens] for index in order}
        return [row for index in range(len(parts)) for row in rows[index]]

    def by_rows(self, path: IntArray) -> list[Tensor]:
        """Return the path's logits, each row in a step of its own, as in plain decoding."""
        slots, logits = self._free[-len(path) :], list[Tensor]()
        for row in range(len(path)):
            part = _Rows(path[row : row + 1], [-1], slots[:row])
            logits += self._engine.logits(StepPlan((_item(part, slots[row : row + 1]),)))
        return logits

    def _stranger(self) -> _Rows:
        count = int(self.random.integers(1, MOST_STRANGE + 1))
        prefix = self.random.choice(self._written, int(self.random.integers(len(self._written))))
        return _Rows(self.tokens(count), range(-1, count - 1), prefix)


def _item(part: _Rows, slots: IntArray) -> StepItem:
    return item_of(part.parents, slots, part.prefix, tokens=part.tokens, outputs=range(len(slots)))
