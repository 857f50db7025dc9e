"""Tracks one session's text and live tree on a llama.cpp context that sessions share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from common.errors import CapacityError, LocalError
from common.grammar import Matcher
from common.llama.runtime import ByteArray, LlamaRuntime
from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Expansion, Reroot
from edge_client.draft.batch_plan import NO_SEQUENCE, NOT_PLANNED, BatchPlan, DraftNode, EngineSurprise
from edge_client.draft.branches import Branches, Sequences
from edge_client.draft.candidates import Logits, Ranker
from edge_client.draft.state_branches import StateBranches

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ParkedText:
    """Holds a text's KV outside the cells."""

    tokens: list[int]
    state: ByteArray  # of `LlamaRuntime.seq_state`


class LlamaSession:
    """Plans a session's rows and tracks its KV cells. The caller evaluates the batch.

    The caller invokes `begin`, then `reroot` and draft steps in any order. A draft step is `node_of` each
    row, `plan_rows` or `plan_text` into a batch, and a llama_decode. After success come `settle` and `rank`.
    After failure come `retract`, `drop_branches` or `clear`, from least to most forgetful. One thread drives
    all sessions of a context. `num_resyncs` counts all surprises.
    """

    def __init__(
        self,
        runtime: LlamaRuntime,
        sequences: Sequences,
        trunk: int,
        num_candidates: int = 5,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.num_resyncs = 0
        self.mask_time = 0.0  # seconds of the latest `rank` that made masks
        self._clock = clock
        self._runtime = runtime
        self._ranker = Ranker(runtime.num_vocab, num_candidates)
        self._sequences = sequences
        branches = StateBranches if runtime.is_recurrent else Branches
        self._branches: Branches = branches(runtime, sequences, trunk)
        self._tokens: list[int] = []  # committed; the last is the tip
        self._num_prompt = 0  # tokens before the text
        self._tip = DraftNode(NO_SEQUENCE, None, 0, -1)
        self._matcher: Matcher | None = None  # of the text's grammar
        self._reached = 0  # trunk cells after the planned batch; 0: as many as now
        self._num_foreseen = 0

    @property
    def num_missing(self) -> int:
        """Return the committed tokens without KV before the tip; 0 if the tip has KV."""
        return self._tip.position - self.num_held if self._tip.sequence == NO_SEQUENCE else 0

    @property
    def num_held(self) -> int:
        """Return how many leading tokens of the text have KV in the trunk."""
        return self._branches.trunk_length

    @property
    def num_branches(self) -> int:
        """Return the number of sequences of the live tree."""
        return len(self._branches.heads)

    def num_common(self, tokens: Sequence[int]) -> int:
        """Return how many leading `tokens` have KV in the trunk. Any thread may call."""
        return min(num_equal(self._tokens, tokens), self.num_held)

    def begin(
        self, tokens: Sequence[int], tip: int, sampling: SamplingParams, plain: int = 0, generated: int = 0
    ) -> None:
        """Begin a text whose last `generated` tokens are not prompt. Shared KV is kept.

        Raises `CapacityError` for a text too long, `LocalError` for none, `UserError` for its grammar.
        """
        if not tokens or not 0 <= min(tokens) <= max(tokens) < self._runtime.num_vocab:
            raise LocalError(
                f"the draft was started on {len(tokens)} tokens, none or some outside its vocabulary"
            )
        if len(tokens) > self._runtime.n_ctx:
            raise self.too_small(len(tokens))
        self._matcher = self._runtime.grammars.matcher(sampling.grammar) if sampling.grammar else None
        shared = min(self.num_common(tokens), len(tokens) - 1)
        self._branches.nodes.clear()
        self._tokens = list(tokens)
        self._tip = DraftNode(tip, None, self._tokens[-1], len(tokens) - 1)
        self._num_prompt = len(tokens) - generated
        self._ranker.start(sampling, self._tokens[: self._num_prompt], plain)
        self._cut_back(shared)

    def borrow(self, lender: LlamaSession) -> None:
        """Share the cells of another session's trunk for the common prefix."""
        stop = min(lender.num_common(self._tokens), len(self._tokens) - 1)
        if self._branches.can_extend_trunk(lender.num_held, stop):
            self._branches.extend_trunk(lender._branches.trunk, stop)

    def park(self) -> ParkedText:
        """Move the text's KV out of the cells."""
        parked = ParkedText(self._tokens[: self.num_held], self._runtime.seq_state(self._branches.trunk))
        self.clear()
        return parked

    def load(self, parked: ParkedText) -> bool:
        """Add the KV of the common prefix. Return False if it adds nothing or the whole finds no room."""
        stop = min(num_equal(parked.tokens, self._tokens), len(self._tokens) - 1)
        if stop < len(parked.tokens) > self._runtime.window > 0:
            return False  # only cells in the window of its last token were copied out
        if not self._branches.can_extend_trunk(len(parked.tokens), stop):
            return False
        try:
            branch = self._sequences.take()
        except EngineSurprise:
            return False
        if done := self._runtime.seq_restore(branch, parked.state):
            self._branches.extend_trunk(branch, stop)
        self._runtime.seq_remove(branch, 0)
        self._sequences.idle.append(branch)
        return done

    def reroot(self, change: Reroot) -> None:
        """Move committed KV to the trunk and free dead branches, without evaluation."""
        try:
            if change.committed:
                self._commit(change)
            self._branches.prune(change.dead, self._tip)
        except EngineSurprise as surprise:
            self.note(surprise)
            self.clear()

    def _commit(self, change: Reroot) -> None:
        """Move the tip. If an id stood for another token, forget the tree and raise `EngineSurprise`."""
        above: DraftNode | None = self._tip
        for known, token in change.committed:
            if above is not None:
                above = self._branches.nodes.get(known) or self._adopt(known, above, token)
        node_id, token = change.committed[-1]
        drafted = ((self._branches.nodes.get(known), token) for known, token in change.committed)
        agrees = all(node is None or node.token == token for node, token in drafted)
        self._tokens += [token for _, token in change.committed]
        tip = self._branches.commit([known for known, _ in change.committed]) if agrees else None
        self._tip = tip or DraftNode(node_id, None, token, len(self._tokens) - 1)
        self._tip.parent = None
        if self._tip.sequence != NO_SEQUENCE:
            self._tip.sequence = self._branches.trunk
        if not agrees:
            self._branches.nodes.clear()
            raise EngineSurprise("a committed token differs from the one that was drafted under its id")

    def node_of(self, row: DraftRow) -> DraftNode:
        """Return the node of a row. Raises `LocalError` if its parent is not live."""
        if row.id == self._tip.id:
            return self._tip
        node = self._branches.nodes.get(row.id)
        if node is not None:
            return node
        parent = self._parent_of(row)
        node = self._adopt(row.id, parent, row.token)
        if node is None:
            node = DraftNode(row.id, parent, row.token, row.position)
            self._branches.nodes[row.id] = node
        return node

    def foresee(self, above: DraftNode, tokens: Sequence[int]) -> list[DraftNode]:
        """Return a chain of new nodes with these tokens below `above`. A row or a commit with the same parent
        and token takes a node over; all others die with their parent."""
        chain = list[DraftNode]()
        for token in tokens:
            self._num_foreseen += 1
            above = DraftNode(-self._num_foreseen, above, token, above.position + 1)
            self._branches.nodes[above.id] = above
            chain.append(above)
        return chain

    def _adopt(self, node_id: int, parent: DraftNode, token: int) -> DraftNode | None:
        """Return a foreseen node under this id. Nothing is searched where none was ever foreseen."""
        return self._branches.adopt(node_id, parent, token) if self._num_foreseen else None

    def _parent_of(self, row: DraftRow) -> DraftNode:
        parent = None if row.parent is None else self._branches.nodes.get(row.parent)
        if row.parent == self._tip.id:
            parent = self._tip
        if parent is None or parent.position != row.position - 1:
            raise LocalError(
                f"node {row.id} at position {row.position} is to be drafted below {row.parent}, "
                f"which is not live there (tip {self._tip.id} at {self._tip.position})"
            )
        return parent

    def plan_rows(self, nodes: Iterable[DraftNode], plan: BatchPlan) -> None:
        """Add rows for nodes without an expansion, for their ancestors and for the missing text.

        A node that must wait for a later batch gets no row.
        Raises `EngineSurprise` without room for all; `plan` then holds some.
        """
        for node in nodes:
            if node.expansion is None:
                if node.sequence == NO_SEQUENCE and not self._plan_path(node, plan):
                    continue
                if node.row == NOT_PLANNED:
                    raise EngineSurprise(f"node {node.id} was evaluated without asking for its logits")
                plan.outputs[node.row] = 1

    def plan_text(self, count: int, plan: BatchPlan) -> None:
        """Add rows without logits for the next `count` committed tokens that have no KV."""
        start = self.num_held
        self._reached = min(self._tip.position, start + count)
        trunk = self._branches.trunk
        for position in range(start, self._reached):
            plan.add_token(self._tokens[position], position, trunk)

    def _plan_path(self, node: DraftNode, plan: BatchPlan) -> bool:
        """Add rows for a node and for its ancestors without KV. Return False if the node must wait."""
        missing = [node]
        while (parent := missing[-1].parent) is not None and parent.sequence == NO_SEQUENCE:
            missing.append(parent)
        if missing[-1].parent is None:
            self._plan_tip(missing.pop(), plan)
        has_row = all(self._branches.place(below, plan) for below in reversed(missing))
        if len(plan.tokens) > self._runtime.n_batch:
            raise EngineSurprise("the rows and their ancestors exceed a batch", full=True)
        return has_row

    def _plan_tip(self, tip: DraftNode, plan: BatchPlan) -> None:
        """Add rows for the tip and for the verifier's own tokens before it, which have no KV."""
        if self.num_held <= self._num_prompt:
            self._branches.keep_beginning()
        self.plan_text(tip.position, plan)
        self._reached = tip.position + 1
        tip.sequence = self._branches.trunk
        plan.add(tip)

    def settle(self, nodes: Iterable[DraftNode | None]) -> None:
        """Note that the session's rows for `nodes` are evaluated."""
        for node in nodes:
            if node is not None:
                node.row = NOT_PLANNED
        if self._reached:
            self._branches.trunk_length = self._reached
            self._reached = 0

    def rank(self, logits: Logits, nodes: Sequence[DraftNode]) -> None:
        """Set nodes' expansions, empty after a break of the grammar. Overwrites `logits`."""
        self._rank(logits, nodes, self._tokens, self._num_prompt)

    def _rank(self, logits: Logits, nodes: Sequence[DraftNode], text: Sequence[int], num_prompt: int) -> None:
        """Rank behind the committed `text`, which begins with `num_prompt` tokens of a prompt."""
        began = self._clock()
        broken = [] if self._matcher is None else self._mask(self._matcher, logits, nodes, text[num_prompt:])
        self.mask_time = self._clock() - began
        expansions = self._ranker.rank(logits, nodes, text)
        for node, expansion in zip(nodes, expansions, strict=True):
            node.expansion = expansion
        for node in broken:
            node.expansion = Expansion(node.id, (), ())

    def _mask(
        self, matcher: Matcher, logits: Logits, nodes: Sequence[DraftNode], written: Sequence[int]
    ) -> list[DraftNode]:
        """Set -inf for tokens that the grammar forbids. Return the nodes that break it or cannot go on."""
        broken = []
        for node, row in zip(nodes, logits, strict=True):
            allowed = matcher.allowed(np.array([*written, *node.below_tip()], np.int32))
            if allowed is None:
                broken.append(node)
            else:
                np.copyto(row, -np.inf, where=~allowed)
                if row.max() == -np.inf:  # the draft has none of these tokens (`forerun.draft_groups`)
                    row[:] = 0.0
                    broken.append(node)
        return broken

    def retract(self, nodes: Iterable[DraftNode | None]) -> None:
        """Undo the session's rows for `nodes`, which may not have been evaluated."""
        self._reached = 0
        try:
            self._branches.retract(nodes)
        except EngineSurprise as surprise:
            self.note(surprise)
            self.clear()

    def drop_branches(self) -> None:
        """Keep the trunk without the tip, which a step may have to evaluate for its candidates."""
        self._cut_back(min(self.num_held, self._tip.position))

    def release(self) -> None:
        """End the text. Keep its trunk for a later text with the same beginning."""
        self._branches.nodes.clear()
        self._cut_back(self.num_held)

    def clear(self) -> None:
        self._branches.clear()
        self._forget_tip()

    def _cut_back(self, length: int) -> None:
        if self._branches.cut_back(length):
            self._forget_tip()
        else:
            self.clear()

    def _forget_tip(self) -> None:
        self._reached = 0
        self._tip.sequence, self._tip.row = NO_SEQUENCE, NOT_PLANNED

    def note(self, surprise: EngineSurprise) -> None:
        """Count and log a surprise."""
        self.num_resyncs += 1
        logger.warning("draft resync at position %d: %s", self._tip.position, surprise)

    def too_small(self, num_tokens: int = 0) -> CapacityError:
        """Return the error of a text of `num_tokens` that does not fit; 0: of the present text."""
        return CapacityError(
            f"the draft's context of {self._runtime.n_ctx} tokens has no room for a tree below "
            f"{num_tokens or len(self._tokens)} tokens; raise draft.context (--context) or shorten the prompt"
        )


def num_equal(old: Sequence[int], new: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    size = min(len(old), len(new))
    if not size or old[0] != new[0]:
        return 0
    differs = np.flatnonzero(np.asarray(old[:size]) != np.asarray(new[:size]))
    return int(differs[0]) if len(differs) else size
