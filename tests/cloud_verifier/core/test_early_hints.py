"""Early hints reach the edges that asked, name the place where the step probably ends, and decide nothing."""

from dataclasses import replace

from cloud_verifier.core.effects import Effect, Reply
from cloud_verifier.core.engine_protocol import StepHints
from common.messages import Hint
from tests.cloud_verifier.core.bench import Bench, ask, chain

HINTED = replace(ask(), hints=True)


def hints(effects: list[Effect]) -> dict[int, Hint]:
    return {e.session: e.message for e in effects if isinstance(e, Reply) and isinstance(e.message, Hint)}


def hinted(bench: Bench, *tokens: tuple[tuple[int, ...], ...]) -> dict[int, Hint]:
    bench.scheduler.on_hints(StepHints(0.5, tokens))
    return hints(bench.effects())


def test_a_hint_at_the_tip_names_the_committed_position() -> None:
    bench = Bench()
    bench.open(1, HINTED)
    plan = bench.begin()
    assert plan.items[0].hint
    assert hinted(bench, ((7, 3),)) == {1: Hint(0, 0, (), (7, 3))}
    bench.end(plan)
    assert bench.text(1) == [2], "what was hinted decides nothing"


def test_a_hint_follows_the_likely_tokens_down_the_rows_of_the_step() -> None:
    bench = Bench()
    bench.open(1, HINTED)
    bench.propose(1, chain(2, 3, 4, anchor=0))
    plan = bench.begin()
    assert plan.num_rows == 4
    assert hinted(bench, ((2,), (3,), (9, 5), (6,))) == {1: Hint(2, 0, (), (9, 5))}
    assert hinted(bench, ((8,), (3,), (4,), (5,))) == {1: Hint(0, 0, (), (8,))}
    assert hinted(bench, ((2,), (3,), (4,), (5, 6))) == {1: Hint(3, 0, (), (5, 6))}


def test_an_edge_that_did_not_ask_gets_none() -> None:
    bench = Bench()
    bench.open(1)
    bench.open(2, HINTED)
    plan = bench.begin()
    assert [item.hint for item in plan.items] == [False, True]
    assert list(hinted(bench, (), ((4,),))) == [2]


def test_hints_that_come_late_or_for_an_ended_session_are_ignored() -> None:
    bench = Bench()
    assert hinted(bench, ((4,),)) == {}
    bench.open(1, HINTED)
    plan = bench.begin()
    bench.scheduler.on_close(1, None, 0.0)
    bench.effects()
    assert hinted(bench, ((4,),)) == {}
    bench.end(plan)
    assert hinted(bench, ((4,),)) == {}
