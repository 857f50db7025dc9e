"""The units of a step cover each row and key once, show each row its path, and do not change with company."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.attention.ancestor_mask import ancestor_mask
from cloud_verifier.engine.attention.attention_units import (
    CUTS,
    ROW_FIELDS,
    UNIT_FIELDS,
    AttentionPlan,
    Cuts,
    WorkCut,
    plan_attention,
)
from cloud_verifier.engine.packing import PackedStep, StepLimits, item_of, pack

SMALL = Cuts(narrow=WorkCut(rows=3, split=8), wide=WorkCut(rows=5, split=20), most_narrow=9)
LIMITS = StepLimits(vocab_size=10, max_positions=100_000, num_slots=100_000)


def step_of(items: Sequence[tuple[int, Sequence[int]]]) -> PackedStep:
    made, at = [], 0
    for prefix, parents in items:
        slots = np.arange(at, at + prefix + len(parents), dtype=np.int32)[::-1].copy()
        made.append(item_of(parents, slots[prefix:], slots[:prefix], session=at))
        at += len(slots)
    return pack(StepPlan(tuple(made)), LIMITS)


def parents_of(kind: str, count: int, seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    if kind == "chain":
        return list(range(-1, count - 1))
    return [int(random.integers(-1, row)) if row else -1 for row in range(count)]


ITEMS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from(["chain", "tree"]), st.integers(0, 30), st.integers(0, 99)),
    max_size=5,
).map(lambda given: [(prefix, parents_of(kind, count, seed)) for prefix, kind, count, seed in given])


def fields(plan: AttentionPlan, unit: int) -> dict[str, int]:
    return dict(zip(UNIT_FIELDS, plan.units[unit].tolist(), strict=True))


def seen_slots(plan: AttentionPlan, num_rows: int) -> list[list[int]]:
    """The slots that each packed row sees, in the order of units and keys, by the rules of the kernel."""
    seen: list[list[int]] = [[] for _ in range(num_rows)]
    for unit in range(len(plan.units)):
        one = fields(plan, unit)
        for row in range(one["count"]):
            for key in range(one["begin"], one["end"]):
                own = key - one["prefix"]
                if own < 0 or sees(plan, one, one["local"] + row, own):
                    seen[one["row"] + row].append(int(plan.keys[one["keys"] + key]))
    return seen


def sees(plan: AttentionPlan, unit: dict[str, int], row: int, other: int) -> bool:
    """Whether row `row` of an item sees its row `other`."""
    if unit["mask"] < 0:
        return other <= row
    word = int(plan.ancestors[unit["mask"] + row * unit["words"] + other // 64])
    return bool(word >> (other % 64) & 1)


@settings(max_examples=60)
@given(ITEMS)
def test_each_row_sees_its_prefix_and_its_path_once(items: list[tuple[int, list[int]]]) -> None:
    step = step_of(items)
    seen = seen_slots(plan_attention(step, SMALL), step.num_rows)
    for item, start in zip(step.items, step.starts, strict=False):
        mask = ancestor_mask(item.parents)
        for row in range(len(item.tokens)):
            expected = [*item.prefix_slots.tolist(), *item.slots[mask[row]].tolist()]
            assert seen[start + row] == expected


@settings(max_examples=40)
@given(ITEMS, ITEMS)
def test_an_item_is_cut_alike_in_any_company(
    items: list[tuple[int, list[int]]], company: list[tuple[int, list[int]]]
) -> None:
    cut = ("count", "local", "prefix", "begin", "end", "words", "split", "splits")
    columns = [UNIT_FIELDS.index(name) for name in cut]
    alone = plan_attention(step_of(items), SMALL)
    mixed = plan_attention(step_of([*company, *items]), SMALL)
    ours = mixed.units[:, 0] >= sum(len(parents) for _, parents in company)
    assert mixed.units[ours][:, columns].tolist() == alone.units[:, columns].tolist()


@settings(max_examples=40)
@given(ITEMS)
def test_partial_results_have_places_of_their_own(items: list[tuple[int, list[int]]]) -> None:
    step = step_of(items)
    plan = plan_attention(step, SMALL)
    places = list[int]()
    for unit in range(len(plan.units)):
        one = fields(plan, unit)
        for row in range(one["row"], one["row"] + one["count"]):
            first, splits = dict(zip(ROW_FIELDS, plan.rows[row].tolist(), strict=True)).values()
            assert splits == one["splits"]
            if splits > 1:
                places.append(first + one["split"])
    assert sorted(places) == list(range(plan.num_partials))


def test_splits_are_of_one_size_but_for_the_last() -> None:
    plan = plan_attention(step_of([(2048, [-1, 0, 0]), (511, [-1]), (766, [-1]), (767, [-1])]))
    bounds = [(fields(plan, unit)["begin"], fields(plan, unit)["end"]) for unit in range(len(plan.units))]
    assert bounds == [
        *[(0, 512), (512, 1024), (1024, 1536), (1536, 2051)],
        (0, 512),
        (0, 767),
        *[(0, 512), (512, 768)],
    ]


def test_a_tree_as_large_as_a_word_is_narrow() -> None:
    parents = [-1, *[0] * (CUTS.most_narrow - 1)]
    plan = plan_attention(step_of([(0, parents)]))
    assert plan.num_wide == 0
    assert plan.ancestors.view(np.uint64).tolist() == [1 | 1 << row for row in range(64)]
    larger = plan_attention(step_of([(0, [*parents, 63])]))
    assert larger.num_narrow == 0
    assert larger.ancestors.view(np.uint64)[-2:].tolist() == [1 | 1 << 63, 1]
