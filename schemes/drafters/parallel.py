"""Drafts with several tokens of one decode (PARD, arXiv 2504.18583; ParallelSpec, arXiv 2410.05589).

Behind a node that it evaluates, the group puts masks: tokens that no text holds, and that such a draft was
trained with (`training.parallel`). The row of the j-th mask says what follows j unknown tokens. The group
keeps these rows, and answers later draft steps from them without a decode. So siblings share the rows of
their level, and a decode buys a level of the tree for each mask, and its own.

To the model masks are tokens like others. Their KV goes with the step. A token that was answered by a mask is
evaluated where a decode below it needs its KV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from common.errors import ForerunError, UserError
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Expansion, Reroot
from edge_client.draft.batch_plan import NO_SEQUENCE, BatchPlan, DraftNode, EngineSurprise
from edge_client.draft.branches import Sequences
from edge_client.draft.candidates import Logits
from edge_client.draft.group import DraftGroup, GroupMember
from edge_client.draft.llama_session import LlamaSession
from edge_client.draft.shared_model import PARALLEL


def masks_of(runtime: LlamaRuntime) -> tuple[int, ...]:
    """Return the mask tokens of a parallel draft. Raises `UserError` if its metadata names no such tokens."""
    told = runtime.metadata(PARALLEL)
    try:
        masks = tuple(int(token) for token in told.split(","))
    except ValueError:
        masks = ()
    if not masks or not 0 <= min(masks) <= max(masks) < runtime.num_vocab:
        raise UserError(
            f"{runtime.path} has {told!r} as {PARALLEL}; token ids with commas were expected, so write the "
            "file again by forerun align --parallel"
        )
    return masks


@dataclass(frozen=True, slots=True)
class RowsAhead:
    """Holds the logits [vocabulary] of the masks behind an evaluated node, the first mask's first."""

    position: int  # of the node
    rows: list[Logits] = field(default_factory=list)


class ParallelSession(LlamaSession):
    """Plans a session's rows as `LlamaSession`, with masks behind them, and keeps what these say."""

    def __init__(
        self,
        runtime: LlamaRuntime,
        sequences: Sequences,
        trunk: int,
        num_candidates: int,
        clock: Callable[[], float],
        masks: tuple[int, ...],
    ) -> None:
        super().__init__(runtime, sequences, trunk, num_candidates, clock)
        self.levels = 0  # that the draft step under way has bought
        self._masks = masks
        self._ahead: dict[DraftNode, RowsAhead] = {}  # of live nodes: the rows that answer for nodes below
        self._under_way: dict[DraftNode, RowsAhead] = {}  # masks of the draft step: the rows that they join
        self._answered: set[int] = set()  # positions of committed tokens without KV that a mask answered

    def begin(
        self, tokens: Sequence[int], tip: int, sampling: SamplingParams, plain: int = 0, generated: int = 0
    ) -> None:
        self._ahead.clear()
        self._under_way.clear()
        self._answered.clear()
        super().begin(tokens, tip, sampling, plain, generated)

    def answer_ahead(self, nodes: Iterable[DraftNode]) -> None:
        """Give expansions to those nodes that kept rows reach. Raises as `rank`."""
        rows, reached = list[Logits](), list[DraftNode]()
        for node in nodes:  # parents first
            ahead = None if node.parent is None else self._ahead.get(node.parent)
            if ahead is not None and node.position - ahead.position <= len(ahead.rows):
                self._ahead[node] = ahead
                rows.append(ahead.rows[node.position - ahead.position - 1])
                reached.append(node)
        if reached:
            super().rank(np.stack(rows), reached)

    def add_masks(self, nodes: Sequence[DraftNode], room: int) -> list[DraftNode]:
        """Return new nodes of masks, `room` at most, behind those `nodes` that no other one follows."""
        masks, above = list[DraftNode](), {node.parent for node in nodes}
        for node in nodes:
            if node not in above and len(masks) < room:
                ahead = self._ahead[node] = RowsAhead(node.position)
                chain = self.foresee(node, self._masks[: room - len(masks)])
                self._under_way |= dict.fromkeys(chain, ahead)
                masks += chain
        return masks

    def is_mask(self, node: DraftNode) -> bool:
        """Tell whether a node is a mask of the draft step under way."""
        return node in self._under_way

    def drop_masks(self) -> None:
        """Remove the masks of the draft step, and their KV."""
        if self._under_way:
            dead = tuple(node.id for node in self._under_way)
            self._under_way.clear()
            super().reroot(Reroot((), dead))

    def reroot(self, change: Reroot) -> None:
        if self._matcher is None:
            self._follow(change.committed)
        passed = [self._tip, *(self._branches.nodes.get(known) for known, _ in change.committed)]
        self._answered |= {
            node.position for node in passed if node and node.expansion and node.sequence == NO_SEQUENCE
        }
        super().reroot(change)
        self._answered = {position for position in self._answered if position >= self.num_held}
        live = {self._tip, *self._branches.nodes.values()}
        self._ahead = {node: ahead for node, ahead in self._ahead.items() if node in live}

    def _follow(self, committed: Iterable[tuple[int, int]]) -> None:
        """Give nodes to committed tokens, as long as each is what kept rows had as the best.

        The target writes several tokens in a slow draft step. What its masks say below these is needed then.
        """
        above = self._tip
        for node_id, token in committed:
            node = self._branches.nodes.get(node_id)
            if node is None:
                if above.expansion is None or above.expansion.tokens[:1] != (token,):
                    return
                node = DraftNode(node_id, above, token, above.position + 1)
                self.answer_ahead([node])
                if node.expansion is None:
                    return
                self._branches.nodes[node_id] = node
            above = node

    def plan_text(self, count: int, plan: BatchPlan) -> None:
        """Add rows as `LlamaSession`. A token that a mask answered was no token to read."""
        first, start = len(plan.tokens), self.num_held
        super().plan_text(count, plan)
        for row in range(first, len(plan.tokens)):
            if (position := start + row - first) in self._answered:
                plan.nodes[row] = DraftNode(0, None, plan.tokens[row], position)

    def rank(self, logits: Logits, nodes: Sequence[DraftNode]) -> None:
        own = [place for place, node in enumerate(nodes) if node not in self._under_way]
        for row, node in zip(logits, nodes, strict=True):
            if (ahead := self._under_way.get(node)) is not None:
                ahead.rows.append(row.copy())
                node.expansion = Expansion(node.id, (), ())
                self.levels = max(self.levels, 1 + len(ahead.rows))
        if own:
            self.levels = max(self.levels, 1)
            super().rank(logits if len(own) == len(nodes) else logits[own], [nodes[place] for place in own])


class ParallelGroup(DraftGroup):
    """Schedules draft steps as `DraftGroup`, with masks as far as a batch has room for them.

    A recurrent model, whose rows follow each other, gets none. Raises `UserError` as `masks_of` too.
    """

    def __init__(self, runtime: LlamaRuntime, size: int) -> None:
        self._masks = () if runtime.is_recurrent else masks_of(runtime)[: runtime.max_rows - 1]
        super().__init__(runtime, size)
        self.levels = 1 + len(self._masks)

    def _session(self, trunk: int, num_candidates: int) -> ParallelSession:
        own = self._runtime, self._sequences, trunk, num_candidates, self._clock
        return ParallelSession(*own, self._masks)

    def ask(self, index: int, rows: Sequence[DraftRow]) -> None:
        member, session = self.members[index], self._parallel(index)
        session.levels = 0
        super().ask(index, rows)
        if not member.todo:
            return
        try:
            if not self._is_held_back(member):
                session.answer_ahead(member.todo)
        except ForerunError as error:
            self._fail(member, error)
            return
        member.todo = [node for node in member.todo if node.expansion is None]
        num_drafting = sum(each.is_drafting for each in self.members)
        room = self._runtime.max_rows // max(1, num_drafting) - len(member.todo)
        member.todo += session.add_masks(member.todo, room)
        self._answer_if_done(member)

    def _answer_if_done(self, member: GroupMember) -> None:
        if member.asked is not None and not member.todo:
            session = self._parallel(member.index)
            session.drop_masks()
            member.reading = replace(member.reading, levels=session.levels)
        super()._answer_if_done(member)

    def _strike(self, member: GroupMember, surprise: EngineSurprise) -> None:
        session = self._parallel(member.index)
        member.todo = [node for node in member.todo if not session.is_mask(node)]  # room for them comes last
        session.drop_masks()
        super()._strike(member, surprise)
        self._answer_if_done(member)

    def _parallel(self, index: int) -> ParallelSession:
        session = self.members[index].session
        assert isinstance(session, ParallelSession), "made by `_session`"
        return session
