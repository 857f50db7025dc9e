"""Laws of links, traces and named networks: order is kept, and no byte is delivered twice."""

import itertools
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from simulator.events import Draws, EventHeap
from simulator.files import experiment_from, read_experiment
from simulator.link_spec import (
    PACKET,
    Cursor,
    Handovers,
    LinkSpec,
    Outage,
    Schedule,
    Trace,
    read_schedule,
    read_trace,
)
from simulator.profiles import PROFILES, profile
from simulator.schemes import FORERUN, policy_maker
from simulator.system import simulate
from simulator.virtual_lane import DOWN, UP, Direction, VirtualLane
from simulator.world import World

NAMES = "lan, fibre, cable, wifi, lte, 5g, starlink, geo-satellite, lossy-wifi"


def arrivals(
    link: LinkSpec, sends: list[tuple[float, int]], seed: int = 1, direction: Direction = UP
) -> list[float]:
    """When messages of (seconds, bytes) arrive; asserts that all do, in order and not early."""
    events, found = EventHeap(), list[tuple[int, float]]()
    lane = VirtualLane(events, link, direction, Draws(seed))

    def note(number: int) -> None:
        found.append((number, events.now))

    for number, (when, size) in enumerate(sends):
        events.at(when, partial(lane.carry, size, partial(note, number)))
    events.run()
    assert [number for number, _ in found] == list(range(len(sends)))
    assert lane.num_bytes == sum(size for _, size in sends)
    assert all(arrival >= when for (when, _), (_, arrival) in zip(sends, found, strict=True))
    return [when for _, when in found]


# Links ------------------------------------------------------------------------------------------------


def test_a_plain_link_takes_half_the_round_trip() -> None:
    assert arrivals(LinkSpec(rtt=0.06), [(0.0, 10), (1.0, 10)]) == pytest.approx([0.03, 1.03])


def test_a_narrow_link_lets_messages_queue() -> None:
    link = LinkSpec(rtt=0.02, bandwidth_up=1000.0)
    assert arrivals(link, [(0.0, 100), (0.0, 100), (1.0, 50)]) == pytest.approx([0.11, 0.21, 1.06])


def test_jitter_has_its_deviation_and_its_memory() -> None:
    """Far apart in time, so that order holds nothing back."""
    for memory, correlation in ((0.0, 0.0), (10.0, math.exp(-0.1))):
        link = LinkSpec(rtt=1.0, jitter=0.01, jitter_memory=memory)
        found = arrivals(link, [(float(second), 20) for second in range(4000)])
        swings = [arrival - second - 0.5 for second, arrival in enumerate(found)]
        variance = sum(swing**2 for swing in swings) / len(swings)
        together = sum(a * b for a, b in itertools.pairwise(swings)) / len(swings)
        assert math.sqrt(variance) == pytest.approx(0.01, rel=0.15)
        assert together / variance == pytest.approx(correlation, abs=0.06)


@pytest.mark.parametrize(
    ("law", "least", "most", "mean"),
    [("normal", -0.06, 0.06, 0.0), ("uniform", -0.0174, 0.0174, 0.0), ("exponential", 0.0, 0.2, 0.01)],
)
def test_a_jitter_law_has_its_range_and_its_deviation(
    law: str, least: float, most: float, mean: float
) -> None:
    link = LinkSpec(rtt=1.0, jitter=0.01, jitter_law=law)
    found = arrivals(link, [(float(second), 20) for second in range(4000)])
    swings = [arrival - second - 0.5 for second, arrival in enumerate(found)]
    assert least <= min(swings) < max(swings) <= most
    assert fmean(swings) == pytest.approx(mean, abs=0.0008)
    assert pstdev(swings) == pytest.approx(0.01, rel=0.1)


def test_a_lost_packet_holds_up_what_follows_and_nothing_else() -> None:
    link = LinkSpec(rtt=0.1, loss=0.2)
    late = [
        round((arrival - when) / 0.05)
        for when, arrival in zip(
            range(200), arrivals(link, [(float(n), 20) for n in range(200)]), strict=True
        )
    ]
    assert late.count(1) / len(late) == pytest.approx(0.8, abs=0.08)  # one way, no loss
    assert set(late) >= {1, 5}  # half a round trip; with a probe two round trips later
    burst = arrivals(link, [(0.0, 20)] * 50)
    assert burst == sorted(burst)


def test_an_outage_is_sat_out() -> None:
    link = LinkSpec(rtt=0.1, outages=(Outage(1.0, 2.0),))
    before, within, after = arrivals(link, [(0.5, 20), (1.5, 20), (5.0, 20)])
    assert before == pytest.approx(0.55)
    # At 1.5, a probe at 1.7, by the timer of 0.3 s at 2.0, and twice as patient each time at 2.6 and 3.8.
    assert within == pytest.approx(3.85)
    assert after == pytest.approx(5.05)


# Traces -----------------------------------------------------------------------------------------------


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_trace_is_replayed_as_it_was_and_begins_again(tmp_path: Path) -> None:
    """The byte order mark of spreadsheets is passed over."""
    path = write(tmp_path / "t.csv", "\ufefftime_s,rtt_ms,other\n10,100,x\n11,200,y\n12,,z\n13,300,z\n")
    trace = read_trace(path)
    assert trace.times == (0.0, 1.0, 3.0)
    assert trace.rtts == pytest.approx((0.1, 0.2, 0.3))
    assert trace.duration == pytest.approx(4.5)
    link = LinkSpec(trace=trace)
    found = arrivals(link, [(0.5, 10), (1.5, 10), (2.9, 10), (3.1, 10), (5.0, 10)])
    assert found == pytest.approx([0.55, 1.6, 3.0, 3.25, 5.05])


def test_a_lost_probe_stands_for_lost_packets(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "time_s,rtt_ms,loss\n0,100,0\n1,,1\n2,100,0\n3,100,0\n")
    trace = read_trace(path)
    early, late = arrivals(LinkSpec(trace=trace), [(0.5, 10), (1.6, 10)])
    assert early == pytest.approx(0.55)
    assert late == pytest.approx(2.15)  # probed at 1.8, found by the timer at 2.1


def test_no_packet_passes_a_lossy_row_even_if_the_timer_beats_with_the_trace() -> None:
    """In steps of 120 s all tries meet the same rows. 10 s of each minute let anything pass."""
    trace = Trace("t", tuple(map(float, range(0, 60, 10))), (0.1,) * 6, losses=(True,) * 4 + (False, True))
    for when in range(60):
        (arrival,) = arrivals(LinkSpec(trace=trace), [(float(when), 20)])
        assert 39.999 < (arrival - 0.05) % 60.0 < 50.001


def test_a_message_drains_at_the_width_of_each_row() -> None:
    """Rows of 10, 0 and 40 bytes per second, a second each, and from 3 s on again."""
    trace = Trace("t", (0.0, 1.0, 2.0), (0.0,) * 3, bandwidths=(10.0, 0.0, 40.0))
    for sends, ends in (
        ([(0.0, 5)], [0.5]),
        ([(0.0, 10)], [1.0]),
        ([(0.5, 25)], [2.5]),
        ([(1.5, 60)], [5.25]),  # 40 to 3 s, 10 to 4 s, none to 5 s, 10
        ([(0.0, 30), (0.1, 30)], [2.5, 4.0]),  # the second from 2.5 s on
        ([(0.0, 50_000)], [3000.0]),
    ):
        assert arrivals(LinkSpec(trace=trace), sends, direction=DOWN) == pytest.approx(ends)
    shifted = LinkSpec(trace=replace(trace, offset=2.5))
    assert arrivals(shifted, [(0.0, 21)], direction=DOWN) == pytest.approx([0.6])


def test_a_width_of_zero_tells_none_as_its_probe_came_back(tmp_path: Path) -> None:
    """As an empty cell: the width before it holds, and before the first one that."""
    rows = "0,5,\n1,5,0\n2,5,16\n3,5,0\n4,5,\n5,5,8\n"
    trace = read_trace(write(tmp_path / "t.csv", "time_s,rtt_ms,bw_mbps\n" + rows))
    assert trace.bandwidths == (2e6, 2e6, 2e6, 2e6, 2e6, 1e6)


def test_one_session_of_several_is_replayed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "time_s,rtt_ms,session\n5,10,a\n6,10,a\n0,30,b\n1,40,b\n")
    assert read_trace(path).rtts == pytest.approx((0.01, 0.01))
    assert read_trace(path, "b").rtts == pytest.approx((0.03, 0.04))
    with pytest.raises(UserError, match="has no session 'c'; it has a, b"):
        read_trace(path, "c")


def test_rows_of_a_clock_that_steps_back_are_sorted(tmp_path: Path) -> None:
    """A row belongs to the time that it names, its loss and width with it."""
    path = write(
        tmp_path / "t.csv",
        "time_s,rtt_ms,loss,bw_mbps\n5.004,10,0,8\n5.000,20,0,16\n5.103,30,0,8\n5.101,,1,24\n5.6,50,0,8\n",
    )
    trace = read_trace(path)
    assert trace.times == pytest.approx((0.0, 0.004, 0.101, 0.103, 0.6))
    assert trace.rtts == pytest.approx((0.02, 0.01, 0.01, 0.03, 0.05))
    assert trace.losses == (False, False, True, False, False)
    assert trace.bandwidths == (2e6, 1e6, 3e6, 1e6, 1e6)
    simulate(World(tokens=10, link=LinkSpec(trace=trace)), policy_maker(FORERUN))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time_s,rtt\n0,1\n", "line 1: no column 'rtt_ms' among time_s, rtt"),
        ("time_s,rtt_ms\n0,\n", "no row with an rtt_ms"),
        ("time_s,rtt_ms\n0,1\n2,1\n1,1\n", "line 4: time_s falls from 2 to 1"),
        ("time_s,rtt_ms\n2,1\n1.6,1\n1.4,1\n", "line 4: time_s falls from 2 to 1.4"),  # steps add up
        ("time_s,rtt_ms\n0,1\n1,-2\n", "line 3: rtt_ms is '-2'"),
        ("time_s,rtt_ms,loss\n0,5,x\n", "line 2: loss is 'x'"),
        ("time_s,rtt_ms,loss\n0,5,0\n1,5,0.02\n", r"line 3: loss is '0.02'; a probe is either lost \(1\) or"),
        ("time_s,rtt_ms,loss\n0,5,1\n1,,1\n", "t.csv loses every probe, so nothing would ever arrive"),
        ("time_s,rtt_ms,loss\n0,5,0\n0,5,1\n1,5,1\n", "loses every probe"),  # the first lasts no time
        ("time_s,rtt_ms,bw_mbps\n0,5,0\n1,5,0\n", "t.csv has no bw_mbps above 0, so nothing would ever"),
    ],
)
def test_a_trace_that_is_none_is_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_trace(write(tmp_path / "t.csv", text))


# Any link ---------------------------------------------------------------------------------------------

moments = st.lists(st.floats(0.0, 40.0), min_size=1, max_size=25).map(sorted)
sizes = st.integers(1, 5000)
schedules = st.lists(st.integers(0, 400), min_size=1, max_size=30).map(
    lambda times: Schedule("drawn", (*sorted(times), max(times) + 1))
)
handovers = st.builds(
    lambda every, share, step: Handovers(every, share * every, step),
    st.floats(0.01, 20.0),
    st.floats(0.0, 0.9),
    st.floats(0.0, 0.5),
)


LINKS = st.builds(
    LinkSpec,
    rtt=st.floats(0.0, 0.3),
    jitter=st.floats(0.0, 0.1),
    loss=st.floats(0.0, 0.5),
    outages=st.just((Outage(1.0, 0.5),)),
    handovers=st.none() | handovers,
    schedule_up=st.none() | schedules,
    schedule_down=st.none() | schedules,
)


@given(moments, sizes, LINKS, st.integers(0, 99))
def test_under_any_link_nothing_is_early_lost_or_out_of_order(
    times: list[float], size: int, link: LinkSpec, seed: int
) -> None:
    for direction in (UP, DOWN):
        arrivals(link, [(when, size) for when in times], seed, direction)


# Profiles ---------------------------------------------------------------------------------------------


def test_a_profile_is_the_link_of_its_name() -> None:
    assert ", ".join(PROFILES) == NAMES
    for name, link in PROFILES.items():
        assert experiment_from({"link": {"profile": name}}).world.link == link == profile(name)


def test_what_a_world_says_goes_over_its_profile() -> None:
    table = {"profile": "starlink", "rtt_ms": 90, "loss": 0, "up_kbps": 80, "outages": []}
    found = experiment_from({"link": table}).world.link
    assert found == replace(profile("starlink"), rtt=0.09, loss=0.0, bandwidth_up=10_000.0)
    assert found.handovers == Handovers(15.0, 0.05, 0.02)
    assert experiment_from({"link": {**table, "handovers": False}}).world.link.handovers is None


@pytest.mark.parametrize("name", PROFILES)
def test_the_text_is_the_targets_over_every_profile(name: str) -> None:
    """`simulate` itself compares. The same seed gives the same times."""
    world = World(tokens=40, clients=2, link=profile(name))
    assert simulate(world, policy_maker(FORERUN)) == simulate(world, policy_maker(FORERUN))


# Handovers --------------------------------------------------------------------------------------------


def delays_of(link: LinkSpec, seed: int = 1, until: float = 400.0, direction: Direction = UP) -> list[int]:
    """One way delays of messages a tenth of a second apart, whole microseconds."""
    sends = [(n / 10, 20) for n in range(int(10 * until))]
    found = arrivals(link, sends, seed, direction)
    return [round(1e6 * (arrival - when)) for (when, _), arrival in zip(sends, found, strict=True)]


def test_the_round_trip_changes_at_each_handover_and_at_no_other_time() -> None:
    link = LinkSpec(rtt=0.1, handovers=Handovers(every=15.0, rtt_step=0.04))
    delays = delays_of(link)
    changes = [place for place, (a, b) in enumerate(itertools.pairwise(delays), 1) if a != b]
    assert len(changes) in (26, 27)  # in 400 s
    assert {after - before for before, after in itertools.pairwise(changes)} <= {149, 150, 151}
    assert min(delays) >= 0.5e6 * (0.1 - 0.04)
    assert max(delays) <= 0.5e6 * (0.1 + 0.04)
    assert delays_of(link, direction=DOWN) == delays
    assert delays_of(link, seed=2) != delays


def test_nothing_passes_during_a_handover() -> None:
    """A share of duration / every of the messages meets one, and is late by two round trips at least."""
    link = LinkSpec(rtt=0.02, handovers=Handovers(every=7.3, duration=0.73))
    sends = [(3.1 * n, 20) for n in range(3000)]  # far apart, so that none waits for another
    found = arrivals(link, sends)
    late = [arrival - when > 0.0101 for (when, _), arrival in zip(sends, found, strict=True)]
    assert sum(late) / len(late) == pytest.approx(0.1, abs=0.01)
    lags = [arrival - when for (when, _), arrival in zip(sends, found, strict=True)]
    assert min(lag for lag in lags if lag > 0.0101) >= 0.01 + 2 * 0.02 - 1e-9


# Mahimahi ---------------------------------------------------------------------------------------------


def test_a_message_leaves_with_the_opportunity_that_takes_its_last_byte() -> None:
    link = LinkSpec(rtt=0.1, schedule_up=Schedule("s", (10, 20, 20, 40)))
    assert arrivals(link, [(0.0, PACKET)]) == pytest.approx([0.06])
    assert arrivals(link, [(0.0, PACKET + 1)]) == pytest.approx([0.07])
    assert arrivals(link, [(0.0, 3 * PACKET + 1)]) == pytest.approx([0.09])
    assert arrivals(link, [(0.0, 4 * PACKET + 1)]) == pytest.approx([0.10])  # 10 ms of the second round


@given(schedules, st.lists(sizes, min_size=1, max_size=60))
def test_a_full_queue_is_served_a_packet_at_every_opportunity(
    schedule: Schedule, messages: list[int]
) -> None:
    """Throughput is opportunities x `PACKET` bytes, whatever the messages' sizes."""
    cursor, carried = Cursor(schedule), 0
    first = schedule.first_after(0.0)
    for size in messages:
        carried += size
        assert cursor.take(0.0, size) == schedule.when(first + -(-carried // PACKET) - 1)


@given(schedules, moments.map(lambda times: [0.1 * when for when in times]), sizes)
def test_no_opportunity_delivers_more_than_a_packet(
    schedule: Schedule, times: list[float], size: int
) -> None:
    """From any moment on, no more bytes are through than opportunities since."""
    cursor = Cursor(schedule)
    ends = [cursor.take(when, size) for when in times]
    assert ends == sorted(ends)
    for begun, end in itertools.product(times, ends):
        through = sum(size for when, done in zip(times, ends, strict=True) if when >= begun and done <= end)
        chances = schedule.first_after(end) - schedule.first_after(begun)
        assert through <= max(0, chances) * PACKET


def test_a_file_is_read_and_begins_again_at_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "up.trace").write_text("0\n5\n5\n12\n")
    (tmp_path / "down.trace").write_text("3")
    schedule = read_schedule(tmp_path / "up.trace")
    assert schedule.times == (0, 5, 5, 12)
    assert [schedule.when(index) for index in range(6)] == [0.0, 0.005, 0.005, 0.012, 0.012, 0.017]
    (tmp_path / "w.toml").write_text(
        '[link]\nprofile = "lte"\nmahimahi_up = "up.trace"\nmahimahi_down = "down.trace"\n'
    )
    link = read_experiment(tmp_path / "w.toml").world.link
    assert link.schedule_up is not None
    assert link.schedule_up.times == (0, 5, 5, 12)
    assert link.schedule_down is not None
    assert link.schedule_down.times == (3,)
    assert (link.bandwidth_up, link.bandwidth_down, link.rtt) == (0.0, 0.0, 0.07)
    simulate(World(tokens=20, link=link), policy_maker(FORERUN))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "lasts no time; at least one line above 0 ms"),
        (b"1\n\n2\n", "line 2: '' where a whole number of milliseconds"),
        (b"-1\n", "line 1: '-1' where a whole number of milliseconds, 0 or more"),
        (b"1\n3\n2\n", "line 3: time falls from 3 to 2 ms"),
        (b"\xff\n", "is not a text file"),
    ],
)
def test_a_file_that_is_no_mahimahi_trace_is_refused_with_the_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "m.trace").write_bytes(content)
    with pytest.raises(UserError, match=f"m.trace.*{message}"):
        read_schedule(tmp_path / "m.trace")


# Traces in documents ----------------------------------------------------------------------------------

ROUND_TRIPS = [50, 40, 41, 90, 300, *[45] * 15]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [f"{second},{rtt},{name}" for name in ("a", "b") for second, rtt in enumerate(ROUND_TRIPS)]
    (tmp_path / "t.csv").write_text("time_s,rtt_ms,session\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return tmp_path


def traced(folder: Path, **link: object) -> Trace:
    found = experiment_from({"link": {"trace": "t.csv", **link}}, folder).world.link.trace
    assert found is not None
    return found


def test_a_trace_begins_where_the_world_says(folder: Path) -> None:
    found = traced(folder, trace_start_s=3, trace_session="b")
    assert found.rtts[found.row(0.0)] == pytest.approx(0.090)
    assert found.rtts[found.row(1.5)] == pytest.approx(0.300)


def test_a_trace_over_another_floor_keeps_its_ups_and_downs(folder: Path) -> None:
    """The 5th percentile of the twenty, 41 ms, becomes the floor; what lies below is the floor, too."""
    found = traced(folder, trace_floor_ms=10)
    assert found.rtts[:5] == pytest.approx((0.019, 0.010, 0.010, 0.059, 0.269))
