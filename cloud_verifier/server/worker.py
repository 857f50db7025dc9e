"""Run the verifier's heartbeat: schedule, run, apply. The engine runs in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from cloud_verifier.core.admission import ANYBODY, Caller
from cloud_verifier.core.effects import End, Reply
from cloud_verifier.core.engine_protocol import (
    GuessPlan,
    GuessResult,
    StepHints,
    StepPlan,
    StepResult,
    TargetEngine,
)
from cloud_verifier.core.lookahead import NextStep
from cloud_verifier.core.quotas import Quotas
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.server.outbox import Outbox
from cloud_verifier.telemetry.monitor import Monitor
from cloud_verifier.telemetry.snapshot import Snapshot, take
from common.errors import CapacityError, ForerunError, LocalError, UnavailableError
from common.grammar.compile_trial import TrialTurns, in_thread
from common.messages import Close, Finish, Open, Propose
from common.wire.grpc_options import version

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    plan: StepPlan
    result: StepResult | BaseException
    ended_at: float  # seconds
    next_began: bool = False  # the engine has begun the step of `look_ahead`


@dataclass(frozen=True, slots=True)
class GuessOutcome:
    result: GuessResult | BaseException
    ended_at: float  # seconds


EngineOutcome = StepOutcome | GuessOutcome


class EngineThread:
    """Runs plans in a thread. All methods except the thread's own belong to the event loop's thread.

    Args: engine; clock, seconds, as of the scheduler's driver; on_end and on_hints, called in the event
    loop's thread with the outcome of each plan and with the hints before it, in order.
    """

    def __init__(
        self,
        engine: TargetEngine,
        clock: Callable[[], float],
        on_end: Callable[[EngineOutcome], None],
        on_hints: Callable[[StepHints], None],
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._on_end = on_end
        self._on_hints = on_hints
        self._plans: queue.SimpleQueue[StepPlan | GuessPlan | None] = queue.SimpleQueue()
        self._next: deque[NextStep] = deque()  # one at most; the thread that removes it owns it
        self.stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine.listen(self._tell_hints)
        self._thread.start()

    def stop(self) -> None:
        """Return when the running step is over."""
        self.stopped = True
        self._next.clear()
        self._plans.put(None)
        self._thread.join()

    def begin(self, plan: StepPlan | GuessPlan) -> None:
        """Run a plan while no other runs. The engine has usually begun when this returns."""
        self._plans.put(plan)
        time.sleep(0)  # releases Python's lock: otherwise the engine would wait until this thread is idle

    def may_go_on_with(self, step: NextStep) -> None:
        """Allow this step to follow the running one at once."""
        self._next.append(step)

    def take_back(self) -> NextStep | None:
        """Withdraw the step that may follow. Return None if it has begun, or if there was none."""
        try:
            return self._next.popleft()
        except IndexError:
            return None

    # In the thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        assert self._loop is not None, "started before"
        following: StepPlan | None = None  # it begins at once
        while (plan := following or self._plans.get()) is not None:
            outcome: EngineOutcome
            if isinstance(plan, GuessPlan):
                outcome = self._guess(plan)
            else:
                outcome, following = self._run(plan)
            self._loop.call_soon_threadsafe(self._on_end, outcome)

    def _run(self, plan: StepPlan) -> tuple[StepOutcome, StepPlan | None]:
        """Run a step. Return its outcome, and the step that follows at once, if any."""
        try:
            result = self._engine.evaluate(plan)
            step = self.take_back()
            following = None if step is None else step.complete(result)
        except BaseException as error:  # noqa: BLE001 - the worker waits for it and reports it to the sessions
            return StepOutcome(plan, error, self._clock()), None
        return StepOutcome(plan, result, self._clock(), following is not None), following

    def _guess(self, plan: GuessPlan) -> GuessOutcome:
        try:
            return GuessOutcome(self._engine.guess(plan), self._clock())
        except BaseException as error:  # noqa: BLE001 - the worker waits for it and goes on without guesses
            return GuessOutcome(error, self._clock())

    def _tell_hints(self, hints: StepHints) -> None:
        assert self._loop is not None, "started before"
        self._loop.call_soon_threadsafe(self._hear_hints, hints)

    def _hear_hints(self, hints: StepHints) -> None:
        if not self.stopped:
            self._on_hints(hints)


class Worker:
    """Joins one engine and one scheduler. All methods belong to the event loop's thread.

    A stream calls `connect` for a key and an outbox, `charge_stream` once, `check` for its `Open`, `receive`
    for each message, and `disconnect` when it has ended for any reason.
    """

    def __init__(
        self,
        engine: TargetEngine,
        scheduler: VerifyScheduler,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.monitor = Monitor(clock)
        self.version = version()
        self._engine = engine
        self._clock = clock
        self._engine_thread = EngineThread(engine, clock, self._ended, self._hinted)
        self._at_rest = asyncio.Event()  # no step runs any more
        self._broken: Exception | None = None
        self._wake = asyncio.Event()
        self._streams: dict[int, tuple[Outbox, Caller]] = {}
        self._asked_at: dict[int, float] = {}  # seconds; arrival of each `Open` that is being checked
        self._gone = asyncio.Event()  # set while no stream is connected
        self._gone.set()
        self._next_key = 1
        self._checks = TrialTurns()  # of grammars
        self._checked_step = 0  # number of steps at the last integrity check

    # Streams ----------------------------------------------------------------------------------------------

    def connect(
        self, tenant: str = "", time_left: float | None = None, connection: str = ""
    ) -> tuple[int, Outbox]:
        """Return key and outbox of a new stream. Its deadline is in `time_left` seconds; None for none."""
        now = self._clock()
        key = self._next_key
        outbox = Outbox(lambda full: self._stalled(key, full))
        self._next_key += 1
        deadline_at = None if time_left is None else now + time_left
        self._streams[key] = outbox, Caller(tenant, deadline_at, connection)
        self._gone.clear()
        self.monitor.connected(key, tenant)
        self.scheduler.on_connect(key, now)
        self._wake.set()
        return key, outbox

    def charge_stream(self, key: int) -> None:
        """Charge a stream before its first message is read. Raises the error that refuses it."""
        self.scheduler.charge_stream(self._clock(), self._caller(key))

    async def check(self, key: int, request: Open) -> None:
        """Raise `UserError` or `PeerError` for a session whose grammar cannot be used. Call before `receive`.

        Grammars compile in a thread, one at a time for each tenant, whose connections take turns. Nothing is
        compiled for a session that would be refused anyway. `Opened` reports the duration of the check."""
        self._asked_at[key] = self._clock()
        if request.sampling.grammar:
            caller = self._caller(key)
            self.scheduler.check(request, self._clock(), caller)
            tenant, connection = caller.tenant, caller.connection
            await self._checks.run(tenant, connection, lambda: self._engine.check_grammar(request))

    def receive(self, key: int, message: Open | Propose | Close) -> None:
        now = self._clock()
        match message:
            case Open():
                self._open(key, message, now)
            case Propose():
                self.scheduler.on_propose(key, message, now)
            case Close():
                self.scheduler.on_close(key, message, now)
        self._apply()

    def _stalled(self, key: int, full: bool) -> None:
        self.scheduler.on_stalled(key, full, self._clock())
        if full:
            logger.info("! stream %d is not read by its edge", key)
        else:
            self._apply()

    def violate(self, key: int, error: ForerunError) -> None:
        """End a stream that broke the protocol or whose caller is not admitted."""
        self.scheduler.on_violation(key, error, self._clock())
        self._apply()

    def disconnect(self, key: int) -> None:
        del self._streams[key]
        self._asked_at.pop(key, None)
        if not self._streams:
            self._gone.set()
        self.monitor.disconnected(key)
        self.scheduler.on_close(key, None, self._clock())
        self._apply()

    def drain(self, grace: float) -> None:
        """Stop admitting, and ask every session to reconnect elsewhere within `grace` seconds."""
        self.monitor.draining(grace, len(self.scheduler.sessions))
        self.scheduler.drain(grace, self._clock())
        self._apply()

    def set_quotas(self, quotas: Quotas) -> None:
        self.scheduler.on_quotas(quotas, self._clock())
        self._wake.set()

    async def wait_until_gone(self) -> None:
        """Wait until no stream is connected."""
        await self._gone.wait()

    def snapshot(self) -> Snapshot:
        return take(self.scheduler, self.monitor, self._clock(), self._engine.stats(), self.version)

    # The heartbeat ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run steps until cancelled. Raises the error that broke the heartbeat."""
        self._engine_thread.start()
        in_thread(self._engine.prepare_grammars)
        try:
            while True:
                self._check_timer()
                if not self._go_on():
                    await self._rest()
                    continue
                await self._at_rest.wait()  # until then `_ended` begins each next step
                self._at_rest.clear()
                if self._broken is not None:
                    raise self._broken
        finally:
            self._engine_thread.stop()

    def _go_on(self) -> bool:
        """Begin the next guesses or the next step, if there are any, and send the last step's results while
        they run."""
        guesses = self.scheduler.next_guess(self._clock()) if self.scheduler.drafter else None
        plan = guesses or self.scheduler.next_step(self._clock())
        if plan is not None:
            self._engine_thread.begin(plan)
            if guesses is None:
                self._look_ahead()
        self._deliver()
        return plan is not None

    def _look_ahead(self) -> None:
        ahead = self.scheduler.look_ahead()
        if ahead is not None:
            self._engine_thread.may_go_on_with(ahead)

    def _ended(self, outcome: EngineOutcome) -> None:
        """Take the outcome of a plan. The loop calls this directly and not through a task: with messages to
        send each turn of the loop takes milliseconds, while the engine waits for a plan."""
        if self._engine_thread.stopped:
            return
        try:
            if isinstance(outcome, GuessOutcome):
                self._book_guesses(outcome)
            elif isinstance(outcome.result, BaseException):
                self._book_failure(outcome.plan, outcome.result)
            else:
                if not outcome.next_began:
                    self._engine_thread.take_back()  # the planned step came too late
                ended_at, next_began = outcome.ended_at, outcome.next_began
                self.scheduler.on_step_done(outcome.result, self._clock(), ended_at, next_began, report=False)
            self._check_timer()
            if isinstance(outcome, StepOutcome) and outcome.next_began:
                self._look_ahead()
                self._deliver()
            elif not self._go_on():
                self._at_rest.set()
        except Exception as error:  # noqa: BLE001 - `run` raises it: without a heartbeat nothing must go on
            self._broken = error
            self._at_rest.set()

    def _hinted(self, hints: StepHints) -> None:
        self.scheduler.on_hints(hints)
        self._deliver()

    def _book_failure(self, plan: StepPlan, error: BaseException) -> None:
        self._engine_thread.take_back()
        fields = {"rows": plan.num_rows, "sessions": len(plan.items)}
        logger.error("a step failed", exc_info=error, extra={"fields": fields})
        self.scheduler.on_step_failed(_failure(error), self._clock())

    def _book_guesses(self, outcome: GuessOutcome) -> None:
        drafter = self.scheduler.drafter
        assert drafter is not None, "asked for guesses"
        if isinstance(outcome.result, BaseException):
            logger.error("the verifier's own drafter failed and rests from now on", exc_info=outcome.result)
            drafter.on_failed()
        else:
            drafter.on_guessed(outcome.result, outcome.ended_at)

    async def _rest(self) -> None:
        """Wait until an input comes or the timer is due. Raises `LocalError` if a slot was lost, because the
        verifier must not go on with wrong KV."""
        if self.scheduler.idle and self._checked_step != self.scheduler.counters.num_steps:
            self._checked_step = self.scheduler.counters.num_steps
            self.scheduler.check_integrity()
        timer = self.scheduler.next_timer_at
        timeout = None if timer is None else max(0.0, timer - self._clock())
        with contextlib.suppress(TimeoutError):  # the timer is due; the caller checks it next
            async with asyncio.timeout(timeout):  # `wait_for` of Python 3.11 loses a cancellation that comes
                await self._wake.wait()  # together with the event
        self._wake.clear()

    def _check_timer(self) -> None:
        timer, now = self.scheduler.next_timer_at, self._clock()
        if timer is not None and timer <= now:
            self.scheduler.on_timer(now)
            self._apply()

    def _open(self, key: int, request: Open, now: float) -> None:
        self.monitor.asked(key, request)
        asked_at = self._asked_at.pop(key, None)
        self.scheduler.on_open(key, request, now, self._caller(key), asked_at)
        if (session := self.scheduler.sessions.get(key)) is not None:
            self.monitor.admitted(key, session)

    def _caller(self, key: int) -> Caller:
        return self._streams[key][1] if key in self._streams else ANYBODY

    def _apply(self) -> None:
        """Deliver the effects of an input, and wake the heartbeat or replan the next step."""
        if self.scheduler.outlook_changed and self._engine_thread.take_back():
            self.scheduler.look_back()
        self._deliver()
        self._wake.set()

    def _deliver(self) -> None:
        self.scheduler.report()
        for effect in self.scheduler.effects():
            if isinstance(effect, End):
                if effect.error is not None:
                    _forget_frames(effect.error)
                    self.monitor.failed(effect.session, effect.error)
            elif isinstance(effect.message, Finish):
                self.monitor.finished(effect.session, effect.message.reason)
            if (stream := self._streams.get(effect.session)) is not None:
                stream[0].put_nowait(effect.message if isinstance(effect, Reply) else effect)
        self.monitor.stepped(self.scheduler.ledger.last_step)


def _forget_frames(error: ForerunError) -> None:
    """Remove the frames from the error. They hold the stream's messages, and the stream holds the error: a
    cycle, which would keep both until the garbage collector scans its oldest generation."""
    error.__traceback__ = error.__context__ = error.__cause__ = None


def _failure(error: BaseException) -> ForerunError:
    if isinstance(error, CapacityError | UnavailableError):
        return error
    if isinstance(error, MemoryError):
        return CapacityError("the target had no memory for a step; try later")
    return LocalError("the target could not evaluate a step; the verifier's log has more")
