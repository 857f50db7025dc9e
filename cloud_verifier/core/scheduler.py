"""Schedule all sessions of a verifier: choose each step's sessions and commit its results.

Sans-IO: messages and step results come in with `now` (seconds, monotonic), effects and plans come out.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import repeat

from cloud_verifier.core.admission import (
    ANYBODY,
    Caller,
    Vacancies,
    check_draining,
    check_open,
    check_room,
    need_of,
)
from cloud_verifier.core.alarms import Alarms
from cloud_verifier.core.batching import Batcher, OomBackoff, most_rows
from cloud_verifier.core.cost import MeasuredStepCost, StepCost
from cloud_verifier.core.draft_budget import DraftBudget
from cloud_verifier.core.effects import Effect, End, Reply
from cloud_verifier.core.engine_protocol import (
    GuessPlan,
    StepHints,
    StepPlan,
    StepResult,
    TargetInfo,
)
from cloud_verifier.core.kv_memory import KvMemory
from cloud_verifier.core.ledger import Ledger, Running, StepDone
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.lookahead import NextStep, StepsInFlight
from cloud_verifier.core.node_credit import Credit
from cloud_verifier.core.own_drafter import own_drafter
from cloud_verifier.core.planning import StepPlanner
from cloud_verifier.core.preemption import Preemption
from cloud_verifier.core.quotas import Quotas
from cloud_verifier.core.sources import RecalledText, VerifierSource
from cloud_verifier.core.tenants import Tenants
from cloud_verifier.core.verify_session import StepProgress, VerifySession
from common.errors import CapacityError, Code, ForerunError, LocalError, PeerError, UnavailableError
from common.mask_time import MaskTime
from common.messages import Close, Drain, Finish, FinishReason, Open, Opened, Propose
from common.prompt_lookup import PromptLookup

DRAIN_KEY, QUOTA_KEY, MASK_KEY, WAIT_KEY = -1, -2, -3, -4  # of their alarms; sessions have keys above 0
FULL, ROOMY = 0.02, 0.05  # shares of KV slots that are not reserved (`why_not_ready`)


class VerifyScheduler:
    """Drives all sessions of one engine.

    The driver calls `on_connect` when a stream begins, `charge_stream` when its tenant is known, and
    `on_open`, `on_propose`, `on_close` as messages come. When the engine is free it calls `next_step` for a
    step, then `on_step_done` or `on_step_failed`; with a `drafter` it calls `next_guess` before each step.
    While a step runs it may call `look_ahead` and `on_hints`.
    It calls `on_timer` at `next_timer_at`, `on_stalled` when a session's outbox fills or drains, and `drain`
    before the process ends. After each call it carries out `effects()`. The driver chooses session keys: one
    per stream, above 0, never used twice.
    """

    def __init__(self, info: TargetInfo, config: SchedulerConfig | None = None) -> None:
        self.info = info
        self.config = config or SchedulerConfig()
        self.memory = KvMemory(info.num_slots, self.config.prefix_cache, info.recurrent, info.apart)
        self.tenants = Tenants(info.num_slots, self.config.shared_texts)
        self.mask_time = MaskTime()
        self.preemption = Preemption(self.config, self.memory, self.tenants)
        self.cost = StepCost(buckets=info.row_buckets, expert_share=info.expert_share)
        if info.row_times:
            self.cost = MeasuredStepCost(info.row_times)
        self.budget = DraftBudget(self.config.max_slowdown, self.cost, info.rows_per_read)
        self.credit = Credit(self.config)
        self.ledger = Ledger(info.near_tie)
        self.counters = self.ledger.counters
        self.drafter = own_drafter(info.guess_depth, self.counters)
        self.draining = False
        self.sessions: OrderedDict[int, VerifySession] = OrderedDict()  # least recently served first
        self.backoff = OomBackoff(most_rows(self.config))
        self._batcher = Batcher(
            self.config, self.backoff, self.cost, info.rows_per_read, self.tenants.service
        )
        self._planner = StepPlanner(self.config, self._batcher, self.budget, self.credit, self.tenants)
        self._effects: list[Effect] = []
        self._unreported: tuple[StepDone, int] | None = None  # a finished step, and its place among effects
        self.waits_until: float | None = None  # seconds; the next step waits for nodes of edges
        self._steps = StepsInFlight()
        self.outlook_changed = False  # inputs since then would change the planned step
        self._suspects: deque[int] = deque()  # sessions of a failed step, to be tried one by one
        self._eos = frozenset(info.eos_token_ids)
        self._alarms = Alarms()
        self._full = False  # the last result of `why_not_ready`
        self._unopened: dict[int, float] = {}  # streams without an Open, and since when
        self._vacancies = Vacancies()  # of callers without room

    # Inputs -----------------------------------------------------------------------------------------------

    def on_connect(self, key: int, now: float) -> None:
        """Note a new stream. It is ended if its `Open` does not come within `open_timeout`."""
        self._unopened[key] = now
        self._alarms.set(key, now + self.config.open_timeout)

    def charge_stream(self, now: float, caller: Caller = ANYBODY) -> None:
        """Charge a new stream. Raises `UnavailableError` while draining, `CapacityError` above the rate."""
        check_draining(self.draining)
        self.tenants.charge_stream(caller.tenant, now)

    def on_open(
        self, key: int, request: Open, now: float, caller: Caller = ANYBODY, came_at: float | None = None
    ) -> None:
        """Answer a stream's `Open` with `Opened` or an end. `came_at`: its arrival, if it had to wait."""
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
        self.credit.rows_pay = self.budget.may_pay([session], self.config.max_nodes_per_session - 1)
        credit = self.credit.of(session, len(self.sessions))
        session.credit_told = credit
        hold = 0.0 if came_at is None else now - came_at
        opened = Opened(
            session.tree.tip_position,
            credit,
            hold_us=max(0, round(hold * 1e6)),
            cached=session.tally.num_cached,
        )
        self._effects.append(Reply(key, opened))
        if finish := session.finish_reason():
            self._finish(session, finish, now)

    def on_quotas(self, quotas: Quotas, now: float) -> None:
        """Use these quotas from now on. Open sessions continue."""
        self.tenants.change(quotas, now)
        self._alarms.set(QUOTA_KEY, None)

    def on_propose(self, key: int, message: Propose, now: float) -> None:
        """Take nodes from the edge. Nodes of an ended session may have crossed its end and are ignored."""
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
            self.counters.num_dropped += session.arrivals.num_dropped - num_dropped

    def on_violation(self, key: int, error: ForerunError, now: float) -> None:
        """End a stream with `error` after bytes that are no valid message. Other streams continue."""
        if key in self.sessions:
            self._end(key, error, now)
        elif self._forget_stream(key):
            self._refuse(key, error, now)
        else:
            self._effects.append(End(key, error))

    def on_close(self, key: int, message: Close | None, now: float) -> None:
        """End the session: the edge sent `Close`, or its stream is gone (None). Its slots become free."""
        self._forget_stream(key)
        session = self.sessions.get(key)
        if session is None:
            return
        if message is None:
            self.counters.num_finished["LOST"] += 1
            self._drop(session, now)
        else:
            self._finish(session, FinishReason.CANCELLED, now)

    def on_stalled(self, key: int, stalled: bool, now: float) -> None:
        """Apply flow control. `stalled`: the edge is not reading; the session joins no step until its outbox
        drains, and ends after `stall_timeout`. Not `stalled`: the outbox has drained."""
        if (session := self.sessions.get(key)) is not None:
            session.stall(stalled, now)
            self.outlook_changed = True
            self._look_after(session, now)

    def next_guess(self, now: float) -> GuessPlan | None:
        """Return what the engine shall guess before the next step; None for nothing, and without a `drafter`.

        Once before each step, and after any wait for announced nodes: with them, guesses win less.
        """
        if not self.drafter or not self.drafter.is_due or self._steps.running or self.drafter.is_running:
            return None
        ready = [session for session in self.sessions.values() if session.ready_by(now)]
        if self._wait_until(ready, now) is not None:
            return None
        decoding = [session for session in ready if not session.num_prefill]
        for session in decoding:
            session.guess(self.config.max_nodes_per_session - 1)
        return self.drafter.plan(ready, self.budget.bare(decoding), now)

    def next_step(self, now: float) -> StepPlan | None:
        """Return the plan of the next step; None while a step or the drafter runs, or if no session is
        ready."""
        if self._steps.running or (self.drafter and self.drafter.is_running):
            return None
        if self.preemption.num_waiting:
            self.preemption.readmit(now)
        ready = self._ready(now)
        self.waits_until = self._wait_until(ready, now)
        self._alarms.set(WAIT_KEY, self.waits_until)
        if self.waits_until is not None:
            return None
        draft = self._planner.draft(ready, now, alone=len(self.sessions) == 1)
        members, chunks, nodes = draft.members, draft.chunks, draft.nodes
        if not members:
            return None
        plan = StepPlan(
            tuple(
                session.plan(chunks.get(session.key, 0), nodes.get(session.key, ()), self.memory)
                for session in members
            )
        )
        if len(members) < len(self.sessions):  # if all are, they stay in their order
            for session in members:
                self.sessions.move_to_end(session.key)
        if self.tenants.has_rates:
            self.tenants.charge(members, plan)
        by_key, num_reads = {session.key: session for session in members}, self._batcher.reads(plan)
        self._steps.running = Running(
            by_key, now, plan.num_rows, num_reads, sum(chunks.values()), draft.spared
        )
        return plan

    def look_ahead(self) -> NextStep | None:
        """Return the step after the running one if it depends on that one's results by its tokens alone.

        The engine may begin it at once. Return None if the step cannot be planned or was returned before. If
        `outlook_changed` becomes true, another step would be better; then call `look_back`, unless the engine
        has begun this step.
        """
        if self._suspects or (self.drafter and self.drafter.takes_turns):
            return None
        planned = self._steps.plan_ahead(
            self.sessions.values(), self.config, self.memory, self.preemption, self._batcher
        )
        if planned and self.tenants.has_rates and not self.tenants.charge_ahead(planned.sessions.values()):
            planned.give_up(self.memory)
            return None
        if planned:
            self._steps.planned, self.outlook_changed = planned, False
        return planned

    def look_back(self) -> None:
        """Return the slots of the planned step, which the engine will not begin."""
        if planned := self._steps.planned:
            planned.give_up(self.memory)
            if self.tenants.has_rates:
                self.tenants.give_back(planned.sessions.values())
            self._steps.planned = None

    def on_step_done(
        self,
        result: StepResult,
        now: float,
        ended_at: float | None = None,
        next_began: bool = False,
        report: bool = True,
    ) -> None:
        """Take the running step's choices: commit, reply, and free the slots of dead nodes. The step ended at
        `ended_at` (default: `now`). `next_began`: the engine has begun the step of `look_ahead`. Without
        `report` the driver calls `report` itself, once the engine runs the next step."""
        if self._steps.planned and not next_began:
            self.look_back()
        if (running := self._steps.end(result)) is None:
            self.on_step_failed(LocalError("the engine's choices do not fit the step it was given"), now)
            return
        self.memory.step_over()
        ended_at, parts = now if ended_at is None else ended_at, list[StepProgress]()
        for session, choices in zip(running.sessions.values(), result.choices, strict=True):
            in_next = session.key in self._steps.planned_keys
            if session.ended:  # its rows were evaluated all the same, and in vain
                part = session.abort_step(self.memory)
            else:
                part = session.apply(choices, self.memory, now, in_next)
            num_wasted = part.num_drafts - part.num_won if part.num_outputs > 1 else 0
            self.tenants.note_service(session.tenant, part.num_rows, num_wasted)
            if part.lost and not in_next:
                self.preemption.leave(session)
            parts.append(part)
        if self._steps.planned:
            self._steps.go_on(ended_at)
        num_prompt = sum(part.num_rows - part.num_outputs for part in parts)
        duration = ended_at - running.began_at
        predicted = self.cost.sample(running.num_rows, running.num_reads, duration, num_prompt)
        done = StepDone(running, ended_at, now, predicted, parts, result.margins, result.logprobs)
        if result.mask_times:
            self.mask_time.note(running.sessions, dict(result.mask_times), now, duration)
        seconds = duration + (self.drafter.time_spent if self.drafter else 0.0)
        row_price, time = self.budget.settle(parts, seconds, running.spared)
        if self.drafter:
            self.drafter.settle(parts, time, row_price, next_began)
        if self.backoff.active:
            self.backoff.on_success()
        self._unreported = done, len(self._effects)
        for part in parts:
            if part.finish:
                self._finish(part.session, part.finish, now)
        if report:
            self.report()

    def report(self) -> None:
        """Write the commits of the step that has ended, and enter it into the ledger."""
        if self._unreported is None:
            return
        done, place = self._unreported
        self._unreported = None
        self.ledger.enter(done)
        replies = list[Effect]()
        for part, rows in zip(done.parts, done.logprobs or repeat(None), strict=False):
            if not part.tokens:
                continue
            session = part.session
            credit = self.credit.of(session, len(self.sessions))
            logprobs = () if rows is None else rows.of(part.outputs)
            commit = session.commit(
                part, done.step.began_at, done.duration, done.reported_at, credit, logprobs
            )
            replies.append(Reply(session.key, commit))
        self._effects[place:place] = replies

    def on_hints(self, hints: StepHints) -> None:
        """Take the tokens that the engine expects in the middle of the running step, and send them as hints
        to the edges that asked. Hints decide nothing."""
        for session, said in zip(self._steps.members, hints.tokens, strict=False):
            if hint := session.hint(said):
                self._effects.append(Reply(session.key, hint))

    def on_step_failed(self, error: ForerunError, now: float) -> None:
        """Take the failure of the running step. A session that was alone in it ends with the error. Several
        sessions are tried again one by one, so that one bad request ends only itself. If memory was short,
        all are tried again in smaller steps."""
        self.look_back()
        running = self._steps.take_running()
        self.memory.step_over()
        self.counters.num_failed_steps += 1
        smaller = isinstance(error, CapacityError) and self.backoff.on_failure(running.num_rows)
        for session in running.sessions.values():
            session.abort_step(self.memory)
            if session.ended:
                self.preemption.leave(session, keep=False)
            elif not smaller and len(running.sessions) == 1:
                self._end(session.key, error, now, keep=False)
            elif not smaller:
                self._suspects.append(session.key)

    def on_timer(self, now: float) -> None:
        """End streams without an `Open`, sessions past a timeout, and all streams after a drain's grace."""
        for key in self._alarms.due(now):
            if key == DRAIN_KEY:
                self._end_all(now)
            elif key in self._unopened:
                del self._unopened[key]
                seconds = f"{self.config.open_timeout:g} s"
                message = f"no Open came within {seconds}, or its grammar was queued for that long"
                # The edge may have slept, or the grammars before its own took long: it may try again.
                self._refuse(key, UnavailableError(message, Code.DEADLINE_EXCEEDED), now)
            elif key in self.sessions:
                self._look_after(self.sessions[key], now)

    def drain(self, grace: float, now: float) -> None:
        """Stop admitting sessions and send every session a `Drain`. Sessions that remain after `grace`
        seconds are ended."""
        self.draining = True
        self._alarms.set(DRAIN_KEY, now + grace)
        for key in self.sessions:
            self._effects.append(Reply(key, Drain(round(grace * 1e6))))

    # Outputs ----------------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """Return the effects that the driver carries out now, in order. Each is returned once."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def turn(self) -> float | None:
        """Seconds that one session more would wait for its tokens, as of late; None before the first step."""
        if (step := self.ledger.last_step) is None or not self.sessions:
            return self.cost.predict(1, 0) if self.cost.num_samples else None
        rows = 1.0 + step.num_drafts / max(1, step.num_tips)  # of each session
        return self.ledger.turn.smoothed + self.cost.more(rows, 0.0)

    def why_not_ready(self) -> str:
        """Return why no new session should come, as a sentence; empty if the verifier is ready. A verifier
        that was full is ready again only when there is room for several sessions."""
        available, num_slots = self.memory.num_unpromised, self.memory.num_slots
        self._full = available / num_slots < (ROOMY if self._full else FULL)
        if self.draining:
            return "it is draining: it goes away and takes no new sessions"
        if len(self.sessions) >= self.config.max_sessions:
            return f"all {self.config.max_sessions} sessions that it takes are here"
        return f"only {available} of {num_slots} KV slots are not reserved" if self._full else ""

    @property
    def idle(self) -> bool:
        return not self.sessions and not self._steps.running

    @property
    def next_timer_at(self) -> float | None:
        """The time at which `on_timer` is due, seconds; None for never."""
        return self._alarms.next_at

    def check_integrity(self) -> None:
        """Raise `LocalError` unless every slot is free, cached or owned exactly once, all reservations fit
        and every tree is intact."""
        members = self._steps.members
        owners = [*self.sessions.values(), *(each for each in members if each.key not in self.sessions)]
        in_step = [slot for each in members if each.rows for slot in each.rows.slots]
        if planned := self._steps.planned:
            in_step += [slot for slots in planned.slots.values() for slot in slots]
        self.memory.check_integrity([session.lease for session in owners], in_step)
        for session in self.sessions.values():
            session.tree.check_integrity()

    # Admission --------------------------------------------------------------------------------------------

    def check(self, request: Open, now: float, caller: Caller = ANYBODY) -> None:
        """Raise the error with which `on_open` would refuse this request now. The caller can skip costly
        checks, such as a grammar's, for a request without room. Only quotas count the call."""
        check_draining(self.draining)
        check_open(request, self.info, self.config)
        caller.check_deadline(now)
        self.tenants.check(caller.tenant, request, need_of(request, self.config).promised, now)
        check_room(len(self.sessions), self.config)
        if self.preemption.num_waiting:
            raise CapacityError("open sessions are waiting for KV slots themselves; try later")

    def _admit(self, key: int, request: Open, caller: Caller, now: float) -> VerifySession:
        session = VerifySession(
            key,
            request,
            self.info.vocab_size,
            request.sampling.ends(self._eos),
            self.config.max_live_nodes,
            now,
            self._sources(request, caller.tenant) if request.fill else (),
            caller.tenant,
            caller.deadline_at,
            self.config.judge,
        )
        self.mask_time.begin(session)
        num_cached = self.preemption.admit(session)
        if self.drafter:
            self.drafter.begin(session)
        self.counters.num_opened += 1
        self.counters.num_resumed += session.tally.resumed
        self.counters.num_prompt_tokens += len(session.tree.committed)
        self.counters.num_cached_tokens += num_cached
        self.sessions[key] = session
        self.outlook_changed = True
        self._look_after(session, now)
        return session

    def _sources(self, request: Open, tenant: str) -> list[VerifierSource]:
        """Return the verifier's own sources of proposals for a session, besides the engine's drafter."""
        sources = [source(request.prompt) for source in self.config.sources]
        if self.config.recall:
            lookup = PromptLookup(request.prompt, self.tenants.texts.of(tenant))
            sources.append(RecalledText(lookup, request.committed))
        return sources

    # The step ---------------------------------------------------------------------------------------------

    def _ready(self, now: float) -> list[VerifySession]:
        """Return the sessions that can join the next step and have slots for it. After a failed step its
        sessions run one by one, to find the one that broke it. Sessions whose deadline has passed, or whose
        tenant is above its rate, stay out."""
        everybody = [session for session in self.sessions.values() if session.ready_by(now)]
        if self.tenants.has_rates:
            everybody, more_at = self.tenants.let_in(everybody, now)
            self._alarms.set(QUOTA_KEY, more_at)
        # After the quotas one session with expensive masks is chosen. If it is preempted, another one is
        # chosen: otherwise no step might run, and nothing would wake the verifier.
        while True:
            ready, masks_at = everybody, None
            if any(session.masks.dear for session in everybody):
                ready, masks_at = self.mask_time.let_in(everybody, now)
            self._alarms.set(MASK_KEY, masks_at)
            if not self.preemption.secure(ready, self.sessions.values()):
                break
            ready = [session for session in ready if not session.preempted]
            everybody = [session for session in everybody if not session.preempted]
            if ready or not everybody:
                break
        while self._suspects:
            suspect = self.sessions.get(self._suspects.popleft())
            if suspect in ready:
                return [suspect]
        return ready

    def _wait_until(self, ready: Sequence[VerifySession], now: float) -> float | None:
        """Return the time until which the next step waits for announced nodes; None if some session need not
        wait: others then wait no longer than for its step."""
        times = list[float]()
        for session in ready:
            until = None if session.num_prefill else session.awaited.until(now)
            if until is None:  # it reads its prompt, or no nodes are close
                return None
            times.append(until)
        for session in ready:
            session.defer(min(times))
        return min(times, default=None)

    # Endings ----------------------------------------------------------------------------------------------

    def _finish(self, session: VerifySession, reason: FinishReason, now: float) -> None:
        self._effects.append(Reply(session.key, Finish(reason, session.tree.tip_position)))
        self._effects.append(End(session.key))
        self.counters.num_finished[reason.name] += 1
        self._drop(session, now)

    def _end(self, key: int, error: ForerunError, now: float, keep: bool = True) -> None:
        self._effects.append(End(key, error))
        self.counters.num_finished[error.code.value] += 1
        self._drop(self.sessions[key], now, keep)

    def _end_all(self, now: float) -> None:
        """End all streams after the drain's grace. Their edges continue elsewhere."""
        for key in [*self._unopened, *self.sessions]:
            error = UnavailableError("this verifier has drained; reconnect to another one")
            if key in self.sessions:
                self._end(key, error, now)
            else:
                self._forget_stream(key)
                self._refuse(key, error, now)

    def _refuse(self, key: int, error: ForerunError, now: float) -> None:
        """End a stream that never had a session. A caller without room gets a retry time of its own."""
        if isinstance(error, CapacityError):
            self._vacancies.advise(error, now)
        self.counters.num_refused[error.code.value] += 1
        self._effects.append(End(key, error))

    def _drop(self, session: VerifySession, now: float, keep: bool = True) -> None:
        """Forget the session now. If it is in the running step, its slots become free after that."""
        del self.sessions[session.key]
        self._alarms.set(session.key, None)
        session.end()
        if self.drafter:
            self.drafter.end(session)
        self._vacancies.session_ended(now)
        if session.rows is None:
            self.preemption.leave(session, keep)

    # Time -------------------------------------------------------------------------------------------------

    def _look_after(self, session: VerifySession, now: float) -> None:
        """End the session if one of its timeouts has passed; else set its alarm."""
        at, why = session.times_out(self.config, now)
        if at <= now:
            self._end(session.key, UnavailableError(why, Code.DEADLINE_EXCEEDED), now)
        else:
            self._alarms.set(session.key, at)

    def _forget_stream(self, key: int) -> bool:
        """Stop waiting for the stream's `Open`. Return whether it was still awaited."""
        if self._unopened.pop(key, None) is None:
            return False
        self._alarms.set(key, None)
        return True
