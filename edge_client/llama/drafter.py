"""The drafter on the device: a `Drafter` over one llama.cpp context, one llama_decode per draft step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from common.errors import CapacityError, ForerunError, LocalError
from common.sampling import SamplingParams
from edge_client.core.drafter import DraftRow, Expansion, Reroot
from edge_client.llama.branches import (
    NO_SEQUENCE,
    NOT_PLANNED,
    TRUNK,
    BatchPlan,
    Branches,
    DraftNode,
    Surprise,
)
from edge_client.llama.ranking import Ranker
from edge_client.llama.runtime import ALL_SEQUENCES, LlamaRuntime

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

NO_KV_SLOT = 1  # llama_decode: no free cells, nothing was changed


class LlamaDrafter:
    """Keeps its own picture of the live tree, and resyncs from it when llama.cpp disagrees.

    Driven by `start`, then `expand` and `reroot` in any order; one thread. `num_candidates` is the most an
    `Expansion` names. `num_resyncs` counts the surprises since it was made.
    """

    def __init__(self, runtime: LlamaRuntime, num_candidates: int = 5) -> None:
        self.num_resyncs = 0
        self._runtime = runtime
        self._ranker = Ranker(runtime.num_vocab, num_candidates)
        self._branches = Branches(runtime, runtime.n_seq_max)
        self._tokens: list[int] = []  # committed; the last is the tip
        self._num_prompt = 0  # tokens that `start` was given
        self._tip = DraftNode(NO_SEQUENCE, None, 0, -1)

    # --- the protocol -----------------------------------------------------------------------------------

    def start(self, tokens: Sequence[int], tip: int, sampling: SamplingParams, plain: int = 0) -> None:
        """Begin anew; what the KV shares with `tokens` is kept, the rest up to the tip is evaluated now.

        Penalties that look at generated text only count from here: the split of `tokens` is not known.
        Raises `CapacityError` if they do not fit the context, `LocalError` if they cannot be evaluated.
        """
        if not tokens or not 0 <= min(tokens) <= max(tokens) < self._runtime.num_vocab:
            raise LocalError(
                f"the draft was started on {len(tokens)} tokens, none or some outside its vocabulary"
            )
        if len(tokens) > self._runtime.n_ctx:
            raise self._too_small(len(tokens))
        shared = min(_num_equal(self._tokens, tokens), self._branches.trunk_length, len(tokens) - 1)
        self._branches.nodes.clear()
        self._tokens = list(tokens)
        self._tip = DraftNode(tip, None, self._tokens[-1], len(tokens) - 1)
        self._num_prompt = len(tokens)
        self._ranker.start(sampling, self._tokens[:], plain)
        self._cut_back(shared)
        self._insist(lambda: self._prefill(len(self._tokens) - 1))

    def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
        """Evaluate the rows, in one batch unless they are too many or the KV has no room for all.

        A row asked for again is answered from memory. Raises `CapacityError` if a single row finds no room,
        `LocalError` for a parent never heard of or if llama.cpp fails after a resync too.
        """
        nodes = [self._node_of(row) for row in rows]
        return self._expand_nodes(nodes)

    def reroot(self, change: Reroot) -> None:
        """Committed KV joins the trunk, dead branches are freed. No evaluation."""
        try:
            if change.committed:
                self._commit(change)
            self._branches.prune(change.dead, self._tip)
        except Surprise as surprise:
            self._note(surprise)
            self._clear()

    def check_integrity(self) -> None:
        """Law 3: every evaluated live node is in its sequence, and no sequence or cell is held for nothing.

        Raises `LocalError`. For tests and idle moments: it asks llama.cpp about every sequence.
        """
        branches = self._branches
        branches.check_integrity(self._tip)
        lengths = {branch: head.position + 1 for branch, head in branches.heads.items()}
        lengths |= {branch: branches.shared_length[branch] for branch in branches.free}
        lengths[TRUNK] = branches.trunk_length
        for sequence, length in lengths.items():
            span = self._runtime.seq_span(sequence)
            if span != ((0, length - 1) if length else (-1, -1)):
                raise LocalError(f"sequence {sequence} holds {span} and should hold {length} cells")

    # --- the tree ---------------------------------------------------------------------------------------

    def _node_of(self, row: DraftRow) -> DraftNode:
        if row.id == self._tip.id:
            return self._tip
        node = self._branches.nodes.get(row.id)
        if node is None:
            node = DraftNode(row.id, self._parent_of(row), row.token, row.position)
            self._branches.nodes[row.id] = node
        return node

    def _parent_of(self, row: DraftRow) -> DraftNode:
        parent = self._tip if row.parent == self._tip.id else None
        if parent is None and row.parent is not None:
            parent = self._branches.nodes.get(row.parent)
        if parent is None or parent.position != row.position - 1:
            raise LocalError(
                f"node {row.id} at position {row.position} is to be drafted below {row.parent}, "
                f"which is not live there (tip {self._tip.id} at {self._tip.position})"
            )
        return parent

    def _commit(self, change: Reroot) -> None:
        """Move the tip. Raises `Surprise`, the tree forgotten, if an id stood for another token."""
        node_id, token = change.committed[-1]
        drafted = ((self._branches.nodes.get(known), token) for known, token in change.committed)
        agrees = all(node is None or node.token == token for node, token in drafted)
        self._tokens += [token for _, token in change.committed]
        tip = self._branches.commit([known for known, _ in change.committed]) if agrees else None
        self._tip = tip or DraftNode(node_id, None, token, len(self._tokens) - 1)
        self._tip.parent = None
        if self._tip.sequence != NO_SEQUENCE:
            self._tip.sequence = TRUNK
        if not agrees:
            self._branches.nodes.clear()
            raise Surprise("a committed token differs from the one that was drafted under its id")

    def _generated(self, node: DraftNode) -> list[int]:
        """Tokens after those that `start` was given, up to and with the node's."""
        path = [above.token for above in node.path()][-2::-1]  # the tip is committed, so it stands in _tokens
        return self._tokens[self._num_prompt :] + path

    # --- evaluation -------------------------------------------------------------------------------------

    def _expand_nodes(self, nodes: Sequence[DraftNode]) -> list[Expansion]:
        if len(nodes) > self._runtime.max_rows:
            return self._expand_halves(nodes)
        try:
            return self._insist(lambda: self._expand_once(nodes))
        except ForerunError:
            if len(nodes) == 1:
                raise
            return self._expand_halves(nodes)  # together they need more cells or sequences than there are

    def _expand_halves(self, nodes: Sequence[DraftNode]) -> list[Expansion]:
        middle = len(nodes) // 2
        return self._expand_nodes(nodes[:middle]) + self._expand_nodes(nodes[middle:])

    def _expand_once(self, nodes: Sequence[DraftNode]) -> list[Expansion]:
        plan = BatchPlan()
        for node in nodes:
            if node.expansion is None:
                self._plan_output(node, plan)
        if plan.tokens:
            self._decode(plan)
            self._rank(
                [node for node, output in zip(plan.nodes, plan.outputs, strict=True) if node and output]
            )
        return [node.expansion for node in nodes if node.expansion is not None]

    def _plan_output(self, node: DraftNode, plan: BatchPlan) -> None:
        if node.sequence == NO_SEQUENCE:
            self._plan_path(node, plan)
        if node.row == NOT_PLANNED:
            raise Surprise(f"node {node.id} was evaluated without asking for its logits")
        plan.outputs[node.row] = 1

    def _plan_path(self, node: DraftNode, plan: BatchPlan) -> None:
        """Rows for a node and for those of its ancestors that have no KV."""
        missing = [node]
        while (parent := missing[-1].parent) is not None and parent.sequence == NO_SEQUENCE:
            missing.append(parent)
        if missing[-1].parent is None:
            self._plan_tip(missing.pop(), plan)
        for below in reversed(missing):
            self._branches.place(below, plan)
        if len(plan.tokens) > self._runtime.n_batch:
            raise Surprise("the rows and what they stand on exceed a batch", full=True)

    def _plan_tip(self, tip: DraftNode, plan: BatchPlan) -> None:
        """Rows for the tip and the committed tokens before it without KV, which the verifier wrote."""
        if tip.position - self._branches.trunk_length > self._runtime.n_batch // 2:
            self._prefill(tip.position)
        for position in range(self._branches.trunk_length, tip.position):
            plan.add_token(self._tokens[position], position, TRUNK)
        tip.sequence = TRUNK
        plan.add(tip)

    def _decode(self, plan: BatchPlan) -> None:
        """Run a plan. Raises `Surprise` if llama.cpp does not take it."""
        batch = self._runtime.batch
        batch.fill(plan.tokens, plan.positions, plan.sequences, plan.outputs)
        for row, more in plan.shared.items():
            batch.share(row, [plan.sequences[row], *more])
        self._run()
        for node in plan.nodes:
            if node is not None:
                node.row = NOT_PLANNED
        if plan.sequences[0] == TRUNK:
            self._branches.trunk_length = self._tip.position + 1

    def _rank(self, nodes: list[DraftNode]) -> None:
        logits = self._runtime.logits(len(nodes))
        if len(logits) != len(nodes):
            raise Surprise("llama.cpp gave no logits")
        for node, expansion in zip(nodes, self._ranker.rank(logits, nodes, self._generated), strict=True):
            node.expansion = expansion

    def _prefill(self, stop: int) -> None:
        """Evaluate the committed tokens before `stop` that have no KV, in pieces of a batch. No logits."""
        while (start := self._branches.trunk_length) < stop:
            end = min(stop, start + self._runtime.n_batch)
            size = end - start
            self._runtime.batch.fill(
                self._tokens[start:end], list(range(start, end)), [TRUNK] * size, [0] * size
            )
            self._run()
            self._branches.trunk_length = end

    def _run(self) -> None:
        code = self._runtime.decode()
        if code != 0:
            raise Surprise(f"llama_decode returned {code}", full=code == NO_KV_SLOT)

    # --- surprises --------------------------------------------------------------------------------------

    def _insist(self, action: Callable[[], Result]) -> Result:
        """Try, then with all branches' KV dropped, then with the KV empty."""
        surprise = Surprise("")
        for recover in (self._drop_branches, self._clear, None):
            try:
                return action()
            except Surprise as caught:
                surprise = caught
                self._note(caught)
            if recover is not None:
                recover()
        self._clear()
        if surprise.full:
            raise self._too_small(len(self._tokens))
        raise LocalError(f"the draft model failed after a resync too: {surprise}")

    def _note(self, surprise: Surprise) -> None:
        self.num_resyncs += 1
        logger.warning("draft resync at position %d: %s", self._tip.position, surprise)

    def _drop_branches(self) -> None:
        """Keep the trunk without the tip, whose candidates may be asked for: that takes its evaluation."""
        self._cut_back(min(self._branches.trunk_length, self._tip.position))

    def _clear(self) -> None:
        self._runtime.clear()
        self._tip.sequence, self._tip.row = NO_SEQUENCE, NOT_PLANNED
        self._branches.release_all(0)

    def _cut_back(self, length: int) -> None:
        if not self._runtime.seq_remove(ALL_SEQUENCES, length):
            self._clear()
            return
        self._tip.sequence, self._tip.row = NO_SEQUENCE, NOT_PLANNED
        self._branches.release_all(length)

    def _too_small(self, num_tokens: int) -> CapacityError:
        return CapacityError(
            f"the draft's {self._runtime.n_ctx} cells and {self._runtime.n_seq_max} sequences have no "
            f"room for a tree below {num_tokens} tokens; raise n_ctx or n_seq_max, or shorten the prompt"
        )


def _num_equal(old: Sequence[int], new: Sequence[int]) -> int:
    """Length of the common prefix."""
    size = min(len(old), len(new))
    differs = np.flatnonzero(np.asarray(old[:size]) != np.asarray(new[:size]))
    return int(differs[0]) if len(differs) else size
