"""Laws of the heartbeat: what an engine raises ends as little as it can, and slots are counted when all is
quiet."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from cloud_verifier.core.effects import End
from cloud_verifier.core.engine_protocol import StepPlan, StepResult, TargetInfo
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.server.outbox import Outgoing
from cloud_verifier.server.worker import Worker
from common.errors import CapacityError, ForerunError, LocalError
from common.messages import Commit, Finish, Open, Opened
from common.sampling import SamplingParams
from tests.support.tiny import EOS, VOCABULARY
from tests.worlds.models import VOCAB, TinyTarget, target_alone

INFO = TargetInfo("tiny", VOCAB, 512, 400, EOS, VOCABULARY.fingerprint)
SAMPLING = SamplingParams(max_tokens=12, ignore_eos=True)


class Faulty(TinyTarget):
    """Raises what it is told to for a plan, if anything."""

    fault: Callable[[StepPlan], Exception | None] = staticmethod(lambda plan: None)

    def evaluate(self, plan: StepPlan) -> StepResult:
        error = self.fault(plan)
        if error is not None:
            raise error
        return super().evaluate(plan)


def worker_with(fault: Callable[[StepPlan], Exception | None]) -> Worker:
    engine = Faulty(INFO)
    engine.fault = fault
    return Worker(engine, VerifyScheduler(INFO))


class Slow(TinyTarget):
    """Answers about a grammar once it is let to; says when its vocabulary is asked for."""

    def __init__(self, info: TargetInfo) -> None:
        super().__init__(info)
        self.may_answer, self.prepared = threading.Event(), threading.Event()

    def check_grammar(self, request: Open) -> None:
        assert self.may_answer.wait(20)

    def prepare_grammars(self) -> None:
        self.prepared.set()


async def test_an_open_that_was_held_says_for_how_long() -> None:
    """Else the edge takes the time in which a grammar was read for the network's."""
    now = 10.0
    engine = Slow(INFO)
    worker = Worker(engine, VerifyScheduler(INFO), lambda: now)
    request = Open((1, 2), replace(SAMPLING, grammar="2"), VOCABULARY.fingerprint)
    key, queue = worker.connect()
    checking = asyncio.create_task(worker.check(key, request))
    await asyncio.sleep(0)  # it has come
    now = 11.5
    engine.may_answer.set()
    await checking
    worker.receive(key, request)
    opened = await queue.get()
    assert isinstance(opened, Opened)
    assert opened.hold_us == 1_500_000


def test_a_process_that_goes_does_not_wait_for_what_grammars_need() -> None:
    go_on = threading.Event()

    class Busy(Slow):
        def prepare_grammars(self) -> None:
            super().prepare_grammars()
            go_on.wait(10)

    async def main() -> None:
        engine = Busy(INFO)
        heartbeat = asyncio.create_task(Worker(engine, VerifyScheduler(engine.info)).run())
        assert await asyncio.to_thread(engine.prepared.wait, 20)
        heartbeat.cancel()
        await asyncio.gather(heartbeat, return_exceptions=True)

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 5
    go_on.set()


async def ended(worker: Worker, prompt: tuple[int, ...]) -> tuple[list[int], ForerunError | None]:
    """The text of a session, and the error that ended it, if one did."""
    key, queue = worker.connect()
    worker.receive(key, Open(prompt, SAMPLING, VOCABULARY.fingerprint))
    text = list[int]()
    item: Outgoing = await queue.get()
    while not isinstance(item, End):
        if isinstance(item, Commit):
            text += item.tokens
        item = await queue.get()
    worker.disconnect(key)
    return text, item.error


async def run(worker: Worker, *prompts: tuple[int, ...]) -> list[tuple[list[int], ForerunError | None]]:
    """All at once, until each has ended."""
    heartbeat = asyncio.create_task(worker.run())
    results = await asyncio.wait_for(asyncio.gather(*(ended(worker, prompt) for prompt in prompts)), 20)
    heartbeat.cancel()
    await asyncio.gather(heartbeat, return_exceptions=True)
    return results


PROMPTS = ((1, 2), (3, 4, 5), (6, 1), (2, 2))


@pytest.mark.parametrize("shortage", [CapacityError("no memory on the device"), MemoryError()])
async def test_memory_that_is_short_for_a_step_costs_nobody_a_token(shortage: Exception) -> None:
    worker = worker_with(lambda plan: shortage if plan.num_rows > 2 else None)
    results = await run(worker, *PROMPTS)
    assert [tuple(text) for text, _ in results] == [target_alone(each, SAMPLING, EOS) for each in PROMPTS]
    assert worker.scheduler.counters.num_failed_steps > 0


async def test_a_session_that_breaks_the_engine_ends_alone() -> None:
    def breaks(plan: StepPlan) -> Exception | None:
        bad = any(len(item.prefix_slots) == 0 and item.tokens[0] == 6 for item in plan.items)
        return ValueError("not a number") if bad else None

    results = await run(worker_with(breaks), *PROMPTS)
    errors = [error for _, error in results]
    assert [error is None for error in errors] == [True, True, False, True]
    assert isinstance(errors[2], LocalError)
    assert "the target could not evaluate a step" in str(errors[2])


async def test_a_lost_slot_stops_a_verifier_that_rests() -> None:
    worker = worker_with(lambda plan: None)
    key, _ = worker.connect()
    heartbeat = asyncio.create_task(worker.run())
    worker.receive(key, Open((1, 2), SAMPLING, VOCABULARY.fingerprint))
    worker.scheduler.memory.pool.take(1)  # and nobody has it
    with pytest.raises(LocalError, match="by nobody, of 400"):
        await asyncio.wait_for(heartbeat, 20)


async def test_a_session_that_leaves_within_a_step_is_in_no_later_one() -> None:
    """A cancelled call costs the rest of one step, and of one more if that was planned ahead."""
    plans = list[list[int]]()
    worker = worker_with(lambda plan: plans.append([item.session for item in plan.items]))
    heartbeat = asyncio.create_task(worker.run())
    (gone, _), (stays, queue) = worker.connect(), worker.connect()
    for key in (gone, stays):
        worker.receive(key, Open((1, 2), SAMPLING, VOCABULARY.fingerprint))
    for _ in range(3):  # Opened and two commits
        await queue.get()
    worker.disconnect(gone)
    seen = len(plans) + 2  # the step that runs now, if it has not said so yet, and the one after it
    while not isinstance(await queue.get(), Finish):
        pass
    heartbeat.cancel()
    await asyncio.gather(heartbeat, return_exceptions=True)
    assert all(gone not in keys for keys in plans[seen:])
    assert len(plans) > seen


async def test_a_step_that_fails_while_the_one_before_is_booked_costs_nobody_a_token() -> None:
    """The engine goes on by itself where it may; any of its steps may fail."""
    calls = [0]

    def now_and_then(plan: StepPlan) -> Exception | None:
        calls[0] += 1
        return CapacityError("no memory on the device") if calls[0] % 3 == 0 and plan.num_rows > 1 else None

    worker = worker_with(now_and_then)
    results = await run(worker, *PROMPTS)
    assert [tuple(text) for text, _ in results] == [target_alone(each, SAMPLING, EOS) for each in PROMPTS]
    assert worker.scheduler.counters.num_failed_steps > 0
    worker.scheduler.check_integrity()


async def test_steps_of_tips_follow_each_other_without_asking() -> None:
    """How many is a matter of time; that some do is the point."""

    def slowly(plan: StepPlan) -> None:
        time.sleep(0.005)

    asked, worker = [0], worker_with(slowly)
    plan_next = worker.scheduler.next_step

    def counted(now: float) -> StepPlan | None:
        plan = plan_next(now)
        asked[0] += plan is not None
        return plan

    worker.scheduler.next_step = counted  # type: ignore[method-assign]
    results = await run(worker, (1, 2))
    assert tuple(results[0][0]) == target_alone((1, 2), SAMPLING, EOS)
    assert asked[0] < worker.scheduler.counters.num_steps


@pytest.mark.parametrize("turns", range(5))
async def test_a_heartbeat_that_is_cancelled_ends_whatever_comes_at_that_moment(turns: int) -> None:
    """A verifier that drains would stay for ever: its last stream goes as its heartbeat is ended."""
    worker = worker_with(lambda plan: None)
    heartbeat = asyncio.create_task(worker.run())
    key, _ = worker.connect()  # a timer is set: until when its first message must be there
    for _ in range(5):
        await asyncio.sleep(0)
    worker.disconnect(key)
    for _ in range(turns):
        await asyncio.sleep(0)
    heartbeat.cancel()
    done, _ = await asyncio.wait({heartbeat}, timeout=20)
    assert done
    assert heartbeat.cancelled()
