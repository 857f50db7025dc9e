"""Laws of named networks, handovers and mahimahi traces: order is kept, and no byte is delivered twice."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from simulator.draws import Draws
from simulator.events import Events
from simulator.files import experiment_from, read_experiment
from simulator.lane import DOWN, UP, Direction, Lane
from simulator.link import Handovers, LinkSpec, Outage
from simulator.mahimahi import PACKET, Cursor, Schedule, read_schedule
from simulator.profiles import PROFILES, profile
from simulator.schemes import FORERUN, SERVER_STREAMING, policy_maker
from simulator.system import simulate
from simulator.traces import Trace
from simulator.world import World

MEASURED = Path(__file__).resolve().parents[3] / "shared" / "data" / "network"
"""Measured traces beside the repository, where somebody has put them; they are not part of it."""

needs_traces = pytest.mark.skipif(not MEASURED.is_dir(), reason=f"no measured traces in {MEASURED}")

NAMES = "lan, fibre, cable, wifi, lte, 5g, starlink, geo-satellite, lossy-wifi"


def arrivals(
    link: LinkSpec, sends: list[tuple[float, int]], seed: int = 1, direction: Direction = UP
) -> list[float]:
    """When messages of (seconds, bytes) arrive; asserts that all do, in order and not early."""
    events, found = Events(), list[tuple[int, float]]()
    lane = Lane(events, link, direction, Draws(seed))

    def note(number: int) -> None:
        found.append((number, events.now))

    for number, (when, size) in enumerate(sends):
        events.at(when, partial(lane.carry, size, partial(note, number)))
    events.run()
    assert [number for number, _ in found] == list(range(len(sends)))
    assert all(arrival >= when for (when, _), (_, arrival) in zip(sends, found, strict=True))
    return [when for _, when in found]


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


@given(
    moments,
    sizes,
    st.floats(0.0, 0.3),
    st.floats(0.0, 0.1),
    st.floats(0.0, 0.5),
    st.none() | handovers,
    st.none() | schedules,
    st.integers(0, 99),
)
def test_under_any_link_nothing_is_early_lost_or_out_of_order(
    times: list[float],
    size: int,
    rtt: float,
    jitter: float,
    loss: float,
    moves: Handovers | None,
    schedule: Schedule | None,
    seed: int,
) -> None:
    link = LinkSpec(
        rtt=rtt,
        jitter=jitter,
        loss=loss,
        outages=(Outage(1.0, 0.5),),
        handovers=moves,
        schedule_up=schedule,
        schedule_down=schedule,
    )
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


def test_networks_stand_in_the_order_of_their_distance() -> None:
    """A farther server's first token comes later."""
    world = World(tokens=30)
    first = {
        name: simulate(replace(world, link=link), policy_maker(SERVER_STREAMING))[0].arrivals[0]
        for name, link in PROFILES.items()
    }
    near_to_far = ("lan", "fibre", "cable", "lte", "geo-satellite")
    assert [first[name] for name in near_to_far] == sorted(first[name] for name in near_to_far)


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


def test_round_trips_after_handovers_spread_evenly_about_the_links() -> None:
    link = LinkSpec(rtt=0.1, handovers=Handovers(every=1.0, rtt_step=0.04))
    rtts = [2e-6 * delay for delay in delays_of(link)][5::10]
    assert sum(rtts) / len(rtts) == pytest.approx(0.1, abs=0.005)
    quartiles = sorted(rtts)[len(rtts) // 4], sorted(rtts)[3 * len(rtts) // 4]
    assert quartiles == pytest.approx((0.08, 0.12), abs=0.006)


def test_nothing_passes_during_a_handover() -> None:
    """A share of duration / every of the messages meets one, and is late by two round trips at least."""
    link = LinkSpec(rtt=0.02, handovers=Handovers(every=7.3, duration=0.73))
    sends = [(3.1 * n, 20) for n in range(3000)]  # far apart, so that none waits for another
    found = arrivals(link, sends)
    late = [arrival - when > 0.0101 for (when, _), arrival in zip(sends, found, strict=True)]
    assert sum(late) / len(late) == pytest.approx(0.1, abs=0.01)
    lags = [arrival - when for (when, _), arrival in zip(sends, found, strict=True)]
    assert min(lag for lag in lags if lag > 0.0101) >= 0.01 + 2 * 0.02 - 1e-9


def test_a_round_trip_is_never_negative() -> None:
    link = LinkSpec(rtt=0.001, handovers=Handovers(every=1.0, rtt_step=1.0))
    assert min(delays_of(link, until=100.0)) == 0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "neither false nor a table"),
        (True, "neither false nor a table"),
        ({"duration_ms": 5}, "every_ms must be there"),
        ({"every_ms": 0}, "last 0.0 s and come every 0.0 s; they must be shorter"),
        ({"every_ms": 50, "duration_ms": 50}, "they must be shorter"),
        ({"every_ms": -1}, "handovers every is -0.001"),
        ({"every_ms": 9, "rtt_step_ms": math.inf}, "handovers rtt_step is inf"),
        ({"every_ms": "9"}, "link.handovers.every_ms is '9'; a number"),
        ({"every_ms": 9, "step": 1}, "link.handovers has no 'step'"),
    ],
)
def test_handovers_that_cannot_be_are_refused(value: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        experiment_from({"link": {"handovers": value}})


# Mahimahi ---------------------------------------------------------------------------------------------


def test_a_message_leaves_with_the_opportunity_that_takes_its_last_byte() -> None:
    link = LinkSpec(rtt=0.1, schedule_up=Schedule("s", (10, 20, 20, 40)))
    assert arrivals(link, [(0.0, PACKET)]) == pytest.approx([0.06])
    assert arrivals(link, [(0.0, PACKET + 1)]) == pytest.approx([0.07])
    assert arrivals(link, [(0.0, 3 * PACKET + 1)]) == pytest.approx([0.09])
    assert arrivals(link, [(0.0, 4 * PACKET + 1)]) == pytest.approx([0.10])  # 10 ms of the second round


def test_messages_that_wait_together_share_an_opportunity_and_later_ones_do_not() -> None:
    link = LinkSpec(rtt=0.0, schedule_up=Schedule("s", (10, 20)))
    assert arrivals(link, [(0.0, 700), (0.005, 700), (0.009, 200)]) == pytest.approx([0.01, 0.01, 0.02])
    assert arrivals(link, [(0.0, 1), (0.010, 1), (0.011, 1)]) == pytest.approx([0.01, 0.02, 0.02])


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


@given(schedules, st.floats(0.0, 1e4))
def test_the_next_opportunity_is_the_first_later_one(schedule: Schedule, now: float) -> None:
    index = schedule.first_after(now)
    assert schedule.when(index) > now
    assert index == 0 or schedule.when(index - 1) <= now


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
        (b"0\n0\n", "lasts no time"),
        (b"1\n\n2\n", "line 2: '' where a whole number of milliseconds"),
        (b"1\n2.5\n", "line 2: '2.5' where"),
        (b"-1\n", "line 1: '-1' where a whole number of milliseconds, 0 or more"),
        (b"1 2\n", "line 1: '1 2' where"),
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


# Documents --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"profile": "carrier-pigeon"}, f"no network profile 'carrier-pigeon'; there are {NAMES}"),
        ({"profile": 5}, "link.profile is 5; a text was expected"),
        ({"mahimahi_up": 5}, "link.mahimahi_up is 5; a text was expected"),
        ({"mahimahi_up": "none.trace"}, r"none\.trace cannot be read: No such file"),
        ({"mahimahi_up": "m.trace", "up_kbps": 5}, "bandwidth and a mahimahi trace on its way up"),
        ({"mahimahi_down": "m.trace", "trace": "t.csv"}, "bandwidth and a mahimahi trace on its way down"),
        ({"profile": "lte", "trace": "t.csv"}, "link.trace and link.profile both"),
    ],
)
def test_a_link_of_two_minds_is_refused(tmp_path: Path, table: dict[str, object], message: str) -> None:
    (tmp_path / "m.trace").write_text("1\n")
    (tmp_path / "t.csv").write_text("time_s,rtt_ms,bw_mbps\n0,5,1\n1,5,1\n")
    with pytest.raises(UserError, match=message):
        experiment_from({"link": table}, tmp_path)


@needs_traces
@pytest.mark.parametrize(
    "name",
    [
        "home_wifi_repeater_fiber_1KB.csv",
        "telstra_cable_brisbane.csv",
        "5g/static_2019.12.16_13.40.04.csv",
        "5g/driving_2020.02.13_15.02.01.csv",
    ],
)
def test_measured_networks_can_be_replayed(name: str) -> None:
    link = experiment_from({"link": {"trace": str(MEASURED / name)}}).world.link
    simulate(World(tokens=40, link=link), policy_maker(FORERUN))


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


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ({"trace_start_s": 30}, "trace_start_s is 30; the trace lasts 20"),
        ({"trace_start_s": -1}, "trace_start_s is -1"),
        ({"trace_floor_ms": -5}, "trace_floor_ms is -5"),
        ({"trace_floor_ms": "low"}, "trace_floor_ms is 'low'"),
        ({"trace_session": "c"}, "'c'"),
        ({"trace_session": 1}, "a text was expected"),
    ],
)
def test_what_a_trace_may_not_be_asked(folder: Path, link: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        traced(folder, **link)


@pytest.mark.parametrize("key", ["trace_start_s", "trace_floor_ms", "trace_session"])
def test_options_of_a_trace_need_one(key: str) -> None:
    with pytest.raises(UserError, match=r"need a link\.trace"):
        experiment_from({"link": {key: "a" if key == "trace_session" else 1}})
