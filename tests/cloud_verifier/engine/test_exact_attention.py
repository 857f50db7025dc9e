"""Lone attention equals the definition, and its bits do not change with the company."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.target import StepPlan
from tests.cloud_verifier.engine.test_torch_ref import SHAPES, TERMS, random_plan, row_by_row

if TYPE_CHECKING:
    from torch import Tensor

    from cloud_verifier.engine.attention import AttentionTerms
    from cloud_verifier.engine.kv import LayerKV

pytestmark = pytest.mark.torch


@given(st.integers(1, 2**20))
def test_padding_is_a_quarter_at_most_and_lengths_are_few(num_keys: int) -> None:
    from cloud_verifier.engine.exact_attention import SHORTEST, padded_length

    length = padded_length(num_keys)
    assert num_keys <= length
    assert length == SHORTEST or length < 1.25 * num_keys
    assert padded_length(length) == length
    assert length % 8 == 0


def test_128k_positions_need_49_lengths() -> None:
    from cloud_verifier.engine.exact_attention import padded_length

    assert len({padded_length(count) for count in range(1, 131_073)}) == 49


def layer(seed: int) -> LayerKV:
    import torch

    from cloud_verifier.engine.kv import LayerKV

    torch.manual_seed(seed)
    rows = torch.randn(512, 2, 4 + 5)
    return LayerKV(rows, rows[..., :4], rows[..., 4:])


def attention_of(plan: StepPlan, query: Tensor, terms: AttentionTerms) -> Tensor:
    import torch

    from cloud_verifier.engine.exact_attention import ExactBackend
    from cloud_verifier.engine.packing import StepLimits, pack

    step = ExactBackend().prepare(pack(plan, StepLimits(10, 1000, 512)), torch.device("cpu"))
    first = step.attend(query, layer(1), terms)
    assert torch.equal(step.attend(query, layer(1), terms), first)  # the layout that the first call made
    return first


def terms_of(name: str) -> AttentionTerms:
    import torch

    from cloud_verifier.engine.attention import AttentionTerms

    window, softcap, with_sinks = TERMS[name]
    torch.manual_seed(2)
    return AttentionTerms(0.4, window, softcap, torch.randn(6) if with_sinks else None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("terms", TERMS)
def test_equals_the_definition(shape: str, terms: str) -> None:
    import torch

    plan, asked = random_plan(SHAPES[shape]), terms_of(terms)
    query = torch.randn(1, plan.num_rows, 6, 4).transpose(1, 2)
    result = attention_of(plan, query, asked)
    assert result.shape == (1, plan.num_rows, 6, 5)
    torch.testing.assert_close(
        result[0].double(), row_by_row(plan, query, layer(1), asked), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("terms", TERMS)
def test_the_bits_are_those_of_the_session_alone(terms: str) -> None:
    import torch

    plan, asked = random_plan(SHAPES["far apart"]), terms_of(terms)
    query = torch.randn(1, plan.num_rows, 6, 4).transpose(1, 2)
    together = attention_of(plan, query, asked)
    at = 0
    for item in plan.items:
        own = slice(at, at + len(item.tokens))
        alone = attention_of(StepPlan((item,)), query[:, :, own], asked)
        assert torch.equal(alone, together[:, own])
        at = own.stop


def test_what_lies_in_foreign_slots_makes_no_difference() -> None:
    import torch

    from cloud_verifier.engine.exact_attention import ExactBackend
    from cloud_verifier.engine.packing import StepLimits, pack

    plan = random_plan(SHAPES["similar trees"][:1])
    item = plan.items[0]
    query = torch.randn(1, plan.num_rows, 6, 4).transpose(1, 2)
    step = ExactBackend().prepare(pack(plan, StepLimits(10, 1000, 512)), torch.device("cpu"))
    kv, other = layer(1), layer(1)
    mine = torch.zeros(512, dtype=torch.bool)
    mine[torch.from_numpy(item.slots).long()] = True
    mine[torch.from_numpy(item.prefix_slots).long()] = True
    other.rows[~mine] = 1e30
    assert torch.equal(step.attend(query, kv, terms_of("all")), step.attend(query, other, terms_of("all")))


def test_rows_of_one_path_share_what_is_gathered() -> None:
    """A chunk needs one run of keys, a tree one for each leaf; a window cut off has its own beginning."""
    from cloud_verifier.engine.exact_attention import _keys, share_runs
    from cloud_verifier.engine.exact_tiles import rows_alone
    from cloud_verifier.engine.packing import StepLimits, pack
    from tests.cloud_verifier.engine.tiny import Session, Slots

    slots = Slots(512)
    session, other = Session(1, slots, held=slots.take(3)), Session(2, slots)
    chunk, tree = other.chunk([0] * 5), session.item([0] * 6, [-1, 0, 0, 1, 2, 1], ())
    step = rows_alone(pack(StepPlan((chunk, tree)), StepLimits(10, 1000, 512)))
    for window, expected in (
        (None, [4] * 5 + [10, 10, 9, 8, 9, 10]),
        (4, [3, 3, 3, 3, 4, 5, 6, 7, 8, 9, 10]),
    ):
        keys = [_keys(item, window) for item in step.items]
        assert share_runs(keys, step.positions.tolist()) == expected
