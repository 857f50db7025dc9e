"""Random steps, and one layer's numbers for them: what the tests of attention share."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.attention.backend import AttentionTerms, LayerKV
from cloud_verifier.engine.packing import PackedStep, StepLimits, pack
from tests.cloud_verifier.engine.tiny import Session, Slots

NUM_SLOTS = 1024
LIMITS = StepLimits(10, 1000, NUM_SLOTS)

Shape = tuple[int, int, str]
"""Prefix length, rows, "tree" or "chain"."""

SHAPES: dict[str, list[Shape]] = {
    "one bare tip": [(9, 1, "chain")],
    "one first token": [(0, 1, "chain")],
    "one prefill chunk": [(0, 7, "chain")],
    "one tree": [(12, 6, "tree")],
    "equal tips": [(5, 1, "chain"), (5, 1, "chain"), (5, 1, "chain")],
    "similar trees": [(9, 4, "tree"), (11, 6, "tree"), (10, 5, "tree")],
    "far apart": [(3, 1, "chain"), (120, 2, "tree"), (0, 60, "chain"), (4, 1, "chain"), (90, 7, "tree")],
}
TERMS = {
    # name: window, softcap, whether there are sinks
    "plain": (None, None, False),
    "window": (7, None, False),
    "wide window": (70, None, False),
    "softcap": (None, 1.5, False),
    "sinks": (None, None, True),
    "all": (20, 1.5, True),
}


def random_plan(shapes: Sequence[Shape], seed: int = 3) -> StepPlan:
    """Sessions of these shapes with scattered slots."""
    random = np.random.default_rng(seed)
    slots = Slots(NUM_SLOTS)
    items = []
    for key, (prefix, count, kind) in enumerate(shapes):
        session = Session(key, slots, held=slots.take(prefix))
        tree = [int(random.integers(-1, row)) if row else -1 for row in range(count)]
        items.append(session.item([0] * count, tree if kind == "tree" else range(-1, count - 1), ()))
    return StepPlan(tuple(items))


def packed(shapes: Sequence[Shape], seed: int = 3) -> PackedStep:
    return pack(random_plan(shapes, seed), LIMITS)


def terms_of(name: str, num_heads: int, device: str | torch.device = "cpu") -> AttentionTerms:
    window, softcap, with_sinks = TERMS[name]
    torch.manual_seed(2)
    return AttentionTerms(0.4, window, softcap, torch.randn(num_heads).to(device) if with_sinks else None)


def layer(num_kv_heads: int, key_depth: int, value_depth: int) -> LayerKV:
    """The same random KV each time."""
    torch.manual_seed(1)
    rows = torch.randn(NUM_SLOTS, num_kv_heads, key_depth + value_depth)
    return LayerKV(rows, rows[..., :key_depth], rows[..., key_depth:])


def query_for(num_rows: int, num_heads: int, depth: int) -> Tensor:
    """[1, Hq, T, Dk] in the layout that models hand over."""
    return torch.randn(1, num_rows, num_heads, depth).transpose(1, 2)
