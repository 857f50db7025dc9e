"""Laws of looking ahead: the step after the running one is what it would have been, or it is not planned."""

import numpy as np
import pytest

from cloud_verifier.core.engine_protocol import StepPlan, StepResult
from cloud_verifier.core.lookahead import NextStep
from common.errors import LocalError
from common.messages import Close, Propose
from tests.cloud_verifier.core.bench import Bench, ask, chain, commits, ends, result_of, rows


def writing(*lengths: int) -> Bench:
    """Sessions 1, 2 ... that have read their prompts and have so many tokens to write yet."""
    bench = Bench()
    for key, length in enumerate(lengths, 1):
        bench.open(key, ask((key, key), max_tokens=length + 1))
    bench.step()
    return bench


def ahead(bench: Bench) -> NextStep:
    step = bench.scheduler.look_ahead()
    bench.scheduler.check_integrity()
    assert step is not None
    return step


def go_on(bench: Bench, plan: StepPlan, step: NextStep) -> StepPlan:
    """The engine ends `plan` and begins `step`; the scheduler hears of it."""
    result = result_of(plan)
    following = step.complete(result)
    assert following is not None
    bench.scheduler.on_step_done(result, 0.0, None, True)
    assert bench.scheduler.next_step(0.0) is None, "the engine is not free"
    return following


def changed(bench: Bench) -> bool:
    return bench.scheduler.outlook_changed


def test_a_step_ahead_is_the_one_that_would_have_come() -> None:
    looking, asking = writing(5, 5), writing(5, 5)
    for _ in range(2):
        plan = looking.begin()
        step = ahead(looking)
        following = go_on(looking, plan, step)
        assert len(commits(looking.effects())) == 2
        asking.step()
        expected = asking.begin()
        assert rows(following) == rows(expected)
        for one, other in zip(following.items, expected.items, strict=True):
            for name in ("prefix_slots", "positions", "parents", "slots", "outputs"):
                assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
        asking.end(expected)
        looking.end(following)
    assert looking.text(1) == asking.text(1) == [2, 3, 4, 5, 6]


def test_a_text_that_will_be_whole_has_no_row_in_it() -> None:
    bench = writing(1, 5)
    bench.begin()
    assert [item.session for item in ahead(bench).plan.items] == [2]
    bench = writing(1, 1)
    bench.begin()
    assert bench.scheduler.look_ahead() is None, "all will be"


def test_a_text_that_ends_by_surprise_has_a_row_in_vain_and_gives_its_slots_back() -> None:
    bench = Bench(num_slots=200)
    bench.open(1, ask((8,), max_tokens=30, stop_token_ids=(1,)))
    bench.open(2, ask((3,), max_tokens=30))
    bench.step()  # 9 and 4
    bench.step()  # 0 and 5
    plan, step = bench.begin(), ahead(bench)  # 1 ends the first
    following = go_on(bench, plan, step)
    assert len(ends(bench.effects())) == 1
    before = bench.scheduler.tenants.get("").service
    found = commits(bench.end(following))
    assert [commit.tokens for commit in found] == [(7,)]
    assert bench.scheduler.tenants.get("").service == before + 2, "it is charged like any other row"
    bench.scheduler.on_close(2, Close(), 0.0)
    memory = bench.scheduler.memory
    assert (memory.num_reserved, memory.pool.num_free + memory.cache.num_slots) == (0, 200)


def test_one_that_leaves_meanwhile_is_forgotten_when_the_step_is_over() -> None:
    bench = writing(9, 9)
    plan, step = bench.begin(), ahead(bench)
    bench.scheduler.on_close(1, None, 0.0)
    assert not changed(bench), "a row in vain is cheaper than to plan anew"
    following = go_on(bench, plan, step)
    bench.effects()
    bench.end(following)
    assert list(bench.scheduler.sessions) == [2]


def test_drafts_and_openings_change_the_outlook() -> None:
    bench = writing(9, 9)
    bench.begin()
    ahead(bench)
    bench.propose(1, Propose())
    assert not changed(bench)
    bench.propose(1, chain(7, anchor=bench.scheduler.sessions[1].tree.tip_position))
    assert changed(bench)
    bench = writing(9, 9)
    bench.begin()
    ahead(bench)
    bench.open(3)
    assert changed(bench)


def test_looking_back_returns_the_slots_and_the_next_step_is_planned_as_ever() -> None:
    bench = writing(9, 9)
    free = bench.scheduler.memory.pool.num_free
    plan = bench.begin()
    ahead(bench)
    assert bench.scheduler.memory.pool.num_free == free - 4
    bench.scheduler.look_back()
    assert bench.scheduler.memory.pool.num_free == free - 2
    bench.end(plan)
    assert bench.begin().num_rows == 2


def test_a_failed_step_takes_the_next_one_with_it() -> None:
    bench = writing(9)
    bench.begin()
    ahead(bench)
    bench.scheduler.on_step_failed(LocalError("no"), 0.0)
    bench.effects()
    assert bench.scheduler.idle


@pytest.mark.parametrize("what", ["drafts", "a prompt", "no fill", "penalties are fine", "another waits"])
def test_where_more_than_tips_may_come_nothing_is_planned(what: str) -> None:
    bench = Bench(prefill_chunk=8)
    penalty = 1.5 if what == "penalties are fine" else 1.0
    bench.open(1, ask((1, 2), fill=what != "no fill", repetition_penalty=penalty))
    bench.propose(1, Propose())
    bench.step()
    bench.propose(1, Propose())
    if what == "drafts":
        bench.propose(1, chain(5, anchor=2))
    if what == "a prompt":
        bench.open(2, ask((3,) * 30))
    bench.begin()
    if what == "another waits":
        bench.open(2)
    planned = bench.scheduler.look_ahead()
    assert (planned is not None) == (what == "penalties are fine")
    if planned is not None:
        generated = planned.plan.items[0].generated
        assert generated is not None
        assert generated.tolist() == [3]


def test_slots_are_promised_ahead_while_there_are_some() -> None:
    bench = Bench(num_slots=120, promised_text=2, max_nodes_per_session=2)
    bench.open(1, ask((1,), max_tokens=90))
    bench.step()
    while len(bench.text(1)) < 86:
        plan, step = bench.begin(), ahead(bench)
        following = go_on(bench, plan, step)
        bench.effects()
        bench.end(following)


def test_a_prompt_that_was_known_already_is_shared_and_what_the_step_still_reads_is_kept() -> None:
    """Two sessions read the same prompt at once: the second one's slots are the cache's in the end."""
    bench = Bench(num_slots=200)
    bench.open(1, ask((5, 6, 7, 8), max_tokens=9))
    bench.open(2, ask((5, 6, 7, 8), max_tokens=9))
    plan, step = bench.begin(), ahead(bench)
    following = go_on(bench, plan, step)
    bench.effects()
    free = bench.scheduler.memory.pool.free_slots()
    read = [slot for item in following.items for slot in (*item.prefix_slots.tolist(), *item.slots.tolist())]
    assert len(read) == len(set(read)) == 10
    assert not set(read) & set(free), "nobody else may write there while it runs"
    assert bench.scheduler.sessions[2].lease.num_shared == 4
    bench.end(following)
    assert len(bench.scheduler.memory.pool.free_slots()) == len(free) + 4
    assert bench.text(1) == bench.text(2) == [9, 0]


@pytest.mark.parametrize("wrong", ["fewer", "longer", "margins"])
def test_a_result_that_does_not_fit_is_followed_by_nothing(wrong: str) -> None:
    bench = writing(9, 9)
    plan, step = bench.begin(), ahead(bench)
    choices, margins = result_of(plan).choices, result_of(plan).margins
    bad = {
        "fewer": StepResult(choices[:1], margins[:1]),
        "longer": StepResult((choices[0], np.array([1, 2], np.int32)), margins),
        "margins": StepResult(choices, margins[:1]),
    }[wrong]
    assert step.complete(bad) is None
