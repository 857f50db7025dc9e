"""Laws of the simulator's parts: time runs forward, draws have names, links keep their order."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from common.errors import LocalError, UserError
from simulator.beta import NUM_QUANTILES, beta_cdf, beta_quantiles
from simulator.drafts import BetaDraft
from simulator.draws import Draws, Stream
from simulator.events import Events
from simulator.files import experiment_from
from simulator.knowledge import BEST, NUM_CANDIDATES, OUTSIDE, OUTSIDE_SHARE
from simulator.lane import DOWN, UP, Lane
from simulator.link import Handovers, LinkSpec, Outage
from simulator.step_times import fit_line
from simulator.traces import Trace, read_trace

# Events -----------------------------------------------------------------------------------------------


def test_what_is_planned_for_one_moment_happens_in_the_order_of_planning() -> None:
    events, seen = Events(), list[str]()
    for name in "abc":
        events.at(1.0, lambda name=name: seen.append(name))  # type: ignore[misc]
    events.at(0.5, lambda: seen.append("first"))
    events.run()
    assert seen == ["first", "a", "b", "c"]
    assert events.now == 1.0
    assert events.num_done == 4


def test_the_past_cannot_be_planned() -> None:
    events = Events()
    events.at(1.0, lambda: None)
    events.run()
    with pytest.raises(LocalError, match=r"it is 1\.0 already"):
        events.at(0.9, lambda: None)
    with pytest.raises(LocalError):
        events.at(math.nan, lambda: None)


def test_a_run_stops_where_it_is_told_to() -> None:
    events, seen = Events(), list[float]()
    for when in (1.0, 2.0, 3.0):
        events.at(when, lambda: seen.append(events.now))
    events.run(until=2.0)
    assert seen == [1.0, 2.0]


# Draws ------------------------------------------------------------------------------------------------


def test_a_draw_depends_on_its_name_alone() -> None:
    draws = Draws(7, owner=3)
    ahead = [draws.uniform(Stream.UPLINK, n) for n in range(10)]
    assert [Draws(7, owner=3).uniform(Stream.UPLINK, n) for n in reversed(range(10))] == ahead[::-1]
    others = (
        Draws(8, 3).uniform(Stream.UPLINK, 0),
        Draws(7, 4).uniform(Stream.UPLINK, 0),
        draws.uniform(Stream.DOWNLINK, 0),
        draws.uniform(Stream.UPLINK, 1),
    )
    assert len({ahead[0], *others}) == 5


def test_draws_have_the_moments_of_their_laws() -> None:
    draws, num = Draws(1), 20_000
    uniforms = [draws.uniform(Stream.RANK, n) for n in range(num)]
    normals = [draws.normal(Stream.UPLINK, n) for n in range(num)]
    assert sum(uniforms) / num == pytest.approx(0.5, abs=0.01)
    assert 0.0 <= min(uniforms) < max(uniforms) < 1.0
    assert sum(normals) / num == pytest.approx(0.0, abs=0.03)
    assert sum(value**2 for value in normals) / num == pytest.approx(1.0, abs=0.04)


# Beta -------------------------------------------------------------------------------------------------


def test_the_distribution_function_is_known_at_known_places() -> None:
    assert beta_cdf(0.3, 1.0, 1.0) == pytest.approx(0.3)
    assert beta_cdf(0.5, 2.0, 2.0) == pytest.approx(0.5)
    assert beta_cdf(0.2, 2.0, 5.0) == pytest.approx(0.34464)  # 1 - (1-x)^6 - 6x(1-x)^5
    assert beta_cdf(0.9, 0.5, 0.5) == pytest.approx(2 / math.pi * math.asin(math.sqrt(0.9)))


@pytest.mark.parametrize(("mean", "k"), [(0.7, 2.0), (0.85, 2.0), (0.5, 1.0), (0.95, 10.0), (0.1, 4.0)])
def test_quantiles_rise_and_have_the_mean_and_variance_of_the_distribution(mean: float, k: float) -> None:
    found = beta_quantiles(mean * k, (1 - mean) * k)
    assert len(found) == NUM_QUANTILES
    assert list(found) == sorted(found)
    average = sum(found) / len(found)
    assert average == pytest.approx(mean, abs=1e-3)
    variance = sum((value - average) ** 2 for value in found) / len(found)
    assert variance == pytest.approx(mean * (1 - mean) / (k + 1), rel=0.01)


# What the draft knows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [0.0, 0.3, 0.7, 0.85, 0.98, 1.0])
def test_the_best_candidate_is_right_as_often_as_the_world_says(mean: float) -> None:
    text = BetaDraft(mean=mean).session(Draws(5))
    num = 20_000
    found = [text.truth(position) for position in range(num)]
    assert found.count(BEST) / num == pytest.approx(mean, abs=0.012)
    assert found.count(OUTSIDE) / num == pytest.approx((1 - mean) * OUTSIDE_SHARE, abs=0.012)
    assert found.count(BEST + 1) >= found.count(BEST + 2) >= found.count(BEST + 4)


def test_scores_are_the_logarithms_of_true_chances() -> None:
    """Calibration: among positions whose best candidate is promised p, a share of p is right. Below 0.3 the
    draft may be mistaken about which of its candidates is best."""
    text = BetaDraft(mean=0.7).session(Draws(6))
    promised, right = 0.0, 0
    for position in range(20_000):
        tokens, scores = text.candidates(position)
        assert tokens == tuple(range(BEST, BEST + NUM_CANDIDATES))
        assert list(scores) == sorted(scores, reverse=True)
        if 0.43 < math.exp(scores[0]) < 0.6:
            promised += math.exp(scores[0])
            right += text.truth(position) == BEST
        assert sum(math.exp(score) for score in scores) <= 1.0 + 1e-6
    assert right == pytest.approx(promised, rel=0.06)


@pytest.mark.parametrize(
    "bad", [{"mean": 1.1}, {"mean": -0.1}, {"k": 0.0}, {"k": math.inf}, {"mean": math.nan}]
)
def test_a_draft_that_cannot_be_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"draft {next(iter(bad))} is"):
        BetaDraft(**bad)


# Links ------------------------------------------------------------------------------------------------


def arrivals(link: LinkSpec, sends: list[tuple[float, int]], seed: int = 1) -> list[float]:
    """When messages of (seconds, bytes) arrive; asserts that they do so in order."""
    events, found = Events(), list[tuple[int, float]]()
    lane = Lane(events, link, UP, Draws(seed))
    for number, (when, size) in enumerate(sends):
        events.at(
            when,
            lambda number=number, size=size: lane.carry(  # type: ignore[misc]
                size, lambda: found.append((number, events.now))
            ),
        )
    events.run()
    assert [number for number, _ in found] == list(range(len(sends)))
    assert lane.num_bytes == sum(size for _, size in sends)
    return [when for _, when in found]


def test_a_plain_link_takes_half_the_round_trip() -> None:
    assert arrivals(LinkSpec(rtt=0.06), [(0.0, 10), (1.0, 10)]) == pytest.approx([0.03, 1.03])


def test_a_narrow_link_lets_messages_queue() -> None:
    link = LinkSpec(rtt=0.02, bandwidth_up=1000.0)
    assert arrivals(link, [(0.0, 100), (0.0, 100), (1.0, 50)]) == pytest.approx([0.11, 0.21, 1.06])


def test_each_direction_has_its_own_width() -> None:
    events, found = Events(), list[float]()
    link = LinkSpec(rtt=0.0, bandwidth_up=1.0, bandwidth_down=100.0)
    Lane(events, link, DOWN, Draws(1)).carry(100, lambda: found.append(events.now))
    events.run()
    assert found == [1.0]


times = st.lists(st.floats(0.0, 5.0), min_size=1, max_size=30).map(sorted)


@given(
    times,
    st.floats(0.0, 0.3),
    st.floats(0.0, 0.1),
    st.floats(0.0, 1.0),
    st.floats(0.0, 0.5),
    st.integers(0, 99),
)
def test_whatever_the_link_nothing_is_early_lost_or_out_of_order(
    moments: list[float], rtt: float, jitter: float, memory: float, loss: float, seed: int
) -> None:
    link = LinkSpec(rtt=rtt, jitter=jitter, jitter_memory=memory, loss=loss)
    found = arrivals(link, [(when, 20) for when in moments], seed)
    assert all(arrival >= when for when, arrival in zip(moments, found, strict=True))


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


def test_a_jitter_law_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="jitter_law is 'wild'; it can be normal, uniform, exponential"):
        LinkSpec(jitter_law="wild")
    with pytest.raises(UserError, match=r"link\.jitter_law is 3; a text was expected"):
        experiment_from({"link": {"jitter_law": 3}})
    assert experiment_from({"link": {"jitter_law": "uniform"}}).world.link.jitter_law == "uniform"


# Step times -------------------------------------------------------------------------------------------


def test_a_line_through_steps_on_a_line_is_that_line() -> None:
    line = fit_line([(1, 5, 5 * 0.004), (2, 1, 0.005), (8, 3, 3 * 0.011)])
    assert line == pytest.approx((0.004, 0.001))


def test_steps_count_as_often_as_they_were() -> None:
    """Two of 4 ms and one of 7 ms at one width: 5 ms, and nothing is known of further rows."""
    assert fit_line([(3, 2, 0.008), (3, 1, 0.007)]) == pytest.approx((0.005, 0.0))


def test_more_rows_never_take_less_time() -> None:
    assert fit_line([(1, 1, 0.009), (4, 1, 0.003)]) == pytest.approx((0.006, 0.0))


def test_no_step_takes_no_time() -> None:
    """A line whose beginning would lie below 0 becomes flat."""
    line = fit_line([(4, 1, 0.001), (8, 1, 0.030)])
    assert line == pytest.approx((0.0155, 0.0))
    with pytest.raises(LocalError, match="no step times"):
        fit_line([(1, 0, 0.0)])


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


def test_the_retransmission_timer_has_a_cap() -> None:
    """A probe after 0.2 s, the timer's tries 0.3 (2^n - 1) s later, from n = 9 on every 120 s."""
    link = LinkSpec(rtt=0.1, outages=(Outage(0.0, 300.0),))
    assert arrivals(link, [(0.0, 20)]) == pytest.approx([0.2 + 0.3 * (2**9 - 1) + 2 * 120.0 + 0.05])


def test_no_packet_passes_an_outage_however_long_it_is() -> None:
    """After the last try of a connection the next one begins as soon as anything passes."""
    week = 7 * 86400.0
    found = arrivals(LinkSpec(rtt=0.1, loss=0.5, outages=(Outage(1.0, week),)), [(0.0, 20), (2.0, 20)])
    assert found[1] == pytest.approx(1.0 + week + 0.05)


def test_random_losses_end_after_so_many_tries() -> None:
    link = LinkSpec(rtt=0.1, loss=0.999999)
    assert arrivals(link, [(0.0, 20)]) == pytest.approx([0.2 + 0.3 * (2**9 - 1) + 6 * 120.0 + 0.05])


@pytest.mark.parametrize(
    "bad", [{"rtt": -1.0}, {"rtt": math.nan}, {"jitter": math.inf}, {"loss": 1.0}, {"loss": -0.1}]
)
def test_a_link_that_cannot_be_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"link {next(iter(bad))} is"):
        LinkSpec(**bad)  # type: ignore[arg-type]  # all of them are numbers


@pytest.mark.parametrize(("start", "duration"), [(-1.0, 1.0), (0.0, 0.0), (0.0, math.inf)])
def test_an_outage_that_cannot_be_is_refused(start: float, duration: float) -> None:
    with pytest.raises(UserError, match="outage from"):
        Outage(start, duration)


# Traces -----------------------------------------------------------------------------------------------


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_trace_is_replayed_as_it_was_and_begins_again(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "time_s,rtt_ms,other\n10,100,x\n11,200,y\n12,,z\n13,300,z\n")
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


def test_lost_probes_and_handovers_that_leave_no_gap_are_an_error() -> None:
    trace = Trace("t", (0.0, 1.0), (0.1, 0.1), losses=(True, False))
    link = LinkSpec(trace=trace, handovers=Handovers(every=2.0, duration=1.999))
    with pytest.raises(UserError, match="take turns without a gap"):
        arrivals(link, [(2.5, 20)])


def _note_time(events: Events, found: list[float]) -> None:
    found.append(events.now)


def test_a_narrow_trace_holds_back_the_way_down_only(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "time_s,rtt_ms,bw_mbps\n0,0,8\n1,0,8\n")
    trace = read_trace(path)
    for direction, expected in ((DOWN, 1.0), (UP, 0.0)):
        events, found = Events(), list[float]()
        Lane(events, LinkSpec(trace=trace), direction, Draws(1)).carry(
            10**6,
            partial(_note_time, events, found),
        )
        events.run()
        assert found == [expected]


def through(trace: Trace, sends: list[tuple[float, int]]) -> list[float]:
    """When messages of (seconds, bytes) have come down."""
    events, found = Events(), list[float]()
    lane = Lane(events, LinkSpec(trace=trace), DOWN, Draws(1))
    for when, size in sends:
        events.at(when, partial(lane.carry, size, partial(_note_time, events, found)))
    events.run()
    return found


def test_a_message_drains_at_the_width_of_each_row() -> None:
    """Rows of 10, 0 and 40 bytes per second, a second each, and from 3 s on again."""
    trace = Trace("t", (0.0, 1.0, 2.0), (0.0,) * 3, bandwidths=(10.0, 0.0, 40.0))
    assert through(trace, [(0.0, 5)]) == pytest.approx([0.5])
    assert through(trace, [(0.0, 10)]) == pytest.approx([1.0])
    assert through(trace, [(0.5, 25)]) == pytest.approx([2.5])
    assert through(trace, [(1.5, 60)]) == pytest.approx([5.25])  # 40 to 3 s, 10 to 4 s, none to 5 s, 10
    assert through(trace, [(0.0, 30), (0.1, 30)]) == pytest.approx([2.5, 4.0])  # the second from 2.5 s on
    assert through(trace, [(0.0, 50_000)]) == pytest.approx([3000.0])
    shifted = replace(trace, offset=2.5)
    assert through(shifted, [(0.0, 21)]) == pytest.approx([0.6])


@given(
    st.lists(st.tuples(st.floats(0.01, 5.0), st.sampled_from([0.0, 0.5, 7.0, 1e3])), min_size=1, max_size=8),
    st.floats(0.0, 100.0),
    st.integers(1, 4000),
)
def test_what_has_drained_is_what_the_rows_let_through(
    rows: list[tuple[float, float]], begun: float, size: int
) -> None:
    assume(any(width for _, width in rows))
    times = tuple(itertools.accumulate((lasts for lasts, _ in rows[:-1]), initial=0.0))
    trace = Trace("t", times, (0.0,) * len(rows), bandwidths=tuple(width for _, width in rows))
    end = trace.drained_at(begun, size)
    step = (end - begun) / 20_000
    passed = sum(trace.bandwidths[trace.row(begun + (n + 0.5) * step)] for n in range(20_000)) * step
    assert passed == pytest.approx(size, rel=0.02, abs=step * 1e3 * 2 * len(rows))


def test_a_width_of_zero_tells_none_as_its_probe_came_back(tmp_path: Path) -> None:
    """As an empty cell: the width before it holds, and before the first one that."""
    rows = "0,5,\n1,5,0\n2,5,16\n3,5,0\n4,5,\n5,5,8\n"
    trace = read_trace(write(tmp_path / "t.csv", "time_s,rtt_ms,bw_mbps\n" + rows))
    assert trace.bandwidths == (2e6, 2e6, 2e6, 2e6, 2e6, 1e6)


def test_a_trace_as_spreadsheets_save_it_is_read(tmp_path: Path) -> None:
    """With a byte order mark."""
    path = write(tmp_path / "t.csv", "\ufefftime_s,rtt_ms\n0,100\n1,200\n")
    assert read_trace(path).rtts == pytest.approx((0.1, 0.2))


def test_a_loss_is_one_or_none(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "time_s,rtt_ms,loss\n0,5,0\n1,5,1\n2,5,0.0\n3,5,1.0\n4,5,\n")
    assert read_trace(path).losses == (False, True, False, True, False)


def test_one_session_of_several_is_replayed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "time_s,rtt_ms,session\n5,10,a\n6,10,a\n0,30,b\n1,40,b\n")
    assert read_trace(path).rtts == pytest.approx((0.01, 0.01))
    assert read_trace(path, "b").rtts == pytest.approx((0.03, 0.04))
    with pytest.raises(UserError, match="has no session 'c'; it has a, b"):
        read_trace(path, "c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no column 'time_s'"),
        ("time_s,rtt\n0,1\n", "line 1: no column 'rtt_ms' among time_s, rtt"),
        ("time_s,rtt_ms\n", "no row with an rtt_ms"),
        ("time_s,rtt_ms\n0,\n", "no row with an rtt_ms"),
        ("time_s,rtt_ms\n0,1\n2,1\n1,1\n", "line 4: time_s falls from 2 to 1"),
        ("time_s,rtt_ms\n0,1\n1,-2\n", "line 3: rtt_ms is '-2'"),
        ("time_s,rtt_ms\n0,nan\n", "line 2: rtt_ms is 'nan'"),
        ("time_s,rtt_ms\n,5\n", "line 2: time_s is ''"),
        ("time_s,rtt_ms,loss\n0,5,x\n", "line 2: loss is 'x'"),
        ("time_s,rtt_ms,loss\n0,5,0\n1,5,0.02\n", r"line 3: loss is '0.02'; a probe is either lost \(1\) or"),
        ("time_s,rtt_ms,loss\n0,5,-1\n", "line 2: loss is '-1'; a probe is either"),
        ("time_s,rtt_ms,loss\n0,5,1\n1,,1\n", "t.csv loses every probe, so nothing would ever arrive"),
        ("time_s,rtt_ms,loss\n0,,1\n", "loses every probe"),
        ("time_s,rtt_ms,loss\n0,5,0\n0,5,1\n1,5,1\n", "loses every probe"),  # the first lasts no time
        ("time_s,rtt_ms,bw_mbps\n0,5,0\n1,5,0\n", "t.csv has no bw_mbps above 0, so nothing would ever"),
        ("time_s,rtt_ms,bw_mbps\n0,5,\n1,5,0\n", "no bw_mbps above 0"),
    ],
)
def test_a_trace_that_is_none_is_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_trace(write(tmp_path / "t.csv", text))


def test_a_missing_trace_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.csv cannot be read: No such file"):
        read_trace(tmp_path / "none.csv")
