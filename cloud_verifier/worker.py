"""The verifier's heartbeat: schedule, run, apply. Engine in a thread, scheduler in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from cloud_verifier.core.admission import ANYBODY, Caller
from cloud_verifier.core.effects import End, Reply
from cloud_verifier.core.quotas import Quotas
from cloud_verifier.core.readiness import Standing
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import TargetEngine
from cloud_verifier.engine.grammar import check_grammar, prepare_grammars
from cloud_verifier.engine.stats import stats_of
from cloud_verifier.engine_thread import EngineThread, Outcome
from cloud_verifier.outbox import Outbox
from cloud_verifier.telemetry.monitor import Monitor
from cloud_verifier.telemetry.snapshot import Snapshot, take
from common.errors import CapacityError, ForerunError, LocalError, UnavailableError
from common.grammar.trial import Turns, in_thread
from common.messages import Close, Finish, Open, Propose
from common.rpc.version import version

logger = logging.getLogger(__name__)


class Worker:
    """Joins one engine and one scheduler. All methods belong to the event loop's thread.

    A stream calls `connect` for a key and what is to be sent, `charge_stream` once, then `receive` for each
    message (before it `check`, for its `Open`), and `disconnect` when it is gone for whatever reason.
    `max_tenants` is `Monitor`'s.
    """

    def __init__(
        self,
        engine: TargetEngine,
        scheduler: VerifyScheduler,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_tenants: int = 0,
    ) -> None:
        self.scheduler = scheduler
        self.monitor = Monitor(max_tenants, clock)
        self.version = version()
        self._engine = engine
        self._clock = clock
        self._engine_thread = EngineThread(engine, clock, self._ended)
        self._at_rest = asyncio.Event()  # no step runs any more
        self._broken: Exception | None = None
        self._wake = asyncio.Event()
        self._outboxes: dict[int, Outbox] = {}
        self._callers: dict[int, Caller] = {}
        self._asked_at: dict[int, float] = {}  # seconds; when an `Open` came that is being checked
        self._gone = asyncio.Event()  # set while no stream is connected
        self._gone.set()
        self._next_key = 1
        self._checks = Turns()  # of grammars
        self._checked_step = 0  # steps there had been when the slots were last counted

    # Streams ----------------------------------------------------------------------------------------------

    def connect(
        self, tenant: str = "", time_left: float | None = None, connection: str = ""
    ) -> tuple[int, Outbox]:
        """A key for a new stream of `tenant`, and what is to be sent on it, which ends with an `End`. After
        `time_left` seconds its caller waits no longer; None for never. `connection` names what brought it."""
        now = self._clock()
        key = self._next_key
        outbox = Outbox(lambda full: self._stalled(key, full))
        self._next_key += 1
        self._outboxes[key] = outbox
        self._callers[key] = Caller(tenant, None if time_left is None else now + time_left, connection)
        self._gone.clear()
        self.monitor.connected(key, tenant)
        self.scheduler.on_connect(key, now)
        self._wake.set()
        return key, outbox

    def charge_stream(self, key: int) -> None:
        """It is somebody's, and nothing of it is read yet. Raises what it is to be refused with."""
        self.scheduler.charge_stream(self._clock(), self._callers[key])

    async def check(self, key: int, request: Open) -> None:
        """Raise `UserError` or `PeerError` for a session whose grammar cannot be followed; before `receive`.
        In a thread of its own, one at a time of each tenant, whose connections take turns: to compile one may
        take a while, and nobody else should wait for it. Nothing is compiled for a session that would be
        refused anyway. `Opened` tells how long the check took."""
        self._asked_at[key] = self._clock()
        if request.sampling.grammar:
            caller = self._callers.get(key, ANYBODY)
            self.scheduler.check(request, self._clock(), caller)
            tenant, connection = caller.tenant, caller.connection
            await self._checks.run(tenant, connection, lambda: check_grammar(self._engine, request))

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
        """What is sent on a stream piles up, or has left."""
        self.scheduler.on_stalled(key, full, self._clock())
        if full:
            logger.info("! stream %d is not read", key)
        else:
            self._apply()

    def violate(self, key: int, error: ForerunError) -> None:
        """What came on this stream was no message of the protocol."""
        self.scheduler.on_violation(key, error, self._clock())
        self._apply()

    def disconnect(self, key: int) -> None:
        del self._outboxes[key], self._callers[key]
        self._asked_at.pop(key, None)
        if not self._outboxes:
            self._gone.set()
        self.monitor.disconnected(key)
        self.scheduler.on_close(key, None, self._clock())
        self._apply()

    def drain(self, grace: float) -> None:
        """Admit nobody any more; every session is told to reconnect elsewhere within `grace` seconds."""
        self.monitor.draining(grace, len(self.scheduler.sessions))
        self.scheduler.drain(grace, self._clock())
        self._apply()

    def set_quotas(self, quotas: Quotas) -> None:
        """What tenants may have, from now on."""
        self.scheduler.on_quotas(quotas, self._clock())
        self._wake.set()

    async def wait_until_gone(self) -> None:
        """Until no stream is connected: each has sent what it had to."""
        await self._gone.wait()

    def turn_time(self) -> float:
        """Seconds that a step of one tip takes, as far as steps have told."""
        return self.scheduler.cost.predict(1, 0)

    def snapshot(self) -> Snapshot:
        """How it stands now, for metrics and views."""
        return take(self.scheduler, self.monitor, self._clock(), stats_of(self._engine), self.version)

    def standing(self) -> Standing:
        """Whether it should get new sessions is judged by this."""
        scheduler = self.scheduler
        return Standing(
            draining=scheduler.draining,
            num_sessions=len(scheduler.sessions),
            max_sessions=scheduler.config.max_sessions,
            num_available=scheduler.memory.num_unpromised,
            num_slots=scheduler.memory.num_slots,
        )

    # The heartbeat ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Raises what broke it, if anything does."""
        self._engine_thread.start()
        in_thread(lambda: prepare_grammars(self._engine))
        try:
            while True:
                self._check_timer()
                if not self._go_on():
                    await self._rest()
                    continue
                await self._at_rest.wait()  # steps follow each other without this
                self._at_rest.clear()
                if self._broken is not None:
                    raise self._broken
        finally:
            self._engine_thread.stop()

    def _go_on(self) -> bool:
        """The engine is free: it begins the next step, if there is one. What the one before brought is sent
        while it runs: nobody waits for the sending."""
        plan = self.scheduler.next_step(self._clock())
        if plan is not None:
            self._engine_thread.begin(plan)
            self._look_ahead()
        self._deliver()
        return plan is not None

    def _look_ahead(self) -> None:
        ahead = self.scheduler.look_ahead()
        if ahead is not None:
            self._engine_thread.may_go_on_with(ahead)

    def _ended(self, outcome: Outcome) -> None:
        """A step is over. Called by the loop itself and not through a task: with messages to send, each turn
        of the loop takes milliseconds, and the engine waits for the next plan."""
        try:
            self._book(outcome)
            self._check_timer()
            if outcome.next_began:
                self._look_ahead()
                self._deliver()
            elif not self._go_on():
                self._at_rest.set()
        except Exception as error:  # noqa: BLE001 - `run` raises it: without a heartbeat nothing must go on
            self._broken = error
            self._at_rest.set()

    def _book(self, outcome: Outcome) -> None:
        if not outcome.next_began:
            self._engine_thread.take_back()  # it came too late
        if isinstance(outcome.result, BaseException):
            fields = {"rows": outcome.plan.num_rows, "sessions": len(outcome.plan.items)}
            logger.error("a step failed", exc_info=outcome.result, extra={"fields": fields})
            self.scheduler.on_step_failed(_failure(outcome.result), self._clock())
        else:
            ended_at, next_began = outcome.ended_at, outcome.next_began
            self.scheduler.on_step_done(outcome.result, self._clock(), ended_at, next_began)

    async def _rest(self) -> None:
        """Until an input comes or the timer is due. Raises `LocalError` if a slot was lost: a verifier that
        does not know whose KV is where must not go on."""
        if self.scheduler.idle and self._checked_step != self.scheduler.counters.num_steps:
            self._checked_step = self.scheduler.counters.num_steps
            self.scheduler.check_integrity()
        timer = self.scheduler.next_timer_at
        timeout = None if timer is None else max(0.0, timer - self._clock())
        with contextlib.suppress(TimeoutError):  # the timer is due; the loop looks at it first
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
        self.scheduler.on_open(key, request, now, self._callers.get(key, ANYBODY), asked_at)
        if (session := self.scheduler.sessions.get(key)) is not None:
            self.monitor.admitted(key, session)

    def _apply(self) -> None:
        """An input was taken: tell what came of it, and look whether a step can run now, or should be
        another one than was planned."""
        if self.scheduler.outlook_changed and self._engine_thread.take_back():
            self.scheduler.look_back()
        self._deliver()
        self._wake.set()

    def _deliver(self) -> None:
        for effect in self.scheduler.effects():
            if isinstance(effect, End):
                if effect.error is not None:
                    _forget_frames(effect.error)
                    self.monitor.failed(effect.session, effect.error)
            elif isinstance(effect.message, Finish):
                self.monitor.finished(effect.session, effect.message.reason)
            outbox = self._outboxes.get(effect.session)
            if outbox is not None:
                outbox.put_nowait(effect.message if isinstance(effect, Reply) else effect)
        self.monitor.stepped(self.scheduler.ledger.last_step)


def _forget_frames(error: ForerunError) -> None:
    """Cut the error from the frames that it was raised in. They hold the stream's messages, and the stream
    holds the error: a cycle, which would keep both until the garbage collector looks at its oldest
    generation."""
    error.__traceback__ = error.__context__ = error.__cause__ = None


def _failure(error: BaseException) -> ForerunError:
    """What an engine raised, as those are told whose step it was."""
    if isinstance(error, CapacityError | UnavailableError):
        return error
    if isinstance(error, MemoryError):
        return CapacityError("the target had no memory for a step; try later")
    return LocalError("the target could not evaluate a step; the verifier's log has more")
