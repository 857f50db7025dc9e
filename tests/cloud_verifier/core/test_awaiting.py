"""Laws of waiting: a step waits for announced nodes if they are close, and for nothing else."""

from dataclasses import replace

from cloud_verifier.core.awaiting import Awaited
from cloud_verifier.core.engine_protocol import StepPlan
from common.messages import Wait
from tests.cloud_verifier.core.bench import Bench, ask, chain, commits, rows

CLOSE = Wait(20_000, 25_000)  # nodes come 20 ms after a commit, and a step may rest for 25 ms
FAR = Wait(60_000, 25_000)


def wrong_draft(wait: Wait, key: int = 1) -> Bench:
    """A session whose text is 2, and whose edge, which has announced nodes, drafted wrongly: none is left."""
    bench = Bench()
    bench.open(key, ask((key,)))
    bench.propose(key, replace(chain(7, anchor=0), wait=wait))
    bench.step()
    return bench


def begun(bench: Bench, now: float) -> StepPlan | None:
    plan = bench.scheduler.next_step(now)
    bench.scheduler.check_integrity()
    return plan


def test_a_step_waits_for_nodes_that_are_close_and_takes_what_has_come() -> None:
    bench = wrong_draft(CLOSE)
    assert begun(bench, 0.0) is None
    assert bench.scheduler.next_timer_at == bench.scheduler.waits_until == 0.020
    bench.propose(1, chain(3, anchor=1, seen=1), 0.005)
    assert begun(bench, 0.005) is None  # more may come until then
    bench.propose(1, chain(4), 0.010)
    bench.scheduler.on_timer(0.020)
    assert rows(bench.begin(0.020)) == {1: [2, 3, 4]}


def test_nodes_that_are_late_are_not_waited_for_any_longer() -> None:
    bench = wrong_draft(CLOSE)
    assert rows(bench.begin(0.021)) == {1: [2]}


def test_bare_steps_fill_the_time_until_nodes_are_close() -> None:
    bench = wrong_draft(FAR)
    bench.end(bench.begin(0.0), 0.030)
    bench.end(bench.begin(0.030), 0.050)  # 30 ms are too many to rest
    assert begun(bench, 0.050) is None
    assert bench.scheduler.waits_until == 0.060


def test_waits_in_vain_end_until_nodes_come_again() -> None:
    bench, now = wrong_draft(CLOSE), 0.0
    for _ in range(2):
        assert begun(bench, now) is None
        now = bench.scheduler.waits_until or 0.0
        bench.end(bench.begin(now), now)
        bench.scheduler.sessions[1].awaited._since = now  # as after a draft that was wrong again
    assert begun(bench, now) is not None


def test_an_edge_that_takes_its_word_back_is_not_waited_for() -> None:
    awaited = Awaited()
    awaited.told(CLOSE)
    awaited.committed(1, had_nodes=True, has_nodes=False, now=0.0)
    assert awaited.until(0.0) is not None
    awaited.told(Wait())
    assert not awaited.is_pending
    assert awaited.until(0.0) is None


def test_a_wait_counts_as_no_queue() -> None:
    bench = wrong_draft(CLOSE)
    assert begun(bench, 0.0) is None
    (commit,) = commits(bench.end(bench.begin(0.020), 0.030))
    assert (commit.queue_us, commit.compute_us) == (0, 10_000)
