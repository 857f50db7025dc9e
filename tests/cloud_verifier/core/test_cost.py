"""Laws of the cost model: it finds the plane it is shown, and never says what cannot be."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.cost import MeasuredStepCost, StepCost

FIXED, PER_ROW, PER_READ = 0.008, 2e-4, 1e-7


def shown(cost: StepCost, count: int, seed: int = 1, noise: float = 0.0) -> StepCost:
    """Steps of 1 to 64 rows that read up to 60,000 slots."""
    draw = random.Random(seed)
    for _ in range(count):
        rows, reads = draw.randint(1, 64), draw.randint(0, 60_000)
        time = FIXED + PER_ROW * rows + PER_READ * reads
        cost.sample(rows, reads, time * (1 + noise * (2 * draw.random() - 1)))
    return cost


def test_a_plane_is_found() -> None:
    cost = shown(StepCost(), 200)
    assert cost.per_row == pytest.approx(PER_ROW, rel=1e-3)
    assert cost.per_read == pytest.approx(PER_READ, rel=1e-3)
    assert cost.fixed == pytest.approx(FIXED, rel=1e-3)
    assert cost.predict(8, 20_000) == pytest.approx(FIXED + 8 * PER_ROW + 20_000 * PER_READ, rel=1e-3)


def test_where_every_step_is_alike_only_the_fixed_part_is_learnt() -> None:
    cost = StepCost(0.030, 0.001, 1e-6)
    for _ in range(100):
        cost.sample(4, 1000, 0.050)
    assert (cost.per_row, cost.per_read) == pytest.approx((0.001, 1e-6))
    assert cost.predict(4, 1000) == pytest.approx(0.050)


def test_a_change_of_speed_is_followed() -> None:
    cost = shown(StepCost(), 200)
    for _ in range(400):
        cost.sample(8, 1000, 0.100)
    assert cost.predict(8, 1000) == pytest.approx(0.100, rel=0.01)


FLOAT32 = {1: 0.122, 2: 0.260, 4: 0.234, 9: 0.270, 17: 0.287, 33: 0.460, 72: 0.608}
"""Seconds of steps by rows: a model of 0.5 billion parameters on two threads of a processor, in float32."""


def test_the_curve_of_a_processor_is_found_as_no_line_finds_it() -> None:
    cost, draw = StepCost(), random.Random(1)
    for _ in range(300):
        rows = draw.choice(list(FLOAT32))
        cost.sample(rows, 0, FLOAT32[rows] * draw.uniform(0.95, 1.05))
    for rows, seconds in FLOAT32.items():
        assert cost.predict(rows, 0) == pytest.approx(seconds, rel=0.15)
    assert cost.predict(9, 0) - cost.predict(2, 0) < cost.predict(2, 0) - cost.predict(1, 0)


def test_one_slow_step_makes_its_width_little_dearer() -> None:
    cost = shown(StepCost(), 200)
    before = cost.predict(9, 0) / cost.predict(8, 0)
    cost.sample(9, 0, 1.0)
    assert cost.predict(9, 0) / cost.predict(8, 0) < 1.5 * before


BUCKETS = (8, 16, 48, 96)
PADDED = {8: 0.010, 16: 0.0101, 48: 0.014, 96: 0.030}
"""Seconds of a step by its bucket."""


def in_buckets() -> StepCost:
    cost, draw = StepCost(buckets=BUCKETS), random.Random(1)
    for _ in range(600):
        bucket = draw.choice(BUCKETS)
        cost.sample(draw.randint(bucket * 2 // 3, bucket), 0, PADDED[bucket] * draw.uniform(0.98, 1.02))
    return cost


def test_each_bucket_has_a_time_of_its_own() -> None:
    cost = in_buckets()
    for least, bucket in zip((1, 9, 17, 49), BUCKETS, strict=True):
        for rows in (least, bucket):
            assert cost.predict(rows, 0) == cost.predict(bucket, 0) == pytest.approx(PADDED[bucket], rel=0.1)
            assert cost.tried(rows)
    assert cost.predict(97, 0) > cost.predict(96, 0)  # beyond them it is padded no more


def test_rows_of_prompts_fill_the_bucket_and_their_time_is_left_out() -> None:
    cost = in_buckets()
    alone, full = cost.predict(4, 0, beside=12), cost.predict(5, 0, beside=12)
    assert alone == cost.predict(3, 0, beside=12) < full
    assert full < cost.predict(5 + 12, 0)
    unpadded = shown(StepCost(), 50)
    assert unpadded.predict(4, 100, beside=12) == unpadded.predict(4, 100)


SAMPLE = st.tuples(st.integers(0, 500), st.integers(0, 10**6), st.floats(0, 5))


@given(
    st.lists(SAMPLE, max_size=60), st.integers(0, 500), st.integers(0, 10**6), st.sampled_from([(), BUCKETS])
)
def test_nothing_is_ever_negative_or_dearer_with_less(
    samples: list[tuple[int, int, float]], rows: int, reads: int, buckets: tuple[int, ...]
) -> None:
    cost = StepCost(buckets=buckets)
    for sample in samples:
        cost.sample(*sample)
    assert min(cost.fixed, cost.per_row, cost.per_read) >= 0
    assert math.isfinite(cost.predict(rows, reads))
    assert 0 <= cost.predict(rows, reads) <= cost.predict(rows, reads + 1)  # a wider step may be faster
    assert 0 <= cost.more(rows, reads) <= cost.more(rows + 1, reads + 1)


TIMES = ((1, 0.052), (2, 0.100), (3, 0.152), (4, 0.138), (8, 0.251), (16, 0.421))


def test_measured_steps_are_known_before_the_first_one() -> None:
    """Four rows are cheaper than three: the edge of a kernel's tile."""
    cost = MeasuredStepCost(TIMES)
    for rows, seconds in TIMES:
        assert cost.predict(rows, 0) == pytest.approx(seconds, rel=0.02)
    assert cost.predict(4, 0) < cost.predict(3, 0)
    assert cost.tried(4)


def test_a_prompt_in_a_step_makes_no_node_cheaper() -> None:
    cost = MeasuredStepCost(TIMES)
    for _ in range(50):
        cost.sample(257, 0, 0.052 + 256 * 0.006, num_prompt=256)
        cost.sample(1, 300, 0.052)
    assert cost.predict(4, 300) == pytest.approx(0.138, rel=0.05)
    assert cost.predict_all(1, 256, 300) == pytest.approx(0.052 + 256 * 0.006, rel=0.2)


def test_measured_steps_follow_what_steps_take() -> None:
    cost = MeasuredStepCost(TIMES)
    for _ in range(200):
        cost.sample(1, 300, 0.104)
    assert cost.predict(1, 300) == pytest.approx(0.104, rel=0.05)
    assert cost.predict(2, 300) == pytest.approx(0.2, rel=0.1)
