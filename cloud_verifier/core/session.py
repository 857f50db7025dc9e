"""One session as the verifier sees it: its tree, what it has evaluated, and its part of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cloud_verifier.core.arrivals import Arrivals
from cloud_verifier.core.memory import KvMemory, Lease
from cloud_verifier.core.offers import Offers
from cloud_verifier.core.report import Tally
from cloud_verifier.core.target import IntArray, StepItem
from common.choice import History
from common.estimators import RatioEstimator
from common.messages import FinishReason, Open, Propose
from common.recall import Recall, grow_guesses
from common.tree import Node, SpeculationTree

_FROM_NOTHING: IntArray = np.arange(64, dtype=np.int32)
_FROM_PREFIX: IntArray = np.array((-1,), dtype=np.int32)  # the parents of a tip alone
_NO_TOKENS: IntArray = np.zeros(0, dtype=np.int32)
_FROM_NOTHING.flags.writeable = _FROM_PREFIX.flags.writeable = False


@dataclass(slots=True)  # not frozen: one is made a session and step, and freezing takes 1 us more
class Rows:
    """A session's part of the running step: `chunk` prefill rows, then the nodes (tip first, if any)."""

    chunk: int
    nodes: Sequence[Node]
    slots: list[int]
    bare: bool  # an empty Propose had allowed its tip


@dataclass(slots=True)
class Progress:
    """What a step brought one session: the tokens committed, which no draft had proposed, and whether it
    ended."""

    session: VerifySession
    ready_at: float  # since when its rows could have run, seconds
    num_rows: int = 0  # of the step, prompt rows included
    num_outputs: int = 0  # of them, its tip and drafts
    tokens: list[int] = field(default_factory=list)
    start: int = 0  # position of the first of them
    server_made: int = 0  # bit i: tokens[i] was not among the edge's nodes
    finish: FinishReason | None = None
    outputs: Sequence[int] = ()  # of the step's, those whose choices are the tokens
    lost: bool = False  # it had ended meanwhile

    @property
    def num_drafts(self) -> int:
        """Draft rows evaluated."""
        return max(0, self.num_outputs - 1)

    @property
    def num_won(self) -> int:
        """Of the drafts, those that were right: tokens beyond the one it has in any case."""
        return len(self.tokens) - 1 if self.num_outputs > 1 and self.tokens else 0


class VerifySession:
    """Tree, slots and counters of one session. Driven by `VerifyScheduler`; knows no other session.

    Args: key, the scheduler's number for it; request, its `Open`, already checked; vocab_size; stop_ids,
    the tokens that end it; max_live, nodes of the edge it may hold; now, seconds; recall, which guesses what
    comes after the prompt, or None; tenant, whose it is.
    """

    def __init__(
        self,
        key: int,
        request: Open,
        vocab_size: int,
        stop_ids: frozenset[int],
        max_live: int,
        now: float,
        recall: Recall | None = None,
        tenant: str = "",
    ) -> None:
        self.key = key
        self.request = request
        self.tenant = tenant
        self.prompt_length = len(request.prompt)
        self.max_length = self.prompt_length + request.sampling.max_tokens  # prompt and text, in tokens
        self.tree = SpeculationTree(request.prompt + request.committed)
        self.lease = Lease(tenant)  # of KV slots; empty until the scheduler gives it one
        self.num_promised = 0  # slots, its own and shared ones
        self.num_slots_at_most = 0  # that it may come to need
        self.preempted = False  # its KV was dropped; it waits for room to be evaluated anew
        self.rows: Rows | None = None  # in the running step
        self.ended = False
        self.opened_at = now
        self.tally = Tally(now, resumed=bool(request.committed))
        self.ready_at = now  # since when its next rows could have run
        self.active_at = now  # last sign of life from the edge
        self.num_proposes = 0  # messages
        self.proposed_at = now  # arrival of the newest
        self._num_echoed = 0  # of them; the edge measures its RTT by the echo
        self.credit_told: int | None = None
        self.deadline_at: float | None = None  # seconds; its caller waits no longer
        self.stalled_at: float | None = None  # seconds; what it was sent waits unread since then
        self.num_turns = 0  # steps that it was in
        self.grammar = request.sampling.grammar
        self.dear_masks = self.masks_known = False  # see `MaskTime`
        self.rows_taken = 0.0  # draft rows of its own in a step, smoothed
        self.balance = 1.0  # tokens won by drafts, less those lost by others'; see `Sharing`
        self.promised = 0.0  # draft rows of the running step that should be right, by what the edge says
        self.kept = RatioEstimator(prior=1.0, prior_weight=4.0)  # were right, of those that should be
        self._stop_ids = stop_ids
        self._prompt: IntArray | None = None  # made once: a step may come every few milliseconds
        if request.sampling.reads_text:
            self._prompt = np.array(request.prompt, dtype=np.int32)
        self._history: History | None = None  # of the text before the newest step
        if request.sampling.logit_bias or request.sampling.has_penalties:
            self._history = History.of(request.sampling, self._prompt, _NO_TOKENS)
        self._unwritten = self._history  # of the prompt alone
        self._bare_step_granted = False
        self._offers = Offers.of(request.acceptance, request.sampling)
        self.arrivals = Arrivals(
            self.tree, self._offers, vocab_size, self.prompt_length - 1, self.max_length, max_live
        )
        self._recall = recall
        if recall is not None:
            for token in request.committed:
                recall.append(token)

    # What it is -------------------------------------------------------------------------------------------

    @property
    def num_prefill(self) -> int:
        """Committed positions before the tip that the target has not seen."""
        return len(self.tree.committed) - 1 - len(self.lease.slots)

    @property
    def evaluated(self) -> list[int]:
        """The committed tokens whose KV it has."""
        return self.tree.committed[: len(self.lease.slots)]

    @property
    def ready(self) -> bool:
        """Whether a step has something to evaluate for it."""
        if self.rows is not None or self.ended or self.preempted or self.stalled_at is not None:
            return False
        return self.may_evaluate_tip or self.num_prefill > 0

    def ready_by(self, now: float) -> bool:
        """`ready`, and somebody still waits for it."""
        return self.ready and (self.deadline_at is None or self.deadline_at > now)

    @property
    def waits_since(self) -> float:
        """While it waits for a Propose: since the newest one, or since its last step if that ended later."""
        return max(self.active_at, self.ready_at)

    @property
    def may_evaluate_tip(self) -> bool:
        """With fill always; without, once a draft (or an empty Propose) has come."""
        return self.request.fill or self._bare_step_granted or self.tree.num_speculative > 0

    @property
    def only_tip(self) -> bool:
        """In the running step with its tip, the end of its prompt perhaps and no drafts; and as things are
        with its next tip alone in the next."""
        rows = self.rows
        alone = rows is not None and len(rows.nodes) == 1 and self.stalled_at is None
        guesses = self._recall is not None or self._offers is not None or self.dear_masks
        return alone and self.request.fill and not self.tree.num_speculative and not guesses

    @property
    def ends_next(self) -> bool:
        """Whether one token more makes its text complete, whichever it is."""
        return len(self.tree.committed) + 1 >= self.max_length

    # Inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: Propose, now: float) -> None:
        """Attach the nodes of one Propose. Raises `PeerError` for what no honest edge sends."""
        could_run = self.rows is not None or self.ready
        self.arrivals.take(message)
        self.num_proposes += 1
        self.proposed_at = self.active_at = now
        if not message.tokens:
            self._bare_step_granted = True
        if not could_run and self.ready:
            self.ready_at = now

    def guess(self, most: int) -> None:
        """Grow what the text would say if it repeated itself: nodes as good as their promise, which need no
        network. At most `most` live ones; they are not the edge's, and take nothing of its credit."""
        if self._recall is None:
            return
        guessed = self.tree.num_speculative - self.arrivals.num_live
        grow_guesses(self.tree, self._recall, self.max_length - 1, most - guessed)

    def step_nodes(self) -> list[Node]:
        """Live nodes below the tip whose choice could still be needed, parents before children."""
        if self.dear_masks:  # each node would need one
            return []
        last = self.max_length - 1
        return [node for node in self.tree.speculative() if node.position < last]

    def plan(self, chunk: int, nodes: Sequence[Node], memory: KvMemory) -> StepItem:
        """Its item of the next step: `chunk` prefill rows, then `nodes` (empty, or the tip and below it,
        parents first)."""
        start = len(self.lease.slots)
        slots = memory.take(self.lease, chunk + len(nodes))
        self.rows = Rows(chunk, nodes, slots, self._bare_step_granted)
        self._bare_step_granted = self._bare_step_granted and not nodes  # a prefill chunk leaves it
        if not chunk and len(nodes) == 1:  # most often, and then a third of the time
            row = np.array((nodes[0].token, nodes[0].position, slots[0]), dtype=np.int32)
            tokens, positions, parents, where = row[:1], row[1:2], _FROM_PREFIX, row[2:]
        else:
            tokens, positions, parents, where = self._rows(start, chunk, nodes, slots)
        return StepItem(
            self.key,
            self.lease.slots.view,
            tokens,
            positions,
            parents,
            where,
            _counting(chunk, len(nodes)),
            self.request.sampling,
            self._prompt,
            self._generated(start) if self._prompt is not None else None,
            self._offers.ask(self.tree, nodes) if self._offers is not None and nodes else None,
            self.request.logprobs,
            self._history_before(start),
        )

    def item_ahead(self, token: IntArray, slots: Sequence[int]) -> StepItem:
        """Its item of the step after the running one, if that is its `only_tip`. `token` [1] is not known
        yet; `slots` are the one for its row."""
        assert self.rows is not None, "in the running step"
        position = len(self.tree.committed)
        row = np.array((position, slots[0]), dtype=np.int32)
        return StepItem(
            self.key,
            self.lease.slots.view_with(self.rows.slots),
            token,
            row[:1],
            _FROM_PREFIX,
            row[1:],
            _counting(0, 1),
            self.request.sampling,
            self._prompt,
            self._generated(position) if self._prompt is not None else None,
            logprobs=self.request.logprobs,
            history=self._history_before(position),
        )

    def apply(self, choices: IntArray, memory: KvMemory, now: float, in_next: bool = False) -> Progress:
        """The step is done: note the choices, walk, keep the committed slots and free the others. A prompt
        that is read now is shared with those that come with the same. `in_next`: the next step, which it is
        in, runs already."""
        rows = self._end_rows()
        nodes, slots = rows.nodes, rows.slots
        progress = Progress(self, self.ready_at, len(slots), len(nodes))
        self.ready_at = now
        if not rows.chunk and len(nodes) == 1:  # its tip alone, which is committed
            nodes[0].choice = int(choices[0])
            self._walk(progress)
            progress.outputs = (0,)
            memory.settle(self.lease, slots, ())
        else:
            self._apply_tree(rows, choices.tolist(), progress, memory)
            if rows.chunk and rows.nodes:
                memory.publish(self.lease, self.evaluated, in_next)
        self.num_turns += 1
        self.rows_taken += (progress.num_drafts - self.rows_taken) / 8
        return progress

    def abort_step(self, memory: KvMemory) -> Progress:
        """The step it is in brought nothing: free the slots of its rows, and let it try again."""
        rows = self._end_rows()
        memory.settle(self.lease, (), rows.slots)
        self._bare_step_granted |= rows.bare
        return Progress(self, self.ready_at, len(rows.slots), len(rows.nodes), lost=True)

    def abandon(self, memory: KvMemory, keep: bool = True) -> None:
        """Give up every slot; it is in no step any more. With `keep` the cache takes what is evaluated."""
        memory.close(self.lease, self.evaluated, keep)
        self.ended = True

    def preempt(self, memory: KvMemory) -> None:
        """Give up every slot, to go on from its tokens when there is room again."""
        memory.close(self.lease, self.evaluated)
        self.preempted = True
        self.tally.num_preempted += 1

    def take_echo(self) -> int:
        """The number of Propose messages so far, if one came since the last call; else 0."""
        news = self.num_proposes if self.num_proposes > self._num_echoed else 0
        self._num_echoed = self.num_proposes
        return news

    def finish_reason(self) -> FinishReason | None:
        """Whether the committed text is complete as it stands."""
        committed = self.tree.committed
        if committed[-1] in self._stop_ids and len(committed) > self.prompt_length:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(committed) >= self.max_length else None

    # Inside -----------------------------------------------------------------------------------------------

    def _rows(self, start: int, chunk: int, nodes: Sequence[Node], slots: Sequence[int]) -> IntArray:
        """int32 [4, T]: tokens, positions, parents and slots."""
        row_of = {node.id: row for row, node in enumerate(nodes, chunk)}
        parents = list(range(-1, chunk - 1 + bool(nodes)))  # the tip follows the chunk
        parents += [row_of[node.parent] for node in nodes[1:]]  # type: ignore[index]  # only a tip has none
        tokens = self.tree.committed[start : start + chunk] + [node.token for node in nodes]
        positions = list(range(start, start + chunk)) + [node.position for node in nodes]
        return np.array((tokens, positions, parents, slots), dtype=np.int32)

    def _apply_tree(self, rows: Rows, choices: Sequence[int], progress: Progress, memory: KvMemory) -> None:
        for node, choice in zip(rows.nodes, choices, strict=True):
            node.choice = choice
        self._walk(progress)
        on_path = [output for output, node in enumerate(rows.nodes) if node.committed]
        progress.outputs = on_path[: len(progress.tokens)]  # the last one may be a tip that ends the text
        kept, freed = rows.slots[: rows.chunk], list[int]()
        for node, slot in zip(rows.nodes, rows.slots[rows.chunk :], strict=True):
            (kept if node.committed else freed).append(slot)
        memory.settle(self.lease, kept, freed)

    def _walk(self, progress: Progress) -> None:
        """Commit the target's choices from the tip on, as far as they are known."""
        tree, tokens = self.tree, progress.tokens
        progress.start = len(tree.committed)
        while progress.finish is None and (token := tree.tip.choice) is not None:
            tree.advance(token)
            if not tree.tip.wire_id:  # nobody's node, or a guess that the edge did not share
                progress.server_made |= 1 << len(tokens)
            if self._recall is not None:
                self._recall.append(token)
            tokens.append(token)
            progress.finish = self.finish_reason()

    def _end_rows(self) -> Rows:
        rows, self.rows = self.rows, None
        if rows is None:
            raise AssertionError(f"session {self.key} is not in the step")
        return rows

    def _generated(self, start: int) -> IntArray:
        return np.array(
            self.tree.committed[self.prompt_length : max(start, self.prompt_length)], dtype=np.int32
        )

    def _history_before(self, start: int) -> History | None:
        """The history of committed tokens before position `start`; None where nothing changes logits."""
        known, unwritten = self._history, self._unwritten
        if known is None or unwritten is None:
            return None
        if start < self.prompt_length + known.num_generated:  # a preempted text is evaluated anew
            known = unwritten
        first = self.prompt_length + known.num_generated
        new = self.tree.committed[first : max(start, first)]
        self._history = known.extended(np.array(new, dtype=np.int32))
        return self._history


def _counting(start: int, count: int) -> IntArray:
    """int32 [count] from `start` on; of most steps, one that was made before."""
    if not start and count < len(_FROM_NOTHING):
        return _FROM_NOTHING[:count]
    return np.arange(start, start + count, dtype=np.int32)
