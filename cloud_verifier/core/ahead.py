"""The step after the running one, planned before that one is over: an engine goes from one to the next at
once, and what the first brought is booked and sent while the second runs.

What a step will bring is not known, but where sessions have no drafts it is known what comes next: each goes
on from the token that the engine chooses, one position further. Only that token is missing, and the engine
has it first. A text that ends by surprise, at a stop token, has a row of the next step in vain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cloud_verifier.core.batching import NOBODY_SPARED, Batcher
from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.ledger import Running
from cloud_verifier.core.memory import KvMemory
from cloud_verifier.core.relief import Relief
from cloud_verifier.core.room import Room
from cloud_verifier.core.session import Rows, VerifySession
from cloud_verifier.core.target import IntArray, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class NextStep:
    """A plan whose tokens are the choices of the step that runs."""

    plan: StepPlan
    _tokens: IntArray  # [N], those of its items one after the other
    _sources: IntArray  # [N], the items of the running step whose choices they are
    _num_choices: int  # of the running step

    def complete(self, result: StepResult) -> StepPlan | None:
        """With what the running step brought, it can be run; None if the result does not fit that step. May
        be called in the engine's thread."""
        choices, margins = result.choices, result.margins
        if not len(choices) == len(margins) == self._num_choices:
            return None
        found = np.concatenate(choices)
        if not len(found) == sum(map(len, margins)) == self._num_choices:
            return None
        self._tokens[:] = found[self._sources]
        return self.plan


@dataclass(frozen=True, slots=True)
class Planned:
    """A step that the engine may begin by itself."""

    step: NextStep
    sessions: dict[int, VerifySession]
    slots: dict[int, list[int]]  # taken for its rows
    num_reads: int

    def began(self, at: float) -> Running:
        """The engine has begun it. What was known of its sessions is what they are now."""
        for key, session in self.sessions.items():
            session.rows = Rows(0, [session.tree.tip], self.slots[key], False)
        return Running(
            sessions=self.sessions,
            began_at=at,
            num_rows=len(self.sessions),
            num_reads=self.num_reads,
            num_prefilled=0,
            spared=NOBODY_SPARED,
        )

    def give_up(self, memory: KvMemory) -> None:
        """It will not be run."""
        for key, session in self.sessions.items():
            memory.settle(session.lease, (), self.slots[key])


class Lookahead:
    """Plans a step from the one that runs, if that says all. Driven by `VerifyScheduler`."""

    def __init__(
        self, config: SchedulerConfig, memory: KvMemory, room: Room, rows: Relief, batcher: Batcher
    ) -> None:
        self._config = config
        self._memory = memory
        self._room = room
        self._rows = rows
        self._batcher = batcher

    def plan(self, running: Running, everybody: Iterable[VerifySession]) -> Planned | None:
        """The next step, or None if more than tips could be in it, or not all of them."""
        members = list(running.sessions.values())
        going = [session for session in members if not session.ended]
        if not all(session.only_tip for session in going) or any(each.ready for each in everybody):
            return None
        sources = [place for place, each in enumerate(members) if not each.ended and not each.ends_next]
        sessions = [members[place] for place in sources]
        if not sessions or not self._fit(sessions):
            return None
        return self._planned(sessions, sources, len(members))

    def _fit(self, sessions: Sequence[VerifySession]) -> bool:
        if self._rows.left(self._config.max_rows, 0) < len(sessions) or self._room.num_waiting:
            return False
        if sum(len(session.lease.slots) + 1 for session in sessions) > self._config.max_context:
            return False
        return all(self._room.has_more(session) for session in sessions)

    def _planned(
        self, sessions: Sequence[VerifySession], sources: Sequence[int], num_choices: int
    ) -> Planned:
        tokens: IntArray = np.zeros(len(sessions), np.int32)
        items, slots = [], dict[int, list[int]]()
        for place, session in enumerate(sessions):
            taken = slots[session.key] = self._memory.take(session.lease, 1)
            items.append(session.item_ahead(tokens[place : place + 1], taken))
        plan = StepPlan(tuple(items))
        step = NextStep(plan, tokens, np.array(sources, np.int64), num_choices)
        return Planned(step, {each.key: each for each in sessions}, slots, self._batcher.reads(plan))
