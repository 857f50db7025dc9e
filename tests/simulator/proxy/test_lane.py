"""Laws of a lane: literal times, exact floats, order, determinism, bounded memory."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.proxy import Bandwidth, Hold, LinkDirection, Toxic
from simulator.proxy.lane import Deliver, HalfClose, Lane, Output
from simulator.proxy.toxics import Latency

Trace = list[tuple[float, Output]]


def make_lane(*toxics: Toxic, **settings: int) -> Lane:
    return Lane(toxics, 0.0, **settings)  # type: ignore[arg-type]  # stream keeps its default


def run(lane: Lane, until: float = 1e6) -> Trace:
    """Drives a lane by its own timer, as the driver does; what left, and when."""
    trace: Trace = []
    while (at := lane.next_at) is not None and at <= until:
        trace += [(at, output) for output in lane.leave(at)]
    return trace


def delivered(trace: Trace) -> bytes:
    return b"".join(output.data for _, output in trace if isinstance(output, Deliver))


@pytest.mark.parametrize(
    ("toxics", "sent", "left"),
    [
        ((), [(5.0, b"now")], [(5.0, b"now")]),
        ((Hold(stream=LinkDirection.UPSTREAM),), [(5.0, b"now")], [(5.0, b"now")]),
        ((Latency(30), Latency(20, name="more")), [(1.0, b"x")], [(1.05, b"x")]),
        (
            (Bandwidth(1000), Bandwidth(100, name="narrow")),  # 100 bytes per ms
            [(0.0, b"a" * 1000), (0.002, b"b" * 500), (1.0, b"c" * 100)],  # the second waits until 0.010
            [(0.01, b"a" * 1000), (0.015, b"b" * 500), (1.001, b"c" * 100)],
        ),
        (
            (Latency(30), Bandwidth(100)),
            [(0.0, b"a" * 1000), (0.0, b"b" * 1000)],
            [(0.04, b"a" * 1000), (0.05, b"b" * 1000)],
        ),
    ],
    ids=["none", "other_direction", "latencies_add_up", "narrowest_rules", "propagation_last"],
)
def test_chunks_leave_at_their_times(
    toxics: tuple[Toxic, ...], sent: list[tuple[float, bytes]], left: list[tuple[float, bytes]]
) -> None:
    lane = make_lane(*toxics)
    for at, data in sent:
        lane.on_data(data, at)
    assert run(lane) == [(at, Deliver(data)) for at, data in left]


def test_a_change_spares_what_is_in_flight_and_holds_for_what_waits() -> None:
    lane = make_lane(Bandwidth(1), Latency(100))
    lane.on_data(b"a" * 1000, 0.0)
    lane.leave(0.0)
    lane.on_data(b"b" * 1000, 0.5)
    lane.on_toxics([], 0.6)
    assert run(lane) == [(1.1, Deliver(b"a" * 1000)), (1.1, Deliver(b"b" * 1000))]


def jittered(seed: int, connection: int = 0) -> list[float]:
    lane = make_lane(Latency(30, jitter=5), seed=seed, connection=connection)
    for number in range(200):
        lane.on_data(b"x", float(number))
    return [at - number for number, (at, _) in enumerate(run(lane))]


def test_jitter_is_seeded_bounded_and_differs_between_connections() -> None:
    assert jittered(7) == jittered(7)
    assert jittered(7) != jittered(8)
    assert jittered(7) != jittered(7, connection=1)
    assert all(0.025 - 1e-9 <= delay <= 0.035 + 1e-9 for delay in jittered(7))


TOXIC_SETS = st.lists(
    st.one_of(
        st.builds(Latency, st.floats(0, 100), jitter=st.floats(0, 100)),
        st.builds(Bandwidth, st.floats(1, 1e6)),
        st.just(Hold()),
    ),
    max_size=3,
)
STEPS = st.lists(st.tuples(st.floats(0, 0.1), st.one_of(st.binary(max_size=5000), TOXIC_SETS)), max_size=20)


def play(steps: list[tuple[float, bytes | list[Toxic]]], seed: int) -> Trace:
    """A random life: data and changes of the toxics, then an end, then an ordinary link until all left."""
    lane, now = make_lane(seed=seed), 0.0
    trace: Trace = []
    for wait, step in steps:
        trace += run(lane, until=now + wait)
        now += wait
        if isinstance(step, bytes):
            lane.on_data(step, now)
        else:
            lane.on_toxics(step, now)
        trace += [(now, output) for output in lane.leave(now)]
    lane.on_eof(now)
    lane.on_toxics([], now)
    return trace + [(now, output) for output in lane.leave(now)] + run(lane)


@given(steps=STEPS, seed=st.integers(0, 3))
def test_whatever_changes_all_bytes_leave_in_order_and_then_the_end(
    steps: list[tuple[float, bytes | list[Toxic]]], seed: int
) -> None:
    trace = play(steps, seed)
    assert delivered(trace) == b"".join(step for _, step in steps if isinstance(step, bytes))
    assert [output for _, output in trace if not isinstance(output, Deliver)] == [HalfClose()]
    assert trace[-1][1] == HalfClose()
    assert all(earlier <= later for (earlier, _), (later, _) in pairwise(trace))
    assert trace == play(steps, seed)
