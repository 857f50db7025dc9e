"""Law: whatever a grammar would cost to compile, it costs this process nothing, and others little time."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any, cast

import pytest

from common.errors import CapacityError, UserError
from common.grammar import Tokens, compile_trial
from common.grammar.compile_trial import MAX_WAITING, GrammarTrials, TrialTurns, in_thread
from tests import wording
from tests.common.grammar import vocabulary as v
from tests.support.waiting import until

pytestmark = pytest.mark.grammar


def schema(**fields: object) -> str:
    return json.dumps({"grammars": [{"json_schema": fields}]})


def check(trials: GrammarTrials, grammar: str) -> None:
    """Asks again where a busy machine says so, as its error advises."""
    for _ in range(20):
        with contextlib.suppress(CapacityError):
            trials.check(grammar)
            return
    pytest.fail("busy in each of 20 trials")


ENDLESS = schema(type="integer", multipleOf=9_999_991)


@pytest.fixture(scope="module")
def trials() -> GrammarTrials:
    return GrammarTrials(Tokens(v.PIECES, v.SPECIAL, v.EOS, v.WIDTH))


@pytest.mark.parametrize(
    "grammar",
    [
        schema(type="object", properties={f"field_{n}": {"type": "string"} for n in range(300)}),
        schema(type="number", multipleOf=0.01),
        schema(type="string", maxLength=20_000),
        "start: <call> | /(ab)+/",
        "start: <[20]>",
    ],
)
def test_an_honest_grammar_passes(trials: GrammarTrials, grammar: str) -> None:
    check(trials, grammar)


def test_a_grammar_whose_compile_never_ends_is_refused_each_time(trials: GrammarTrials) -> None:
    for _ in range(2):
        with wording.raises(UserError):
            check(trials, ENDLESS)


def test_a_refused_grammar_has_the_message_of_llguidance(trials: GrammarTrials) -> None:
    with wording.raises(UserError):
        trials.check("start: /(/")


def test_a_trial_whose_process_was_killed_is_another_ones_matter(trials: GrammarTrials) -> None:
    trials.check("start: /a/")
    processes = [each for each in list(trials._idle.queue) if each is not None]
    assert processes
    for each in processes:
        os.kill(each._process.pid, signal.SIGKILL)
        each._process.wait()
    trials.check("start: /b/")


def test_a_trial_that_a_busy_machine_does_not_end_refuses_no_grammar(trials: GrammarTrials) -> None:
    """Nor is it remembered."""

    class Busy:
        is_alive = True

        def ask(self, message: object, patience: float) -> dict[str, str]:
            return {"ended": "clock"}

    idle = [trials._idle.get() for _ in range(trials._idle.qsize())]
    trials._idle.put(cast("Any", Busy()))
    with wording.raises(CapacityError):
        trials.check("start: /c/")
    trials._idle.get()
    for each in idle:
        trials._idle.put(each)
    trials.check("start: /c/")


def test_a_compile_that_hardly_runs_is_ended_by_the_clock() -> None:
    code = (
        "from common.grammar import Tokens, compile_trial_child as child\n"
        "from tests.common.grammar import vocabulary as v\n"
        "tokens = Tokens(v.PIECES, v.SPECIAL, v.EOS, v.WIDTH); tokens.tokenizer; child.PATIENCE = 0.0;"
        "print(child._tried('start: /a/', tokens))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'ended': 'clock'}"


async def test_checks_of_one_tenant_take_turns_and_those_of_another_do_not_wait() -> None:
    turns, begun, go_on = TrialTurns(), list[str](), threading.Event()

    def check(name: str) -> None:
        begun.append(name)
        assert go_on.wait(30)

    one = [asyncio.create_task(turns.run("one", "", lambda: check("one"))) for _ in range(MAX_WAITING)]
    await until(lambda: begun)
    with pytest.raises(CapacityError):
        await turns.run("one", "", lambda: None)
    await turns.run("other", "", lambda: begun.append("other"))
    assert begun == ["one", "other"]
    one[0].cancel()  # its caller hung up, and its thread is still at it
    with pytest.raises(asyncio.CancelledError):
        await one[0]
    assert begun == ["one", "other"]
    go_on.set()
    await asyncio.gather(*one[1:])
    assert begun == ["one", "other", *["one"] * (MAX_WAITING - 1)]


async def test_connections_of_one_tenant_take_turns() -> None:
    turns, begun = TrialTurns(), list[str]()
    one = [asyncio.create_task(turns.run("t", "1", lambda: begun.append("1"))) for _ in range(5)]
    await asyncio.sleep(0)
    other = [asyncio.create_task(turns.run("t", "2", lambda: begun.append("2"))) for _ in range(2)]
    await asyncio.sleep(0)
    one[1].cancel()
    await asyncio.gather(*one, *other, return_exceptions=True)
    assert "".join(begun) == "121211"
    assert not turns._locks, "nothing is kept of those that are gone"


async def test_a_thread_that_cannot_begin_holds_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(work: object) -> None:
        raise RuntimeError("can't start new thread")

    turns, done = compile_trial.TrialTurns(), list[int]()
    with monkeypatch.context() as patched:
        patched.setattr(compile_trial, "in_thread", fail)
        with pytest.raises(RuntimeError):
            await turns.run("t", "", lambda: None)
    await turns.run("t", "", lambda: done.append(1))
    assert done == [1]


def test_a_process_that_goes_does_not_wait_for_a_check() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(30)

    async def main() -> None:
        in_thread(work)
        await until(begun.is_set)

    asyncio.run(main())
    assert not go_on.is_set()
    go_on.set()
