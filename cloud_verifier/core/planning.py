"""Plan a step in stages. An immutable draft of it passes through them, from ready sessions to its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cloud_verifier.core.batching import Batcher, StepDraft
from cloud_verifier.core.draft_budget import DraftBudget
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.node_credit import Credit
from cloud_verifier.core.tenants import Tenants
from cloud_verifier.core.verify_session import VerifySession


class StepPlanner:
    """Plans what a step evaluates for the sessions that are ready. It takes nothing from memory."""

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
        if not draft.members:
            return draft
        config, num_read = self._config, sum(draft.chunks.values())
        for session in draft.decoding:
            session.guess(config.max_nodes_per_session - 1)
        # Each tip, and the nodes below it that are worth their rows.
        most = config.max_nodes_per_session
        room = self._batcher.rows.left(config.max_rows, num_read)
        nodes, num_wanted, longer = self._budget.pick(draft.decoding, draft.bearing, room, most, num_read)
        draft = replace(draft, nodes=nodes, longer=longer)
        self._credit.note(num_wanted, sum(map(len, nodes.values())) - len(nodes))
        if draft.decoding:
            self._credit.rows_pay = self._budget.may_pay(draft.decoding, most - 1)
        if longer and draft.reading:
            draft = self._batcher.keep_pace(draft)
        return self._tenants.trim(draft, now) if self._tenants.has_rates else draft
