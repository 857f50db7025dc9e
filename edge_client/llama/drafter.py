"""The drafter on the device: a `Drafter` over one llama.cpp context, one llama_decode per draft step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from common.errors import ForerunError, LocalError
from common.sampling import SamplingParams
from edge_client.core.drafter import NOTHING_READ, DraftRow, Expansion, Reading
from edge_client.llama.plan import NO_SEQUENCE, BatchPlan, DraftNode, Surprise
from edge_client.llama.runtime import NO_KV_SLOT, LlamaRuntime
from edge_client.llama.sequences import Sequences
from edge_client.llama.session import LlamaSession

Result = TypeVar("Result")

TRUNK = 0


class LlamaDrafter(LlamaSession):
    """The only session of a context. Keeps its own picture of the live tree, and resyncs from it when
    llama.cpp disagrees. Several sessions share a context in a `DraftGroup`.

    Driven by `start`, then `expand` and `reroot` in any order; one thread. `num_candidates` is the most an
    `Expansion` names. `num_resyncs` counts the surprises since it was made.
    """

    def __init__(self, runtime: LlamaRuntime, num_candidates: int = 5) -> None:
        self._sequences = Sequences(runtime, TRUNK + 1, runtime.n_seq_max)
        super().__init__(runtime, self._sequences, TRUNK, num_candidates)
        self.reading = NOTHING_READ  # of the latest `expand`

    def start(self, tokens: Sequence[int], tip: int, sampling: SamplingParams, plain: int = 0) -> None:
        """Begin anew; what the KV shares with `tokens` is kept, the next `expand` evaluates the rest.

        Raises `CapacityError` if they do not fit the context.
        """
        self.begin(tokens, tip, sampling, plain)

    def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
        """Evaluate the rows, in one batch unless they are too many or the KV has no room for all.

        A row asked for again is answered from memory. Raises `CapacityError` if a single row finds no room,
        `LocalError` for a parent never heard of or if llama.cpp fails after a resync too.
        """
        self.reading = NOTHING_READ
        return self._expand_nodes([self.node_of(row) for row in rows])

    def check_integrity(self) -> None:
        """Law 3, of the sequences that it does not have, too. Raises `LocalError`."""
        self._sequences.check_integrity()
        super().check_integrity()

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
        if self._tip.sequence == NO_SEQUENCE and self.num_missing > self._runtime.n_batch // 2:
            self._prefill()
        plan = BatchPlan()
        self.plan_rows(nodes, plan)
        if plan.tokens:
            self._decode(plan)
            self._rank_rows(
                [node for node, output in zip(plan.nodes, plan.outputs, strict=True) if node and output]
            )
        return [node.expansion for node in nodes if node.expansion is not None]

    def _rank_rows(self, nodes: list[DraftNode]) -> None:
        logits = self._runtime.logits(len(nodes))
        if len(logits) != len(nodes):
            raise Surprise("llama.cpp gave no logits")
        self.rank(logits, nodes)

    def _prefill(self) -> None:
        """Evaluate the committed tokens before the tip that have no KV, in pieces of a batch. No logits."""
        while self.num_missing:
            plan = BatchPlan()
            self.plan_text(self._runtime.n_batch, plan)
            self._decode(plan)

    def _decode(self, plan: BatchPlan) -> None:
        """Run a plan. Raises `Surprise` if llama.cpp does not take it."""
        plan.fill(self._runtime.batch)
        began = time.perf_counter()
        code = self._runtime.decode()
        if code != 0:
            raise Surprise(f"llama_decode returned {code}", full=code == NO_KV_SLOT)
        if num_read := plan.num_read(0, len(plan.nodes)):
            self.reading += Reading(num_read, time.perf_counter() - began)
        self.settle(plan.nodes)

    # --- surprises --------------------------------------------------------------------------------------

    def _insist(self, action: Callable[[], Result]) -> Result:
        """Try, then with all branches' KV dropped, then with the KV empty."""
        surprise = Surprise("")
        for recover in (self.drop_branches, self.clear, None):
            try:
                return action()
            except Surprise as caught:
                surprise = caught
                self.note(caught)
            if recover is not None:
                recover()
        self.clear()
        if surprise.full:
            raise self.no_room()
        raise LocalError(f"the draft model failed after a resync too: {surprise}")
