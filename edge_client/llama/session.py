"""One session's picture of its text and live tree, on a llama.cpp context that others may share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from common.errors import CapacityError, LocalError
from common.grammar import Matcher
from common.sampling import SamplingParams
from edge_client.core.drafter import DraftRow, Expansion, Reroot
from edge_client.llama.branches import Branches
from edge_client.llama.plan import NO_SEQUENCE, NOT_PLANNED, BatchPlan, DraftNode, Surprise
from edge_client.llama.ranking import Logits, Ranker
from edge_client.llama.runtime import LlamaRuntime
from edge_client.llama.sequences import Sequences

logger = logging.getLogger(__name__)


class LlamaSession:
    """Knows what the session needs evaluated and which cells hold what; evaluates nothing itself.

    Driven by `begin`, then `reroot` and draft steps in any order. A draft step: `node_of` each row,
    `plan_rows` (or `plan_text`) into a batch, a llama_decode by the caller, then `settle` if it was done, and
    `rank`; if it was not, `retract`, `drop_branches` or `clear`, from least to most forgetful. One thread
    drives all sessions of a context. `num_resyncs` counts the surprises since it was made.
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
        self._branches = Branches(runtime, sequences, trunk)
        self._tokens: list[int] = []  # committed; the last is the tip
        self._num_prompt = 0  # tokens that `begin` was given
        self._tip = DraftNode(NO_SEQUENCE, None, 0, -1)
        self._matcher: Matcher | None = None  # of the text's grammar
        self._reached = 0  # trunk cells once the batch that is planned is evaluated; 0: as many as now

    # --- the text ---------------------------------------------------------------------------------------

    @property
    def num_missing(self) -> int:
        """Committed tokens without KV before the tip; 0 if the tip has its own."""
        return self._tip.position - self.num_held if self._tip.sequence == NO_SEQUENCE else 0

    @property
    def num_held(self) -> int:
        """Leading tokens of the text whose KV the trunk holds."""
        return self._branches.trunk_length

    @property
    def num_branches(self) -> int:
        """Sequences that its live tree takes."""
        return len(self._branches.heads)

    def num_common(self, tokens: Sequence[int]) -> int:
        """Leading ones of `tokens` whose KV the trunk holds."""
        return min(num_equal(self._tokens, tokens), self.num_held)

    def begin(self, tokens: Sequence[int], tip: int, sampling: SamplingParams, plain: int = 0) -> None:
        """A new text; what the KV shares with it is kept.

        Penalties that look at generated text only count from here: the split of `tokens` is not known.
        Raises `CapacityError` if they do not fit the context, `LocalError` if they are no text, `UserError`
        for a grammar that is refused.
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
        self._num_prompt = len(tokens)
        self._ranker.start(sampling, self._tokens[:], plain)
        self._cut_back(shared)

    def borrow(self, lender: LlamaSession) -> None:
        """Share the cells of another session's trunk as far as the texts are the same."""
        start, stop = self.num_held, min(lender.num_common(self._tokens), len(self._tokens) - 1)
        if stop > start:
            self._runtime.seq_copy(lender._branches.trunk, self._branches.trunk, start, stop)
            self._branches.trunk_length = stop

    def reroot(self, change: Reroot) -> None:
        """Committed KV joins the trunk, dead branches are freed. No evaluation."""
        try:
            if change.committed:
                self._commit(change)
            self._branches.prune(change.dead, self._tip)
        except Surprise as surprise:
            self.note(surprise)
            self.clear()

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
            self._tip.sequence = self._branches.trunk
        if not agrees:
            self._branches.nodes.clear()
            raise Surprise("a committed token differs from the one that was drafted under its id")

    # --- the tree ---------------------------------------------------------------------------------------

    def node_of(self, row: DraftRow) -> DraftNode:
        """The node that a row asks about. Raises `LocalError` if its parent is not live."""
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

    def _generated(self, node: DraftNode) -> list[int]:
        """Tokens after those that `begin` was given, up to and with the node's."""
        return self._tokens[self._num_prompt :] + _below_tip(node)

    # --- planning ---------------------------------------------------------------------------------------

    def plan_rows(self, nodes: Iterable[DraftNode], plan: BatchPlan) -> None:
        """Rows for nodes without an expansion, and for what they stand on, the missing text included.

        Raises `Surprise` if a batch or the sequences have no room for them; `plan` then holds some.
        """
        for node in nodes:
            if node.expansion is None:
                self._plan_output(node, plan)

    def plan_text(self, count: int, plan: BatchPlan) -> None:
        """Rows for the next `count` committed tokens before the tip that have no KV. No logits."""
        start = self.num_held
        self._reached = min(self._tip.position, start + count)
        trunk = self._branches.trunk
        for position in range(start, self._reached):
            plan.add_token(self._tokens[position], position, trunk)

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
        self.plan_text(tip.position, plan)
        self._reached = tip.position + 1
        tip.sequence = self._branches.trunk
        plan.add(tip)

    # --- the outcome ------------------------------------------------------------------------------------

    def settle(self, nodes: Iterable[DraftNode | None]) -> None:
        """The session's rows of the batch, which stood for `nodes`, are evaluated."""
        for node in nodes:
            if node is not None:
                node.row = NOT_PLANNED
        if self._reached:
            self._branches.trunk_length = self._reached
            self._reached = 0

    def rank(self, logits: Logits, nodes: Sequence[DraftNode]) -> None:
        """Give nodes their expansions, from their rows of `logits` [nodes, vocabulary], which are used up.

        Below a node that breaks the grammar there is nothing: nothing that could be chosen.
        """
        began = self._clock()
        broken = [] if self._matcher is None else self._mask(self._matcher, logits, nodes)
        self.mask_time = self._clock() - began
        expansions = self._ranker.rank(logits, nodes, self._tokens, _below_tip)
        for node, expansion in zip(nodes, expansions, strict=True):
            node.expansion = expansion
        for node in broken:
            node.expansion = Expansion(node.id, (), ())

    def _mask(self, matcher: Matcher, logits: Logits, nodes: Sequence[DraftNode]) -> list[DraftNode]:
        """-inf for what the grammar does not let follow; the nodes that themselves break it."""
        broken = []
        for node, row in zip(nodes, logits, strict=True):
            allowed = matcher.allowed(np.array(self._generated(node), np.int32))
            if allowed is None:
                broken.append(node)
            else:
                np.copyto(row, -np.inf, where=~allowed)
        return broken

    def retract(self, nodes: Iterable[DraftNode | None]) -> None:
        """The session's rows of the batch, which stood for `nodes`, were not evaluated, or nobody knows."""
        self._reached = 0
        try:
            self._branches.retract(nodes)
        except Surprise as surprise:
            self.note(surprise)
            self.clear()

    def drop_branches(self) -> None:
        """Keep the trunk without the tip, whose candidates may be asked for: that takes its evaluation."""
        self._cut_back(min(self.num_held, self._tip.position))

    def release(self) -> None:
        """The text is over; its trunk is kept for one that begins likewise."""
        self._branches.nodes.clear()
        self._cut_back(self.num_held)

    def clear(self) -> None:
        """Nothing is held any more."""
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

    def note(self, surprise: Surprise) -> None:
        """Count a surprise, and tell whoever reads the log."""
        self.num_resyncs += 1
        logger.warning("draft resync at position %d: %s", self._tip.position, surprise)

    def no_room(self) -> CapacityError:
        """What is said when not even a single row fits."""
        return self.too_small(len(self._tokens))

    def too_small(self, num_tokens: int) -> CapacityError:
        """What is said of a text that does not fit."""
        return CapacityError(
            f"the draft's context of {self._runtime.n_ctx} tokens has no room for a tree below "
            f"{num_tokens} tokens; raise draft.context (--context) or shorten the prompt"
        )

    # --- law 3 ------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Every evaluated live node is in its sequence, and no sequence or cell is held for nothing.

        Raises `LocalError`. For tests and idle moments: it asks llama.cpp about every sequence it has.
        """
        branches = self._branches
        branches.check_integrity(self._tip)
        lengths = {branch: head.position + 1 for branch, head in branches.heads.items()}
        lengths |= {branch: branches.shared_length[branch] for branch in branches.free}
        lengths[branches.trunk] = branches.trunk_length
        check_spans(self._runtime, lengths)


def _below_tip(node: DraftNode) -> list[int]:
    """The tokens below the tip down to a node, its own included."""
    return [above.token for above in node.path()][-2::-1]


def check_spans(runtime: LlamaRuntime, lengths: dict[int, int]) -> None:
    """Hold llama.cpp's sequences against the cells that each should have. Raises `LocalError`."""
    for sequence, length in lengths.items():
        span = runtime.seq_span(sequence)
        if span != ((0, length - 1) if length else (-1, -1)):
            raise LocalError(f"sequence {sequence} holds {span} and should hold {length} cells")


def num_equal(old: Sequence[int], new: Sequence[int]) -> int:
    """Length of the common prefix."""
    size = min(len(old), len(new))
    if not size or old[0] != new[0]:
        return 0
    differs = np.flatnonzero(np.asarray(old[:size]) != np.asarray(new[:size]))
    return int(differs[0]) if len(differs) else size
