"""The reference backend equals attention written row by row, for any mix of sessions, trees and terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from torch import Tensor

    from cloud_verifier.core.target import StepItem, StepPlan
    from cloud_verifier.engine.attention import AttentionTerms
    from cloud_verifier.engine.kv import LayerKV

pytestmark = pytest.mark.torch

SHAPES = {
    # name: sessions as (prefix length, rows), "tree" or "chain"
    "one bare tip": [(9, 1, "chain")],
    "one first token": [(0, 1, "chain")],
    "one prefill chunk": [(0, 7, "chain")],
    "one tree": [(12, 6, "tree")],
    "equal tips": [(5, 1, "chain"), (5, 1, "chain"), (5, 1, "chain")],
    "similar trees": [(9, 4, "tree"), (11, 6, "tree"), (10, 5, "tree")],
    "far apart": [(3, 1, "chain"), (120, 2, "tree"), (0, 60, "chain"), (4, 1, "chain"), (90, 7, "tree")],
}
TERMS = {
    "plain": (None, None, False),
    "window": (4, None, False),
    "softcap": (None, 1.5, False),
    "sinks": (None, None, True),
    "all": (5, 1.5, True),
}


def random_plan(shapes: list[tuple[int, int, str]]) -> StepPlan:
    from cloud_verifier.core.target import StepPlan
    from tests.cloud_verifier.engine.tiny import Session, Slots

    random = np.random.default_rng(3)
    slots = Slots(512)
    items = []
    for key, (prefix, count, kind) in enumerate(shapes):
        session = Session(key, slots, held=slots.take(prefix))
        tree = [int(random.integers(-1, row)) if row else -1 for row in range(count)]
        items.append(session.item([0] * count, tree if kind == "tree" else range(-1, count - 1), ()))
    return StepPlan(tuple(items))


def row_by_row(plan: StepPlan, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
    """The definition: each row over its prefix, its ancestors and itself, in float64. Returns [T, Hq, Dv]."""
    import torch

    results = []
    at = 0
    for item in plan.items:
        for row in range(len(item.tokens)):
            results.append(one_row(item, row, query[0, :, at].double(), kv, terms))
            at += 1
    return torch.stack(results)


def one_row(item: StepItem, row: int, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
    import torch

    from cloud_verifier.engine.packing import path_rows

    path = path_rows(item.parents, row)
    slots = [*item.prefix_slots.tolist(), *item.slots[path].tolist()]
    if terms.window is not None:
        slots = slots[-terms.window :]
    share = query.shape[0] // kv.keys.shape[1]
    keys = kv.keys[slots].double().repeat_interleave(share, dim=1)  # [L, Hq, Dk]
    values = kv.values[slots].double().repeat_interleave(share, dim=1)
    scores = torch.einsum("hd,lhd->hl", query, keys) * terms.scaling
    if terms.softcap is not None:
        scores = terms.softcap * torch.tanh(scores / terms.softcap)
    weights = scores.exp()
    total = weights.sum(1) + (0.0 if terms.sinks is None else terms.sinks.double().exp())
    return torch.einsum("hl,lhd->hd", weights, values) / total[:, None]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("terms", TERMS)
def test_equals_the_definition(shape: str, terms: str) -> None:
    import torch

    from cloud_verifier.engine.attention import AttentionTerms
    from cloud_verifier.engine.kv import LayerKV
    from cloud_verifier.engine.packing import StepLimits, pack
    from cloud_verifier.engine.torch_ref import TorchRefBackend

    plan = random_plan(SHAPES[shape])
    window, softcap, with_sinks = TERMS[terms]
    torch.manual_seed(1)
    asked = AttentionTerms(0.4, window, softcap, torch.randn(6) if with_sinks else None)
    rows = torch.randn(512, 2, 4 + 5)
    kv = LayerKV(rows, rows[..., :4], rows[..., 4:])
    query = torch.randn(1, plan.num_rows, 6, 4).transpose(1, 2)  # the layout that models hand over
    step = TorchRefBackend().prepare(pack(plan, StepLimits(10, 1000, 512)), torch.device("cpu"))
    expected = row_by_row(plan, query, kv, asked)
    for _ in range(2):  # the second layer uses what the first one built
        result = step.attend(query, kv, asked)
        assert result.shape == (1, plan.num_rows, 6, 5)
        torch.testing.assert_close(result[0].double(), expected, rtol=1e-4, atol=1e-5)


def test_padding_stays_within_its_bound() -> None:
    from cloud_verifier.engine.packing import StepLimits, pack
    from cloud_verifier.engine.torch_ref import PADDING_FACTOR, PADDING_SLACK, make_spans, partition

    shapes = [(length, 1 + length % 7, "tree") for length in range(0, 60, 3)]
    groups = partition(make_spans(pack(random_plan(shapes[:12]), StepLimits(10, 1000, 512)), window=None))
    assert 1 <= len(groups) < 12
    for group in groups:
        needed = sum(span.num_rows * span.num_keys for span in group)
        padded = len(group) * max(s.num_rows for s in group) * max(s.num_keys for s in group)
        assert padded <= PADDING_FACTOR * needed + PADDING_SLACK
