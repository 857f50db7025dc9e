"""Plan a step in stages. An immutable draft of it passes through them, from ready sessions to its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cloud_verifier.core.batching import Batcher, StepDraft
from cloud_verifier.core.draft_budget import DraftBudget
from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.core.kv_memory import KvMemory
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.node_credit import Credit
from cloud_verifier.core.tenants import Tenants
from cloud_verifier.core.verify_session import VerifySession


class StepPlanner:
    """Plans what a step evaluates for the sessions that are ready. Only `rows` takes anything from memory."""

    def __init__(
        self,
        config: SchedulerConfig,
        batcher: Batcher,
        budget: DraftBudget,
        credit: Credit,
        tenants: Tenants,
    ) -> None:
        self._config = config
        self._batcher = batcher
        self._budget = budget
        self._credit = credit
        self._tenants = tenants

    def draft(self, ready: Sequence[VerifySession], now: float, alone: bool) -> StepDraft:
        """Return a step of `ready` sessions, least recently served first; without members if none fits.
        `alone`: only one session is open."""
        draft = self._batcher.batch(ready, alone)  # tips, and chunks of prompts
        if draft.members:
            draft = self._with_nodes(draft)
            draft = self._with_pace(draft)
            draft = self._tenants.trim(draft, now)  # quotas
        return draft

    @staticmethod
    def rows(draft: StepDraft, memory: KvMemory) -> StepPlan:
        """Return the rows of a draft, with slots from `memory`."""
        return StepPlan(
            tuple(
                session.plan(draft.chunks.get(session.key, 0), draft.nodes.get(session.key, ()), memory)
                for session in draft.members
            )
        )

    def recall(self, decoding: Iterable[VerifySession]) -> None:
        """Add the guesses that are copied from earlier in the same text."""
        if self._config.recall:
            for session in decoding:
                session.guess(self._config.max_nodes_per_session - 1)

    def look_whether_rows_pay(self, sessions: Sequence[VerifySession]) -> None:
        """Give credit only while even sure nodes save time."""
        if sessions:
            most = self._config.max_nodes_per_session - 1
            self._credit.rows_pay = self._budget.may_pay(sessions, most)

    def _with_nodes(self, draft: StepDraft) -> StepDraft:
        """Pick each tip, and the nodes below it that are worth their rows."""
        self.recall(draft.decoding)
        num_read = sum(draft.chunks.values())
        max_rows = self._batcher.rows.left(self._config.max_rows, num_read)
        nodes, num_wanted, longer = self._budget.pick(
            draft.decoding, draft.bearing, max_rows, self._config.max_nodes_per_session, num_read
        )
        self._credit.note(num_wanted, sum(map(len, nodes.values())) - len(nodes))
        self.look_whether_rows_pay(draft.decoding)
        return replace(draft, nodes=nodes, longer=longer)

    def _with_pace(self, draft: StepDraft) -> StepDraft:
        """Let prompts keep their share of a step that nodes make longer."""
        paced = self._batcher.keep_pace(draft)
        ended = paced.decoding[len(draft.decoding) :]  # their prompts end in the longer step
        return replace(paced, nodes={**draft.nodes, **{each.key: [each.tree.tip] for each in ended}})
