"""The verifier's mind: all sessions, who gets into the next step, and what each step commits.

Sans-IO: messages and step results come in with `now` (seconds, monotonic), effects and plans come out.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from cloud_verifier.core.admission import (
    ANYBODY,
    Caller,
    check_acceptance,
    check_deadline,
    check_draining,
    check_need,
    check_open,
    check_room,
    need_of,
)
from cloud_verifier.core.ahead import Lookahead, NextStep, Planned
from cloud_verifier.core.alarms import Alarms
from cloud_verifier.core.batching import Batcher, most_rows
from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.cost import StepCost
from cloud_verifier.core.credit import Credit
from cloud_verifier.core.effects import Effect, End, Reply
from cloud_verifier.core.ledger import Ledger, Running, StepDone
from cloud_verifier.core.memory import KvMemory
from cloud_verifier.core.quotas import Quotas, Turns
from cloud_verifier.core.rationing import Rationing
from cloud_verifier.core.relief import Relief
from cloud_verifier.core.report import count
from cloud_verifier.core.room import Room
from cloud_verifier.core.session import Progress, VerifySession
from cloud_verifier.core.sharing import Sharing
from cloud_verifier.core.target import IntArray, StepPlan, StepResult, TargetInfo
from cloud_verifier.core.tenants import NgramTables, Tenants
from common.errors import CapacityError, Code, ForerunError, LocalError, PeerError, UnavailableError
from common.estimators import IntervalEstimator
from common.mask_time import MaskTime
from common.messages import Close, Commit, Drain, Finish, FinishReason, Open, Opened, Propose, TokenLogprobs
from common.recall import Recall

DRAIN_KEY, QUOTA_KEY, MASK_KEY = -1, -2, -3  # of their alarms; sessions have keys above 0
RETRY_AFTER = 1.0  # seconds, until it is known how often a session ends here


class VerifyScheduler:
    """Drives all sessions of one engine.

    The driver calls `on_connect` when a stream begins, `charge_stream` when it knows whose it is, `on_open`,
    `on_propose`, `on_close` as messages come;
    whenever the engine is free `next_step` for a plan and, when it has run, `on_step_done` (or
    `on_step_failed`); while it runs, if it likes, `look_ahead`; `on_timer` when `next_timer_at` has come;
    `on_stalled` when what a session is sent begins, or ceases, to pile up; `drain` when the process should
    go. After each it carries out `effects()`. Session keys are the caller's,
    one per stream, above 0, never used twice.
    """

    def __init__(self, info: TargetInfo, config: SchedulerConfig | None = None) -> None:
        self.info = info
        self.config = config or SchedulerConfig()
        self.memory = KvMemory(info.num_slots, self.config.prefix_cache)
        self.tenants = Tenants()
        self.rationing = Rationing()
        self.mask_time = MaskTime()
        self.room = Room(self.config, self.memory, self.tenants)
        self.cost = StepCost()
        self.sharing = Sharing(self.config.max_slowdown, self.cost, info.rows_per_read)
        self.credit = Credit(self.config)
        self.ledger = Ledger(info.near_tie)
        self.counters = self.ledger.counters
        self.draining = False
        self.ngrams = NgramTables(self.config.shared_ngrams)
        self.sessions: OrderedDict[int, VerifySession] = OrderedDict()  # least recently served first
        self.rows = Relief(most_rows(self.config))
        self._batcher = Batcher(self.config, self.rows, self.cost, info.rows_per_read, self.tenants)
        self._effects: list[Effect | StepDone] = []  # of a step: its commits
        self._running: Running | None = None
        self._lookahead = Lookahead(self.config, self.memory, self.room, self.rows, self._batcher)
        self._planned: Planned | None = None  # after it
        self.outlook_changed = False  # what came since then would make another step of it
        self._suspects: deque[int] = deque()  # sessions of a failed step, to be tried one by one
        self._eos = frozenset(info.eos_token_ids)
        self._alarms = Alarms()
        self._unopened: dict[int, float] = {}  # streams without an Open, and since when
        self._between_ends = IntervalEstimator(RETRY_AFTER)
        self._turns = Turns()  # of callers that found no room
        self._last_end_at: float | None = None

    # Inputs -----------------------------------------------------------------------------------------------

    def on_connect(self, key: int, now: float) -> None:
        """A stream has begun. It is ended if its `Open` does not come in time."""
        self._unopened[key] = now
        self._alarms.set(key, now + self.config.open_timeout)

    def charge_stream(self, now: float, caller: Caller = ANYBODY) -> None:
        """A stream of `caller` begins, of which nothing is read yet. Raises what it is to be refused with:
        `UnavailableError` while this verifier drains, `CapacityError` if its tenant asks too often."""
        check_draining(self.draining)
        self.rationing.charge_stream(caller.tenant, now)

    def on_open(
        self, key: int, request: Open, now: float, caller: Caller = ANYBODY, came_at: float | None = None
    ) -> None:
        """A stream's `Open`, which came at `came_at` seconds if it had to wait. Answers `Opened`, or ends the
        stream with the reason."""
        if key in self.sessions:
            self._end(key, PeerError("a second Open came on this stream", Code.FAILED_PRECONDITION), now)
            return
        self._forget_stream(key)
        try:
            self.check(request, now, caller)
            session = self._admit(key, request, caller, now)
        except ForerunError as error:
            self._refuse(key, error, now)
            return
        credit = session.credit_told = self.credit.of(session, len(self.sessions))
        hold = 0.0 if came_at is None else now - came_at
        opened = Opened(session.tree.tip_position, credit, hold_us=max(0, round(hold * 1e6)))
        self._effects.append(Reply(key, opened))
        finish = session.finish_reason()
        if finish is not None:
            self._finish(session, finish, now)

    def on_quotas(self, quotas: Quotas, now: float) -> None:
        """What tenants may have is this from now on. Sessions that are open stay."""
        self.rationing.change(quotas, now)

    def on_propose(self, key: int, message: Propose, now: float) -> None:
        """Nodes from the edge. Ignored for a session that has ended, since they may have crossed its end."""
        session = self.sessions.get(key)
        if session is None:
            return
        num_dropped = session.arrivals.num_dropped
        try:
            session.receive(message, now)
        except ForerunError as error:
            self._end(key, error, now)
        else:
            self.outlook_changed |= session.tree.num_speculative > 0 or session.ready
            self.counters.num_proposed += len(message.tokens)
            self.counters.num_dropped += session.arrivals.num_dropped - num_dropped

    def on_violation(self, key: int, error: ForerunError, now: float) -> None:
        """A message that breaks the protocol before it is one: its stream ends with the error, no other."""
        if key in self.sessions:
            self._end(key, error, now)
        elif self._forget_stream(key):
            self._refuse(key, error, now)
        else:
            self._effects.append(End(key, error))

    def on_close(self, key: int, message: Close | None, now: float) -> None:
        """The edge said `Close`, or its stream is gone (None). Its slots are freed."""
        self._forget_stream(key)
        session = self.sessions.get(key)
        if session is None:
            return
        if message is None:
            count(self.counters.num_finished, "LOST")
            self._drop(session, now)
        else:
            self._finish(session, FinishReason.CANCELLED, now)

    def on_stalled(self, key: int, stalled: bool, now: float) -> None:
        """The edge reads too slowly, or not at all: nothing is evaluated for it until what it was sent has
        left, and after `stall_timeout` it is ended. Or it has left."""
        session = self.sessions.get(key)
        if session is None:
            return
        session.stalled_at = now if stalled else None
        if not stalled:
            session.ready_at = now
        self.outlook_changed = True
        self._look_after(session, now)

    def next_step(self, now: float) -> StepPlan | None:
        """The next ragged batch, or None while a step runs or nothing is to do."""
        if self._running is not None:
            return None
        self.room.readmit(now)
        ready = self._ready(now)
        batch = self._batcher.batch(ready, alone=len(self.sessions) == 1)
        if not batch.members:
            return None
        if self.config.recall:
            for session in batch.decoding:
                session.guess(self.config.max_nodes_per_session - 1)
        max_rows = self.rows.left(self.config.max_rows, sum(batch.chunks.values()))
        limits = max_rows, self.config.max_nodes_per_session
        nodes, num_wanted, longer = self.sharing.pick(batch.decoding, batch.bearing, *limits)
        num_nodes = sum(map(len, nodes.values()))
        self.credit.note(num_wanted, num_nodes - len(nodes))
        batch = self._batcher.keep_pace(batch, longer, num_nodes)
        for session in batch.decoding[len(nodes) :]:  # whose prompts end by that
            nodes[session.key] = [session.tree.tip]
        batch = self.rationing.trim(batch, nodes, now)
        items = [s.plan(batch.chunks.get(s.key, 0), nodes.get(s.key, ()), self.memory) for s in batch.members]
        if len(batch.members) < len(self.sessions):  # if all are, they stay in their order
            for session in batch.members:
                self.sessions.move_to_end(session.key)
        plan = StepPlan(tuple(items))
        self.rationing.charge(batch.members, plan)
        self._running = Running(
            sessions={session.key: session for session in batch.members},
            began_at=now,
            num_rows=plan.num_rows,
            num_reads=self._batcher.reads(plan),
            num_prefilled=sum(batch.chunks.values()),
            spared=batch.spared,
        )
        return plan

    def look_ahead(self) -> NextStep | None:
        """The step after the running one, if what that brings makes no difference to it but for the tokens.
        The engine may begin it at once. None if it does, or if it was asked for already.

        If `outlook_changed` afterwards, another step would be better, and `look_back` should be called if the
        engine has not begun this one.
        """
        if self._running is not None and self._planned is None and not self._suspects:
            planned = self._lookahead.plan(self._running, self.sessions.values())
            if planned is not None and not self.rationing.charge_ahead(planned.sessions.values()):
                planned.give_up(self.memory)
            elif planned is not None:
                self._planned, self.outlook_changed = planned, False
                return planned.step
        return None

    def look_back(self) -> None:
        """The engine will not begin the step looked ahead to."""
        if self._planned is not None:
            self._planned.give_up(self.memory)
            self.rationing.give_back(self._planned.sessions.values())
            self._planned = None

    def on_step_done(
        self, result: StepResult, now: float, ended_at: float | None = None, next_began: bool = False
    ) -> None:
        """The choices of the running step: commit, reply, and free what died. It was over at `ended_at`, if
        that is not `now`; with `next_began` the engine has then gone on with the step looked ahead to."""
        if not next_began:
            self.look_back()
        if not self._answers_running(result):
            self.on_step_failed(LocalError("the engine's choices do not fit the step it was given"), now)
            return
        running, planned = self._take_running(), self._planned
        ended_at = now if ended_at is None else ended_at
        parts = [
            self._apply(session, choices, now, planned)
            for session, choices in zip(running.sessions.values(), result.choices, strict=True)
        ]
        if planned is not None:
            self._running, self._planned = planned.began(ended_at), None
        predicted = self.cost.predict(running.num_rows, running.num_reads)
        done = StepDone(running, ended_at, now, predicted, parts, result.margins, result.logprobs)
        self.cost.sample(running.num_rows, running.num_reads, done.duration)
        self.mask_time.note(running.sessions, dict(result.mask_times), now, done.duration)
        self.sharing.settle(parts, running.spared)
        self.rows.on_success()
        self._effects.append(done)
        for part in parts:
            if part.finish is not None:
                self._finish(part.session, part.finish, now)

    def on_step_failed(self, error: ForerunError, now: float) -> None:
        """The engine could not run the step. A session that was alone in it ends with the error; several are
        tried again one by one, so that one bad request ends only itself. If memory was short, all are tried
        again in smaller steps."""
        self.look_back()
        running = self._take_running()
        self.counters.num_failed_steps += 1
        smaller = isinstance(error, CapacityError) and self.rows.on_failure(running.num_rows)
        for session in running.sessions.values():
            session.abort_step(self.memory)
            if session.ended:
                self.room.leave(session, keep=False)
            elif smaller:
                continue
            elif len(running.sessions) == 1:
                self._end(session.key, error, now, keep=False)
            else:
                self._suspects.append(session.key)

    def on_timer(self, now: float) -> None:
        """End streams without an `Open`, sessions past their deadline or idle too long, and on draining
        all."""
        for key in self._alarms.due(now):
            if key == DRAIN_KEY:
                self._end_all(now)
            elif key in self._unopened:
                del self._unopened[key]
                seconds = f"{self.config.open_timeout:g} s"
                message = f"no Open came within {seconds}, or its grammar waited that long for others"
                self._refuse(key, PeerError(message, Code.DEADLINE_EXCEEDED), now)
            elif key in self.sessions:
                self._look_after(self.sessions[key], now)

    def drain(self, grace: float, now: float) -> None:
        """Admit nobody any more, tell every session to reconnect elsewhere within `grace` seconds, and end
        those that are still here by then."""
        self.draining = True
        self._alarms.set(DRAIN_KEY, now + grace)
        for key in self.sessions:
            self._effects.append(Reply(key, Drain(round(grace * 1e6))))

    # Outputs ----------------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """What to do now, in order; each is handed out once."""
        taken, self._effects = self._effects, []
        effects = list[Effect]()
        for each in taken:
            if isinstance(each, StepDone):
                self.ledger.enter(each)
                effects += [self._commit(part, each, told) for part, told in each.commits()]
            else:
                effects.append(each)
        return effects

    @property
    def idle(self) -> bool:
        """Whether no session is open and no step runs."""
        return not self.sessions and self._running is None

    @property
    def next_timer_at(self) -> float | None:
        """When `on_timer` is due, seconds; None for never. There may be nothing to do then."""
        return self._alarms.next_at

    def check_integrity(self) -> None:
        """Raise `LocalError` unless every slot is free, cached or owned exactly once, every promise can be
        kept and every tree is whole."""
        running = list(self._running.sessions.values()) if self._running else []
        owners = [*self.sessions.values(), *(each for each in running if each.key not in self.sessions)]
        in_step = [slot for each in running if each.rows for slot in each.rows.slots]
        if self._planned is not None:
            in_step += [slot for slots in self._planned.slots.values() for slot in slots]
        self.memory.check_integrity([each.lease for each in owners], in_step)
        for session in self.sessions.values():
            session.tree.check_integrity()

    # Admission --------------------------------------------------------------------------------------------

    def check(self, request: Open, now: float, caller: Caller = ANYBODY) -> None:
        """Raise what `on_open` would refuse this with, as far as that shows before there is a session: what
        costs something to look at need not be looked at for who has no room. Only quotas count it."""
        check_open(request, self.info, self.draining)
        check_acceptance(request.acceptance, self.config.rules)
        check_deadline(caller, now)
        need, tenant = need_of(request, self.config), self.tenants.get(caller.tenant)
        check_need(need, self.memory.num_slots)
        self.rationing.check(request, need.promised, tenant, self.memory.num_slots, now)
        check_room(need, self.config, self.memory.num_slots, len(self.sessions), tenant)
        if self.room.num_waiting:
            raise CapacityError("sessions that are here wait for KV slots themselves; try later")

    def _admit(self, key: int, request: Open, caller: Caller, now: float) -> VerifySession:
        session = self._new_session(key, request, caller, now)
        num_cached = self.room.admit(session)
        session.tally.num_cached = num_cached
        self.counters.num_opened += 1
        self.counters.num_resumed += session.tally.resumed
        self.counters.num_prompt_tokens += len(session.tree.committed)
        self.counters.num_cached_tokens += num_cached
        self.sessions[key] = session
        self.outlook_changed = True
        self._look_after(session, now)
        return session

    def _new_session(self, key: int, request: Open, caller: Caller, now: float) -> VerifySession:
        stop_ids, limit = request.sampling.ends(self._eos), self.config.max_live_nodes
        recall = (
            Recall(request.prompt, self.ngrams.of(caller.tenant))
            if self.config.recall and request.fill
            else None
        )
        session = VerifySession(
            key, request, self.info.vocab_size, stop_ids, limit, now, recall, caller.tenant
        )
        session.deadline_at = caller.deadline_at
        self.mask_time.begin(session)
        return session

    # The step ---------------------------------------------------------------------------------------------

    def _ready(self, now: float) -> list[VerifySession]:
        """Who could be in the next step, and has slots for it. After a failed one its sessions run alone,
        to find who broke it. For a caller that waits no longer nothing is evaluated, and nothing that is
        beyond its tenant's rate."""
        everybody = [session for session in self.sessions.values() if session.ready_by(now)]
        everybody, more_at = self.rationing.let_in(everybody, now)
        self._alarms.set(QUOTA_KEY, more_at)
        # After the quotas: one session with dear masks is chosen, and it must be able to run.
        ready, masks_at = self.mask_time.let_in(everybody, now)
        self._alarms.set(MASK_KEY, masks_at)
        if self.room.secure(ready, self.sessions.values()):
            ready = [session for session in ready if not session.preempted]
        while self._suspects:
            suspect = self.sessions.get(self._suspects.popleft())
            if suspect in ready:
                return [suspect]
        return ready

    def _answers_running(self, result: StepResult) -> bool:
        sessions = self._running.sessions.values() if self._running else ()
        sizes = [len(session.rows.nodes) if session.rows else 0 for session in sessions]
        told = len(result.logprobs) in (0, len(sizes))
        return told and list(map(len, result.choices)) == list(map(len, result.margins)) == sizes

    def _apply(
        self, session: VerifySession, choices: IntArray, now: float, next_step: Planned | None
    ) -> Progress:
        """One session's part of the step that is done; it may be in the next one already."""
        in_next = next_step is not None and session.key in next_step.sessions
        if session.ended:  # its rows were evaluated all the same, and in vain
            part = session.abort_step(self.memory)
        else:
            part = session.apply(choices, self.memory, now, in_next)
        num_wasted = part.num_drafts - part.num_won if part.num_outputs > 1 else 0
        self.tenants.charge(session.tenant, part.num_rows, num_wasted)
        if part.lost and not in_next:
            self.room.leave(session)
        return part

    def _take_running(self) -> Running:
        if self._running is None:
            raise LocalError("a step was reported that had not begun")
        self.memory.step_over()
        running, self._running = self._running, None
        return running

    def _commit(self, part: Progress, done: StepDone, logprobs: tuple[TokenLogprobs, ...]) -> Reply:
        session = part.session
        credit = self.credit.of(session, len(self.sessions))
        told, session.credit_told = session.credit_told, credit
        echo = session.take_echo()
        hold = done.told_at - session.proposed_at if echo else 0.0
        message = Commit(
            start=part.start,
            tokens=tuple(part.tokens),
            server_made=part.server_made,
            echo=echo,
            hold_us=max(0, round(hold * 1e6)),
            queue_us=max(0, round((done.step.began_at - part.ready_at) * 1e6)),
            compute_us=round(done.duration * 1e6),
            credit=credit if credit != told else None,
            evaluated=part.num_outputs,
            logprobs=logprobs,
        )
        return Reply(session.key, message)

    # Endings ----------------------------------------------------------------------------------------------

    def _finish(self, session: VerifySession, reason: FinishReason, now: float) -> None:
        self._effects.append(Reply(session.key, Finish(reason, session.tree.tip_position)))
        self._effects.append(End(session.key))
        count(self.counters.num_finished, reason.name)
        self._drop(session, now)

    def _end(self, key: int, error: ForerunError, now: float, keep: bool = True) -> None:
        self._effects.append(End(key, error))
        count(self.counters.num_finished, error.code.value)
        self._drop(self.sessions[key], now, keep)

    def _end_all(self, now: float) -> None:
        """The time to leave is over: whoever is here is cut off, and goes on elsewhere."""
        for key in [*self._unopened, *self.sessions]:
            error = UnavailableError("this verifier has drained; reconnect to another one")
            if key in self.sessions:
                self._end(key, error, now)
            else:
                self._forget_stream(key)
                self._refuse(key, error, now)

    def _refuse(self, key: int, error: ForerunError, now: float) -> None:
        """End a stream that never had a session. A caller that found no room is told a turn of its own."""
        if isinstance(error, CapacityError) and error.retry_after is None:
            error.retry_after = self._turns.next(now, self._between_ends.smoothed)
        count(self.counters.num_refused, error.code.value)
        self._effects.append(End(key, error))

    def _drop(self, session: VerifySession, now: float, keep: bool = True) -> None:
        """Forget the session now; its slots wait for the running step, if it is in it."""
        del self.sessions[session.key]
        self._alarms.set(session.key, None)
        session.ended = True
        if self._last_end_at is not None:
            self._between_ends.sample(now - self._last_end_at)
        self._last_end_at = now
        if session.rows is None:
            self.room.leave(session, keep)

    # Time -------------------------------------------------------------------------------------------------

    def _look_after(self, session: VerifySession, now: float) -> None:
        """End it if its time is over, else look again when that could be."""
        ends = list(self._ends_of(session, now))
        why = next((why for at, why in ends if at <= now), None)
        if why is not None:
            self._end(session.key, UnavailableError(why, Code.DEADLINE_EXCEEDED), now)
        else:
            self._alarms.set(session.key, min((at for at, _ in ends), default=None))

    def _ends_of(self, session: VerifySession, now: float) -> Iterator[tuple[float, str]]:
        """When its time is over as things are, and why."""
        idle, stall = self.config.idle_timeout, self.config.stall_timeout
        if session.deadline_at is not None:
            yield session.deadline_at, "the call's deadline has passed"
        if not session.request.fill:
            yield self._idle_at(session, now), f"no Propose for {idle:.0f} s on a session without fill"
        if session.stalled_at is not None:
            yield session.stalled_at + stall, f"what was sent has not been read for {stall:.0f} s"

    def _idle_at(self, session: VerifySession, now: float) -> float:
        """When it will have waited too long for a Propose, should none come."""
        waits = not session.may_evaluate_tip and session.num_prefill == 0 and session.rows is None
        return (session.waits_since if waits else now) + self.config.idle_timeout

    def _forget_stream(self, key: int) -> bool:
        """It needs no `Open` any more. Whether it had still needed one."""
        if self._unopened.pop(key, None) is None:
            return False
        self._alarms.set(key, None)
        return True
