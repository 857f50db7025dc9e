"""Checks an attention backend against the reference in float32, in the serving precision and shapes.

A whole model's logits hide errors of attention: in bfloat16 the rounding of many layers is larger than
one token too many in a window. One call of attention does not hide them. Keys and values here are random, so
all tokens weigh about the same. One token too many or too few of n moves a row by about 1/sqrt(n) of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.attention.attention_units import Cuts
from cloud_verifier.engine.attention.backend import AttentionBackend, AttentionTerms, LayerKV
from cloud_verifier.engine.attention.torch_ref import TorchRefBackend
from cloud_verifier.engine.packing import PackedStep, StepLimits, item_of, pack


@dataclass(frozen=True, slots=True)
class Trial:
    """Holds one set of random numbers and the row error that rounding explains with them."""

    spread: float  # of the scores
    tolerance: Mapping[torch.dtype, float]  # root mean square over a row's heads, relative to the row
    softcap: float  # in place of the model's own, which such scores might never come near


EVEN = Trial(0.25, {torch.float32: 2e-3, torch.float16: 3e-3, torch.bfloat16: 1.2e-2}, softcap=1.0)
"""For masks. Rounding gives 1e-6, 6e-4 and 4e-3 on a CPU, 8e-3 in Triton's interpreter, which cuts bfloat16
off, and TF32 (float32 of 10 bits of mantissa, on tensor cores) would give about 5e-4. One token too many in a
window of 4,096 gives 0.017 and more, one in 128 gives 0.1."""

PEAKED = Trial(2.0, {torch.float32: 5e-3, torch.float16: 2e-2, torch.bfloat16: 0.12}, softcap=2.0)
"""For scaling, softcap and the running maximum of kernels that read keys in tiles; mistakes give 0.3."""

TREE = (-1, 0, 0, 1, 2, -1, 5, 3, 3, 0)
"""Parents of a tree's rows: two roots, forks, four levels, branches interleaved."""

CHUNK = 37
"""Rows of the prefill chunk; no multiple of the tiles that kernels are made of."""

NO_WINDOW = 150
"""Tokens before the rows of a layer without a window."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Describes the arguments of a layer's attention, apart from its numbers."""

    dtype: torch.dtype  # of keys and values
    num_heads: int  # Hq
    num_kv_heads: int  # Hkv
    key_depth: int  # Dk
    value_depth: int  # Dv
    terms: AttentionTerms

    @classmethod
    def of(cls, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Self:
        """Return the shape of one call of `StepAttention.attend`."""
        heads, depth = kv.keys.shape[1:]
        return cls(kv.rows.dtype, query.shape[1], heads, depth, kv.values.shape[2], terms)

    @property
    def kind(self) -> tuple[object, ...]:
        """Return a key by which to check layers of one kind once; the sinks' numbers make no difference."""
        terms = self.terms
        sizes = (self.num_heads, self.num_kv_heads, self.key_depth, self.value_depth)
        return self.dtype, *sizes, terms.scaling, terms.window, terms.softcap, terms.sinks is None

    def describe(self) -> str:
        """Describe the shape in words, for a message."""
        window = f"a window of {self.terms.window}" if self.terms.window is not None else "no window"
        terms = [name for name in ("softcap", "sinks") if getattr(self.terms, name) is not None]
        heads = f"{self.num_heads} heads of {self.key_depth} over {self.num_kv_heads} KV heads"
        return ", ".join((heads, window, *terms, str(self.dtype).removeprefix("torch.")))


def attention_error(backend: AttentionBackend, shape: LayerShape, device: torch.device) -> float:
    """Return a row's largest error as a share of what rounding explains; above 1 or NaN is a mistake.

    The check evaluates one layer's attention over prefill chunks and trees, with `EVEN` and `PEAKED` numbers.
    A backend with `cuts` also gets a long step, in which each kernel runs with one split and with several.
    """
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for trial in (EVEN, PEAKED):
        terms = shape.terms if shape.terms.softcap is None else replace(shape.terms, softcap=trial.softcap)
        for step, num_slots in steps(terms.window or NO_WINDOW, backend.cuts):
            rows, query = _random_numbers(shape, num_slots, step.num_rows, trial.spread, generator)
            rows, query = rows.to(device, shape.dtype), query.to(device, shape.dtype).transpose(1, 2)
            kv, wide = _layer(rows, shape.key_depth), _layer(rows.float(), shape.key_depth)
            result = backend.prepare(step, device).attend(query, kv, terms)[0].float()
            expected = TorchRefBackend().prepare(step, device).attend(query.float(), wide, terms)[0]
            error = float((_lengths(result - expected) / _lengths(expected)).max())
            worst = max(worst, error / trial.tolerance[shape.dtype], key=badness)
    return worst


def steps(reach: int, cuts: Cuts | None = None) -> Iterator[tuple[PackedStep, int]]:
    """Yield a prefill step and a step of trees, with sessions shorter and longer than `reach`; with `cuts`
    also a long step of both. Each comes with its number of slots."""
    chain, short = range(-1, CHUNK - 1), range(-1, 4)
    yield _step(((reach + 30, chain), (0, short)), reach)
    yield _step(((13, TREE), (reach + 17, TREE), (0, TREE), (reach // 2, short)), reach)
    if cuts is None:
        return
    some, many = 5 * cuts.narrow.split // 2 + 29, 3 * cuts.wide.split // 2 + 29
    one_tile, tiles = cuts.most_narrow + cuts.wide.rows // 4, cuts.most_narrow + 15 * cuts.wide.rows // 4
    chunks = (many, range(-1, one_tile - 1)), (some, range(-1, tiles - 1))
    yield _step((*chunks, (many, TREE), (some, TREE)), many, shared=many)


def _step(shapes: Sequence[tuple[int, Sequence[int]]], seed: int, shared: int = 0) -> tuple[PackedStep, int]:
    """Sessions of these shapes: tokens before the rows, and the rows' parents. The first `shared` tokens are
    common to all sessions that have so many."""
    num_slots = sum(before + len(parents) for before, parents in shapes) + 3
    slots = np.random.default_rng(seed).permutation(num_slots).astype(np.int32)
    common, free = slots[:shared], slots[shared:]
    items = []
    for session, (before, parents) in enumerate(shapes):
        own = max(0, before - shared)
        prefix, rows, free = np.split(free, [own, own + len(parents)])
        prefix = np.concatenate((common[: before - own], prefix))
        items.append(item_of(parents, rows, prefix, session=session))
    return pack(StepPlan(tuple(items)), StepLimits(1, 2**31 - 1, num_slots)), num_slots


def _random_numbers(
    shape: LayerShape, num_slots: int, num_rows: int, spread: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """KV [num_slots, Hkv, Dk + Dv] and queries [1, T, Hq, Dk] whose scores have this spread; float32."""
    depth = shape.key_depth
    kv = torch.randn((num_slots, shape.num_kv_heads, depth + shape.value_depth), generator=generator)
    query = torch.randn((1, num_rows, shape.num_heads, depth), generator=generator)
    return kv, query * (spread / (shape.terms.scaling * depth**0.5))


def _layer(rows: Tensor, key_depth: int) -> LayerKV:
    return LayerKV(rows, rows[..., :key_depth], rows[..., key_depth:])


def _lengths(rows: Tensor) -> Tensor:
    """Root mean square over heads and depth: [T, Hq, Dv] to [T]."""
    return rows.square().mean((1, 2)).sqrt()


def badness(error: float) -> float:
    """Return a sort key of an error: NaN ranks above any number, which no comparison does by itself."""
    return float("inf") if error != error else error
