"""Plan the next step while the current step runs, so that the engine goes from one to the other at once.

The results of the first step are booked and sent while the second runs. Sessions without drafts have a
predictable next row: the chosen token, one position further. The engine fills in that token. A text that
ends unexpectedly, at a stop token, wastes one row of the next step.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cloud_verifier.core.batching import NOBODY_SPARED, Batcher
from cloud_verifier.core.engine_protocol import IntArray, StepPlan, StepResult
from cloud_verifier.core.kv_memory import KvMemory
from cloud_verifier.core.ledger import Running
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.preemption import Preemption
from cloud_verifier.core.verify_session import VerifySession
from common.errors import LocalError


@dataclass(frozen=True, slots=True)
class NextStep:
    """Holds a step that the engine may begin by itself. Its tokens are the choices of the running step."""

    plan: StepPlan
    sessions: dict[int, VerifySession]
    slots: dict[int, list[int]]  # taken for its rows
    _num_reads: int
    _tokens: IntArray  # [N], those of its items one after the other
    _sources: Sequence[int]  # [N], the items of the running step whose choices they are
    _num_choices: int  # of the running step

    def complete(self, result: StepResult) -> StepPlan | None:
        """Fill in the running step's choices and return the plan; None if `result` does not fit that step.
        The engine's thread may call it."""
        choices, margins = result.choices, result.margins
        if not len(choices) == len(margins) == self._num_choices:
            return None
        chosen = np.concatenate(choices)
        if not len(chosen) == sum(map(len, margins)) == self._num_choices:
            return None
        self._tokens[:] = chosen[self._sources]
        return self.plan

    def began(self, at: float) -> Running:
        """Turn the plan into the running step, because the engine has begun it."""
        for key, session in self.sessions.items():
            session.begin_ahead(self.slots[key])
        return Running(self.sessions, at, len(self.sessions), self._num_reads, 0, NOBODY_SPARED)

    def give_up(self, memory: KvMemory) -> None:
        """Return the slots of the step, because the engine will not run it."""
        for key, session in self.sessions.items():
            memory.settle(session.lease, (), self.slots[key])


class StepsInFlight:
    """Holds the step that the engine runs, and the one that it may begin after that by itself."""

    def __init__(self) -> None:
        self.running: Running | None = None
        self.planned: NextStep | None = None

    @property
    def members(self) -> Sequence[VerifySession]:
        """The sessions of the running step, in the order of its items; empty without one."""
        return list(self.running.sessions.values()) if self.running else ()

    @property
    def planned_keys(self) -> Container[int]:
        """The keys of the sessions in the planned step."""
        return self.planned.sessions if self.planned else ()

    def end(self, result: StepResult) -> Running | None:
        """Return the running step, which has ended; None, and leave it, if the result has another shape."""
        sizes = [len(session.rows.nodes) if session.rows else 0 for session in self.members]
        told = len(result.logprobs) in (0, len(sizes))
        fits = told and list(map(len, result.choices)) == list(map(len, result.margins)) == sizes
        running, self.running = (self.running, None) if fits else (None, self.running)
        return running

    def take_running(self) -> Running:
        """Return the running step, which has failed. Raise `LocalError` if there was none."""
        if self.running is None:
            raise LocalError("a step's end was reported, but no step was running")
        running, self.running = self.running, None
        return running

    def go_on(self, at: float) -> None:
        """Let the planned step run: the engine has begun it at this time."""
        assert self.planned is not None, "asked before"
        self.running, self.planned = self.planned.began(at), None

    def plan_ahead(
        self,
        everybody: Iterable[VerifySession],
        config: SchedulerConfig,
        memory: KvMemory,
        preemption: Preemption,
        batcher: Batcher,
    ) -> NextStep | None:
        """Return the step after the running one; None if it is planned already, could hold more than tips, or
        cannot hold every tip."""
        if self.running is None or self.planned:
            return None
        members = list(self.running.sessions.values())
        going = [session for session in members if not session.ended]
        if not all(session.only_tip for session in going) or any(each.ready for each in everybody):
            return None
        sources = [place for place, each in enumerate(members) if not each.ended and not each.ends_next]
        sessions = [members[place] for place in sources]
        if not sessions or batcher.rows.left(config.max_rows, 0) < len(sessions) or preemption.num_waiting:
            return None
        if sum(len(session.lease.slots) + 1 for session in sessions) > config.max_context:
            return None
        if not all(preemption.has_more(session) for session in sessions):
            return None
        tokens: IntArray = np.zeros(len(sessions), np.int32)
        items, slots = [], dict[int, list[int]]()
        for place, session in enumerate(sessions):
            taken = slots[session.key] = memory.take(session.lease, 1)
            items.append(session.item_ahead(tokens[place : place + 1], taken))
        plan, by_key = StepPlan(tuple(items)), {each.key: each for each in sessions}
        return NextStep(plan, by_key, slots, batcher.reads(plan), tokens, sources, len(members))
