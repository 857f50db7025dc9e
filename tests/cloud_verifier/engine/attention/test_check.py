"""The check of one layer's attention lets rounding pass and no mistake, in any precision, with any term."""

import math
from typing import Any

import pytest
import torch

from cloud_verifier.engine.attention.attention_check import LayerShape, attention_error
from cloud_verifier.engine.attention.attention_units import CUTS, UNIT_FIELDS, plan_attention
from cloud_verifier.engine.attention.backend import AttentionBackend, AttentionTerms, StepAttention
from cloud_verifier.engine.attention.torch_ref import TorchRefBackend
from cloud_verifier.engine.packing import PackedStep
from tests.cloud_verifier.engine.mistakes import Mistaken, Nothing

pytestmark = pytest.mark.torch

DTYPES = ("float32", "bfloat16", "float16")
TERMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "short window": {"window": 8},
    "long window": {"window": 4096},
    "softcap": {"softcap": 50.0},
    "sinks": {"sinks": True},
    "all": {"window": 128, "softcap": 30.0, "sinks": True},
}
SIZES = {"grouped": (4, 2, 8, 8), "one KV head": (4, 1, 16, 16), "wide keys": (4, 4, 12, 6)}
MISTAKES = {
    "one too many in the window": ("short window", "long window", "all"),
    "one too few in the window": ("short window", "long window", "all"),
    "no window": ("short window", "long window", "all"),
    "no softcap": ("softcap", "all"),
    "no sinks": ("sinks", "all"),
    "other scaling": tuple(TERMS),
    "leak": tuple(TERMS),
    "tree as chain": tuple(TERMS),
    "blind to ancestors": tuple(TERMS),
    "lost slot": ("plain", "softcap", "sinks"),
}


def shape_of(terms: str, dtype: str, sizes: str = "grouped") -> LayerShape:
    heads, kv_heads, key_depth, value_depth = SIZES[sizes]
    asked = dict(TERMS[terms])
    kind = getattr(torch, dtype)
    if asked.pop("sinks", False):
        asked["sinks"] = torch.linspace(-1.0, 1.0, heads).to(kind)
    return LayerShape(kind, heads, kv_heads, key_depth, value_depth, AttentionTerms(key_depth**-0.5, **asked))


def error_of(backend: Any, shape: LayerShape) -> float:
    return attention_error(backend, shape, torch.device("cpu"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_reference_backend_is_within_rounding(sizes: str, terms: str, dtype: str) -> None:
    assert error_of(TorchRefBackend(), shape_of(terms, dtype, sizes)) < 0.8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])  # the finest and the coarsest
@pytest.mark.parametrize(("kind", "terms"), [(kind, one) for kind, many in MISTAKES.items() for one in many])
def test_every_mistake_is_more_than_rounding(kind: str, terms: str, dtype: str) -> None:
    assert error_of(Mistaken(kind), shape_of(terms, dtype)) > 1.3


def test_no_numbers_are_worse_than_wrong_ones() -> None:
    assert math.isnan(error_of(Nothing(), shape_of("plain", "float32")))


class Counting(AttentionBackend):
    """The reference backend, with the cuts of a kernel. It counts what the kernel would be started for."""

    def __init__(self) -> None:
        self.cuts = CUTS
        self.splits: dict[bool, set[int]] = {False: set(), True: set()}  # of a tile, by whether it is wide

    def prepare(self, step: PackedStep, device: torch.device) -> StepAttention:
        plan = plan_attention(step, CUTS)
        splits = plan.units[:, UNIT_FIELDS.index("splits")].tolist()
        self.splits[False].update(splits[: plan.num_narrow])
        self.splits[True].update(splits[plan.num_narrow :])
        return TorchRefBackend().prepare(step, device)


def test_a_backend_that_cuts_is_seen_with_each_tile_and_with_splits() -> None:
    backend = Counting()
    assert error_of(backend, shape_of("plain", "float32")) < 0.8
    narrow, wide = backend.splits[False], backend.splits[True]
    assert {1, 3} <= narrow, "a tree over one split, and over several that are added up"
    assert {1, 2} <= wide, "a prefill chunk likewise"
