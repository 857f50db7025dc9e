"""The verifier's mind: all sessions, who gets into the next step, and what each step commits.

Sans-IO: messages and step results come in with `now` (seconds, monotonic), effects and plans come out.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from cloud_verifier.core.admission import check_acceptance, check_open
from cloud_verifier.core.effects import Effect, End, Reply
from cloud_verifier.core.session import Progress, VerifySession
from cloud_verifier.core.sharing import Outcome, Sharing
from cloud_verifier.core.slots import SlotPool
from cloud_verifier.core.target import IntArray, StepPlan, StepResult, TargetInfo
from common.acceptance import LOSSLESS, AcceptanceRule
from common.errors import (
    CapacityError,
    Code,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
    UserError,
)
from common.messages import (
    INITIAL_CREDIT,
    Close,
    Commit,
    Drain,
    Finish,
    FinishReason,
    Open,
    Opened,
    Propose,
)
from common.recall import NgramTable, Recall

MAY_BE_NOTHING = ("recall", "shared_ngrams", "rules")
"""The settings of a verifier that are no limits."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one verifier. Each is checked in the constructor."""

    max_sessions: int = 64  # open at once
    max_rows: int = 256  # nodes (tips included) in one step, all sessions
    max_nodes_per_session: int = 16  # of those, for one session; the likeliest 16 hold most of what is right
    prefill_chunk: int = 256  # prompt tokens in one step, all sessions; bounds the step that others wait for
    max_live_nodes: int = 128  # live nodes a session may ever hold here; more are dropped
    min_credit: int = 8  # a session is always let propose this many
    live_node_budget: int = 2048  # live nodes over all sessions; credit divides it
    max_slowdown: float = 0.02  # share of its rate that a session may lose by drafts of others
    idle_timeout: float = 300.0  # seconds after which a session that waits for a Propose ends
    recall: bool = False  # guess what a text repeats of itself; not without fill, the classic scheme
    # Keys of a table of all sessions' texts to guess from, too. 0 = none: by the pace of guessed tokens one
    # user would learn what another has written.
    shared_ngrams: int = 0
    # Acceptance rules that a session may ask for. Lossy ones are named on purpose.
    rules: tuple[AcceptanceRule, ...] = LOSSLESS

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name not in MAY_BE_NOTHING and not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.min_credit > self.max_live_nodes:
            raise UserError(f"min_credit {self.min_credit} exceeds max_live_nodes {self.max_live_nodes}")
        if self.shared_ngrams < 0 or (self.shared_ngrams and not self.recall):
            raise UserError(f"shared_ngrams is {self.shared_ngrams}; it must be 0, or above 0 with recall")
        if self.max_live_nodes < INITIAL_CREDIT:  # else nodes sent before `Opened` were dropped (rule 4)
            raise UserError(f"max_live_nodes is {self.max_live_nodes}; it must be at least {INITIAL_CREDIT}")


class VerifyScheduler:
    """Drives all sessions of one engine.

    The driver calls `on_open`, `on_propose`, `on_close` as messages come; whenever the engine is free
    `next_step` for a plan and, when it has run, `on_step_done` (or `on_step_failed`); `on_timer` when
    `next_timer_at` has come; `drain` when the process should go. After each it carries out `effects()`.
    Session keys are the caller's, one per stream, never used twice.
    """

    def __init__(self, info: TargetInfo, config: SchedulerConfig | None = None) -> None:
        self.info = info
        self.config = config or SchedulerConfig()
        self.pool = SlotPool(info.num_slots)
        self.sharing = Sharing(self.config.max_slowdown)
        self.draining = False
        self.ngrams = NgramTable(self.config.shared_ngrams) if self.config.shared_ngrams else None
        self.sessions: OrderedDict[int, VerifySession] = OrderedDict()  # least recently served first
        self.num_steps = 0
        self.num_evaluated = 0  # nodes, tips included
        self._effects: list[Effect] = []
        self._running: dict[int, VerifySession] | None = None  # in the order of the plan's items
        self._step_began_at = 0.0
        self._step_rows = 0
        self._suspects: deque[int] = deque()  # sessions of a failed step, to be tried one by one
        self._eos = frozenset(info.eos_token_ids)

    # Inputs -----------------------------------------------------------------------------------------------

    def on_open(self, key: int, request: Open, now: float) -> None:
        """A stream's `Open`. Answers `Opened`, or ends the stream with the reason."""
        if key in self.sessions:
            self._end(key, PeerError("a second Open came on this stream", Code.FAILED_PRECONDITION))
            return
        try:
            check_open(request, self.info, self.draining)
            check_acceptance(request.acceptance, self.config.rules)
            session = self._admit(key, request, now)
        except ForerunError as error:
            self._effects.append(End(key, error))
            return
        credit = session.credit_told = self._credit()
        self._effects.append(Reply(key, Opened(session.tree.tip_position, credit)))
        finish = session.finish_reason()
        if finish is not None:
            self._finish(session, finish)

    def on_propose(self, key: int, message: Propose, now: float) -> None:
        """Nodes from the edge. Ignored for a session that has ended, since they may have crossed its end."""
        session = self.sessions.get(key)
        if session is None:
            return
        try:
            session.receive(message, now)
        except ForerunError as error:
            self._end(key, error)

    def on_violation(self, key: int, error: ForerunError, now: float) -> None:
        """A message that breaks the protocol before it is one: its stream ends with the error, no other."""
        if key in self.sessions:
            self._end(key, error)
        else:
            self._effects.append(End(key, error))

    def on_close(self, key: int, message: Close | None, now: float) -> None:
        """The edge said `Close`, or its stream is gone (None). Its slots are freed."""
        session = self.sessions.get(key)
        if session is None:
            return
        if message is None:
            self._drop(session)
        else:
            self._finish(session, FinishReason.CANCELLED)

    def next_step(self, now: float) -> StepPlan | None:
        """The next ragged batch, or None while a step runs or nothing is to do."""
        if self._running is not None:
            return None
        ready = self._ready()
        chunks = self._prefill_chunks(ready)
        decoding = [session for session in ready if self._reaches_tip(session, chunks)][
            : self.config.max_rows
        ]
        for session in decoding:
            session.guess(self.config.max_nodes_per_session - 1)
        limits = self.config.max_rows, self.config.max_nodes_per_session
        nodes = self.sharing.pick(decoding, ready, *limits)
        members = [session for session in ready if session.key in nodes or chunks.get(session.key)]
        if not members:
            return None
        items = [s.plan(chunks.get(s.key, 0), nodes.get(s.key, ()), self.pool) for s in members]
        self._running = {session.key: session for session in members}
        self._step_began_at = now
        for session in members:
            self.sessions.move_to_end(session.key)
        plan = StepPlan(tuple(items))
        self._step_rows = plan.num_rows
        return plan

    def on_step_done(self, result: StepResult, now: float) -> None:
        """The choices of the running step: commit, reply, and free what died."""
        if not self._answers_running(result):
            self.on_step_failed(LocalError("the engine's choices do not fit the step it was given"), now)
            return
        outcomes = list[Outcome]()
        for session, choices in zip(self._take_running(), result.choices, strict=True):
            num_won = self._apply(session, choices, now)
            outcomes.append(Outcome(session, max(0, len(choices) - 1), num_won))
        self.sharing.step_time.sample(self._step_rows, now - self._step_began_at)
        self.sharing.settle(outcomes)
        self.num_steps += 1

    def on_step_failed(self, error: ForerunError, now: float) -> None:
        """The engine could not run the step. A session that was alone in it ends with the error; several are
        tried again one by one, so that one bad request ends only itself."""
        running = self._take_running()
        for session in running:
            session.abort_step(self.pool)
            if session.ended:
                session.abandon(self.pool)
            elif len(running) == 1:
                self._end(session.key, error)
            else:
                self._suspects.append(session.key)

    def on_timer(self, now: float) -> None:
        """End sessions that have waited for a Propose longer than the idle time."""
        for session in list(self.sessions.values()):
            if self._waits(session) and session.waits_since + self.config.idle_timeout <= now:
                message = f"no Propose for {self.config.idle_timeout:.0f} s on a session without fill"
                self._end(session.key, UnavailableError(message, Code.DEADLINE_EXCEEDED))

    def drain(self, grace: float, now: float) -> None:
        """Admit nobody any more and tell every session to reconnect elsewhere within `grace` seconds."""
        self.draining = True
        for key in self.sessions:
            self._effects.append(Reply(key, Drain(round(grace * 1e6))))

    # Outputs ----------------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """What to do now, in order; each is handed out once."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def idle(self) -> bool:
        """Whether no session is open and no step runs."""
        return not self.sessions and self._running is None

    @property
    def next_timer_at(self) -> float | None:
        """When `on_timer` is due, seconds; None for never."""
        waiting = [s.waits_since for s in self.sessions.values() if self._waits(s)]
        return min(waiting) + self.config.idle_timeout if waiting else None

    def check_integrity(self) -> None:
        """Raise `LocalError` unless every slot is free or owned exactly once and every tree is whole."""
        owned = [slot for s in self._owners() for slot in s.slots.view.tolist()]
        owned += [slot for s in self._owners() if s.rows for slot in s.rows.slots.tolist()]
        if len(set(owned)) != len(owned) or len(owned) + self.pool.num_free != self.pool.num_slots:
            raise LocalError(f"{len(owned)} slots owned, {self.pool.num_free} free of {self.pool.num_slots}")
        if sum(s.reserved for s in self._owners()) != self.pool.num_reserved:
            raise LocalError(f"{self.pool.num_reserved} slots are reserved by nobody in particular")
        for session in self.sessions.values():
            session.tree.check_integrity()

    # Admission --------------------------------------------------------------------------------------------

    def _admit(self, key: int, request: Open, now: float) -> VerifySession:
        if len(self.sessions) >= self.config.max_sessions:
            raise CapacityError(
                f"all {self.config.max_sessions} sessions of this verifier are taken; try later"
            )
        stop_ids = request.sampling.ends(self._eos)
        limit = self.config.max_live_nodes
        recall = Recall(request.prompt, self.ngrams) if self.config.recall and request.fill else None
        session = VerifySession(key, request, self.info.vocab_size, stop_ids, limit, now, recall)
        need = session.max_length + self.config.max_nodes_per_session
        if need > self.pool.num_slots:
            raise UserError(
                f"this session may need {need} KV slots and the verifier has {self.pool.num_slots} in all; "
                "shorten the prompt or ask for fewer max_tokens",
                Code.OUT_OF_RANGE,
            )
        self.pool.reserve(need)
        session.reserved = need
        self.sessions[key] = session
        return session

    def _credit(self) -> int:
        share = self.config.live_node_budget // max(1, len(self.sessions))
        return max(self.config.min_credit, min(self.config.max_live_nodes, share))

    # The step ---------------------------------------------------------------------------------------------

    def _ready(self) -> list[VerifySession]:
        """Who could be in the next step. After a failed one its sessions run alone, to find who broke it."""
        while self._suspects:
            suspect = self.sessions.get(self._suspects.popleft())
            if suspect is not None and suspect.ready:
                return [suspect]
        return [session for session in self.sessions.values() if session.ready]

    def _prefill_chunks(self, ready: list[VerifySession]) -> dict[int, int]:
        """Prefill rows by session key, oldest session first, `prefill_chunk` in all."""
        left, chunks = self.config.prefill_chunk, dict[int, int]()
        prefilling = [session for session in ready if session.num_prefill]
        for session in sorted(prefilling, key=lambda s: (s.opened_at, s.key)):
            chunks[session.key] = min(left, session.num_prefill)
            left -= chunks[session.key]
        return chunks

    @staticmethod
    def _reaches_tip(session: VerifySession, chunks: dict[int, int]) -> bool:
        return session.num_prefill == chunks.get(session.key, 0) and session.may_evaluate_tip

    def _answers_running(self, result: StepResult) -> bool:
        sessions = list((self._running or {}).values())
        sizes = [len(session.rows.nodes) if session.rows else 0 for session in sessions]
        return [len(choices) for choices in result.choices] == sizes

    def _apply(self, session: VerifySession, choices: IntArray, now: float) -> int:
        """One session's part of the step that is done; how many tokens more than one it brought."""
        if session.ended:
            session.abort_step(self.pool)
            session.abandon(self.pool)
            return 0
        queue_time = self._step_began_at - session.ready_at
        progress = session.apply(choices, self.pool, now)
        self.num_evaluated += len(choices)
        if progress.tokens:
            self._commit(session, progress, len(choices), queue_time, now)
        return max(0, len(progress.tokens) - 1)

    def _take_running(self) -> list[VerifySession]:
        if self._running is None:
            raise LocalError("a step was reported that had not begun")
        running, self._running = list(self._running.values()), None
        return running

    def _commit(
        self, session: VerifySession, progress: Progress, evaluated: int, queue_time: float, now: float
    ) -> None:
        credit = self._credit()
        told, session.credit_told = session.credit_told, credit
        echo = session.take_echo()
        hold = now - session.proposed_at if echo else 0.0
        message = Commit(
            start=session.tree.tip_position + 1 - len(progress.tokens),
            tokens=tuple(progress.tokens),
            server_made=progress.server_made,
            echo=echo,
            hold_us=round(hold * 1e6),
            queue_us=max(0, round(queue_time * 1e6)),
            compute_us=round((now - self._step_began_at) * 1e6),
            credit=credit if credit != told else None,
            evaluated=evaluated,
        )
        self._effects.append(Reply(session.key, message))
        if progress.finish is not None:
            self._finish(session, progress.finish)

    # Endings ----------------------------------------------------------------------------------------------

    def _finish(self, session: VerifySession, reason: FinishReason) -> None:
        self._effects.append(Reply(session.key, Finish(reason, session.tree.tip_position)))
        self._effects.append(End(session.key))
        self._drop(session)

    def _end(self, key: int, error: ForerunError) -> None:
        self._effects.append(End(key, error))
        self._drop(self.sessions[key])

    def _drop(self, session: VerifySession) -> None:
        """Forget the session now; its slots wait for the running step, if it is in it."""
        del self.sessions[session.key]
        session.ended = True
        if session.rows is None:
            session.abandon(self.pool)

    def _waits(self, session: VerifySession) -> bool:
        return not session.may_evaluate_tip and session.num_prefill == 0 and session.rows is None

    def _owners(self) -> list[VerifySession]:
        """Sessions that own slots: the open ones and those that ended within the running step."""
        running = list((self._running or {}).values())
        return list(self.sessions.values()) + [s for s in running if s.key not in self.sessions]
