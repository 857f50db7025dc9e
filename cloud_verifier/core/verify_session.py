"""Keep one session of the verifier: its tree, its evaluated tokens, and its part of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from cloud_verifier.core.arrivals import Arrivals, offers_of
from cloud_verifier.core.awaiting import Awaited
from cloud_verifier.core.draft_account import DraftAccount, RowShare
from cloud_verifier.core.engine_protocol import IntArray, Judge, StepItem
from cloud_verifier.core.kv_memory import KvMemory, Lease
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.sources import VerifierSource
from common.acceptance import AcceptanceRule
from common.choice import History
from common.errors import LocalError
from common.mask_time import MaskCost
from common.messages import Commit, FinishReason, Hint, Open, Propose, TokenLogprobs
from common.tree import Node, SpeculationTree
from common.tree_hints import hint_at

_FROM_NOTHING: IntArray = np.arange(64, dtype=np.int32)
_FROM_PREFIX: IntArray = np.array((-1,), dtype=np.int32)  # the parents of a tip alone
_NO_TOKENS: IntArray = np.zeros(0, dtype=np.int32)
_FROM_NOTHING.flags.writeable = _FROM_PREFIX.flags.writeable = False


class SessionState(Enum):
    NEW = "new"  # it has no slots yet
    OPEN = "open"
    PREEMPTED = "preempted"  # its KV was dropped; the session waits for slots and is then evaluated anew
    ENDED = "ended"


class SessionEvent(Enum):
    ADMIT = "admission"
    PREEMPT = "preemption"
    READMIT = "readmission"
    END = "an end"


TRANSITIONS: dict[SessionState, dict[SessionEvent, SessionState]] = {
    SessionState.NEW: {SessionEvent.ADMIT: SessionState.OPEN},
    SessionState.OPEN: {SessionEvent.PREEMPT: SessionState.PREEMPTED, SessionEvent.END: SessionState.ENDED},
    SessionState.PREEMPTED: {SessionEvent.READMIT: SessionState.OPEN, SessionEvent.END: SessionState.ENDED},
    SessionState.ENDED: {},
}
"""The legal moves; a missing key is a `LocalError`. Apart from its state, a session may be in the running
step (`rows`), and its peer may have stopped reading (`stalled_at`)."""


@dataclass(slots=True)
class SessionTally:
    """Counts one session's service on this stream. Times are absolute, in seconds."""

    opened_at: float
    resumed: bool  # the text had begun on another stream
    num_cached: int = 0  # tokens of prompt and earlier text whose KV was in the prefix cache
    num_steps: int = 0  # in which its tip was evaluated
    num_rows: int = 0  # evaluated for it, prompt rows included
    num_drafts: int = 0  # of them, draft rows
    num_won: int = 0  # of the drafts, accepted ones
    num_committed: int = 0  # tokens
    num_server_made: int = 0  # of them, tokens that were not among the edge's nodes
    num_preempted: int = 0  # times that the session was preempted
    began_at: float | None = None  # its first step
    first_commit_at: float | None = None
    committed_at: float | None = None  # the newest

    def count_step(self, began_at: float, num_rows: int, num_drafts: int, num_tips: int) -> None:
        if self.began_at is None:
            self.began_at = began_at
        self.num_steps += num_tips
        self.num_rows += num_rows
        self.num_drafts += num_drafts

    def count_commit(self, num_tokens: int, num_won: int, num_server_made: int, now: float) -> None:
        """Count the tokens of one step, at least one; `num_won` of the session's drafts were accepted."""
        if self.first_commit_at is None:
            self.first_commit_at = now
        self.committed_at = now
        self.num_committed += num_tokens
        self.num_won += num_won
        self.num_server_made += num_server_made


class SampledText:
    """Gives what choices read of one session's text: its prompt and tokens where sampling reads text, and the
    history where bias or penalties change logits."""

    def __init__(self, request: Open) -> None:
        sampling = request.sampling
        self._prompt_length = len(request.prompt)
        self.prompt: IntArray | None = None  # made once: a step may come every few milliseconds
        if sampling.reads_text or request.acceptance.rule is AcceptanceRule.REFLECTIVE:
            self.prompt = np.array(request.prompt, dtype=np.int32)
        self._history: History | None = None  # of the text before the newest step
        if sampling.logit_bias or sampling.has_penalties:
            self._history = History.of(sampling, self.prompt, _NO_TOKENS)
        self._unwritten = self._history  # of the prompt alone

    def generated(self, committed: Sequence[int], start: int) -> IntArray | None:
        """Return the text's tokens before position `start`; None if sampling reads no text."""
        if self.prompt is None:
            return None
        first = self._prompt_length
        return np.array(committed[first : max(start, first)], dtype=np.int32)

    def history(self, committed: Sequence[int], start: int) -> History | None:
        """Return the history of committed tokens before `start`; None without bias and penalties."""
        before, unwritten = self._history, self._unwritten
        if before is None or unwritten is None:
            return None
        if start < self._prompt_length + before.num_generated:  # a preempted text is evaluated anew
            before = unwritten
        first = self._prompt_length + before.num_generated
        new = committed[first : max(start, first)]
        self._history = before.extended(np.array(new, dtype=np.int32))
        return self._history


@dataclass(slots=True)  # not frozen: one is made a session and step, and freezing takes 1 us more
class StepRows:
    """A session's part of the running step: `chunk` prefill rows, then the nodes (tip first, if any)."""

    chunk: int
    nodes: Sequence[Node]
    slots: list[int]
    bare: bool  # an empty Propose had allowed its tip


@dataclass(slots=True)
class StepProgress:
    """Holds the result of a step for one session."""

    session: VerifySession
    ready_at: float  # seconds; the session was ready since then
    num_rows: int = 0  # of the step, prompt rows included
    num_outputs: int = 0  # of them, its tip and drafts
    tokens: list[int] = field(default_factory=list)
    start: int = 0  # position of the first of them
    server_made: int = 0  # bit i: tokens[i] was not among the edge's nodes
    guessed: int = 0  # bit i: tokens[i] was among the verifier's own guesses
    finish: FinishReason | None = None
    outputs: Sequence[int] = ()  # the output rows whose choices are the tokens
    lost: bool = False  # the session had ended meanwhile

    @property
    def num_drafts(self) -> int:
        return max(0, self.num_outputs - 1)

    @property
    def num_won(self) -> int:
        """The number of accepted drafts: tokens beyond the first."""
        return len(self.tokens) - 1 if self.num_outputs > 1 and self.tokens else 0


class VerifySession:
    """Holds tree, slots and counters of one session. Driven by `VerifyScheduler`.

    Args: key, the scheduler's number for it; request, its `Open`, already checked; vocab_size; stop_ids,
    the tokens that end it; max_live, the most live nodes of the edge; now, seconds; sources, the verifier's
    own ones, in order; tenant, its owner's name; deadline_at, the caller's deadline, seconds; judge, of the
    rule `judge`.

    Other modules read its fields. Only its own methods change them.
    """

    def __init__(
        self,
        key: int,
        request: Open,
        vocab_size: int,
        stop_ids: frozenset[int],
        max_live: int,
        now: float,
        sources: Sequence[VerifierSource] = (),
        tenant: str = "",
        deadline_at: float | None = None,
        judge: Judge | None = None,
    ) -> None:
        self.key = key
        self.state = SessionState.NEW
        self.request = request
        self.tenant = tenant
        self.prompt_length = len(request.prompt)
        self.max_length = self.prompt_length + request.sampling.max_tokens  # prompt and text, in tokens
        self.tree = SpeculationTree(request.prompt + request.committed)
        self.lease = Lease(tenant)  # of KV slots; empty until the scheduler gives it one
        self.num_promised = 0  # slots, its own and shared ones
        self.num_slots_at_most = 0  # the slots for its longest text
        self.rows: StepRows | None = None  # in the running step
        self.tally = SessionTally(now, resumed=bool(request.committed))
        self.ready_at = now  # seconds; its next rows can run since then
        self.num_proposes = 0  # messages
        self.proposed_at = now  # arrival of the newest
        self._num_echoed = 0  # of them; the edge measures its RTT by the echo
        self.credit_told: int | None = None
        self.deadline_at = deadline_at
        self.stalled_at: float | None = None  # seconds; the edge reads no messages since then
        self.masks = MaskCost()  # kept by `MaskTime`
        self.awaited = Awaited()
        self.account = DraftAccount()
        self.share = RowShare()
        self._sources = list(sources)
        self._stop_ids = stop_ids
        self._text = SampledText(request)
        self._bare_step_granted = False
        self._offers = offers_of(request.acceptance, request.sampling, judge)
        self.arrivals = Arrivals(
            self.tree, self._offers, vocab_size, self.prompt_length - 1, self.max_length, max_live
        )

    # What it is -------------------------------------------------------------------------------------------

    @property
    def opened_at(self) -> float:
        return self.tally.opened_at

    @property
    def grammar(self) -> str:
        return self.request.sampling.grammar

    @property
    def ended(self) -> bool:
        """Whether the text has ended. Rows of the session may still be in a step."""
        return self.state is SessionState.ENDED

    @property
    def preempted(self) -> bool:
        """Whether the session has lost its slots and waits for others to leave."""
        return self.state is SessionState.PREEMPTED

    @property
    def num_prefill(self) -> int:
        """The number of committed positions before the tip that are not evaluated yet."""
        return len(self.tree.committed) - 1 - len(self.lease.slots)

    @property
    def evaluated(self) -> list[int]:
        """The committed tokens whose KV the session has."""
        return self.tree.committed[: len(self.lease.slots)]

    @property
    def ready(self) -> bool:
        """Whether a step could evaluate rows of the session now."""
        if self.rows is not None or self.state is not SessionState.OPEN or self.stalled_at is not None:
            return False
        return self.may_evaluate_tip or self.num_prefill > 0

    def ready_by(self, now: float) -> bool:
        """Return whether the session is `ready` and its deadline has not passed."""
        return self.ready and (self.deadline_at is None or self.deadline_at > now)

    def times_out(self, config: SchedulerConfig, now: float) -> tuple[float, str]:
        """Return when the session ends as things are, and the reason; infinity if it does not."""
        idle, stall = config.idle_timeout, config.stall_timeout
        ends = [(math.inf, "")]
        if self.deadline_at is not None:
            ends.append((self.deadline_at, "the call's deadline has passed"))
        if not self.request.fill:
            waits = not self.may_evaluate_tip and self.num_prefill == 0 and self.rows is None
            since = self.waits_since if waits else now
            ends.append((since + idle, f"no Propose for {idle:.0f} s on a session without fill"))
        if self.stalled_at is not None:
            ends.append((self.stalled_at + stall, f"the edge has not read its messages for {stall:.0f} s"))
        return min(ends)

    @property
    def waits_since(self) -> float:
        """The time since which the session waits for a Propose: the newest Propose or the end of its step."""
        return max(self.proposed_at, self.ready_at)

    @property
    def may_evaluate_tip(self) -> bool:
        """Whether the tip may be evaluated: always with fill, else after a draft or an empty Propose."""
        return self.request.fill or self._bare_step_granted or self.tree.num_speculative > 0

    @property
    def only_tip(self) -> bool:
        """Whether the session has its tip but no drafts in the running step, and only a tip in the next."""
        rows = self.rows
        alone = rows is not None and len(rows.nodes) == 1 and self.stalled_at is None
        guesses = any(source.copies for source in self._sources)
        plain = not (guesses or self._offers.decides or self.masks.dear or self.awaited.is_pending)
        return alone and self.request.fill and not self.tree.num_speculative and plain

    @property
    def ends_next(self) -> bool:
        """Whether the next token completes the text by its length."""
        return len(self.tree.committed) + 1 >= self.max_length

    # Its life ---------------------------------------------------------------------------------------------

    def admit(self, lease: Lease, num_promised: int, num_slots_at_most: int) -> None:
        """Admit the session with `num_promised` slots now and `num_slots_at_most` for its longest text."""
        self._move(SessionEvent.ADMIT)
        self.lease, self.num_promised, self.num_slots_at_most = lease, num_promised, num_slots_at_most
        self.tally.num_cached = len(lease.slots)

    def grow(self, count: int) -> None:
        self.num_promised += count

    def preempt(self, memory: KvMemory) -> None:
        """Give up every slot. The session keeps its tokens and continues when there is room again."""
        self._move(SessionEvent.PREEMPT)
        memory.close(self.lease, self.evaluated)
        self.num_promised = 0
        self.tally.num_preempted += 1

    def readmit(self, lease: Lease, num_promised: int, now: float) -> None:
        self._move(SessionEvent.READMIT)
        self.lease, self.num_promised, self.ready_at = lease, num_promised, now

    def end(self) -> None:
        """End the text. The session keeps its slots while it is in a step."""
        self._move(SessionEvent.END)
        for source in self._sources:
            source.close()

    def abandon(self, memory: KvMemory, keep: bool = True) -> None:
        """Give up every slot, after the end and the last step. With `keep` the cache takes evaluated ones."""
        memory.close(self.lease, self.evaluated, keep)

    def _move(self, event: SessionEvent) -> None:
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise LocalError(f"session {self.key} is {self.state.value}, where {event.value} is illegal")
        self.state = after

    # Inputs -----------------------------------------------------------------------------------------------

    def stall(self, stalled: bool, now: float) -> None:
        """Note that the peer stopped reading, or reads again. A stalled session joins no step."""
        self.stalled_at = now if stalled else None
        if not stalled:
            self.ready_at = now

    def receive(self, message: Propose, now: float) -> None:
        """Attach the nodes of one Propose. Raises `PeerError` for a message that breaks the protocol."""
        could_run = self.rows is not None or self.ready
        self.arrivals.take(message)
        if message.wait is not None:
            self.awaited.told(message.wait)
        if self.awaited.is_told:
            self.awaited.arrived(self.arrivals.seen, self.arrivals.has_live)
        self.num_proposes += 1
        self.proposed_at = now
        if not message.tokens:
            self._bare_step_granted = True
        if not could_run and self.ready:
            self.ready_at = now

    def defer(self, until: float) -> None:
        """Note that the step which the session could join waits for announced nodes."""
        self.ready_at = until

    def add_source(self, source: VerifierSource) -> None:
        self._sources.append(source)

    def guess(self, most: int) -> None:
        """Let the sources grow nodes, `most` live ones at most. Such nodes do not count against the edge's
        credit."""
        room = most - (self.tree.num_speculative - self.arrivals.num_live)
        for source in self._sources:
            source.grow(self.tree, self.max_length - 1, room)

    def history_to(self, position: int) -> History | None:
        """Return the history of the text up to the token at `position`; None without bias and penalties."""
        history = self._text.history(self.tree.committed, position)
        if history is None or position < self.prompt_length:
            return history
        return history.extended(np.array(self.tree.committed[position : position + 1], dtype=np.int32))

    def step_nodes(self) -> list[Node]:
        """Return the live nodes below the tip whose choice could be needed, parents before children."""
        if self.masks.dear:  # each node would need one
            return []
        last = self.max_length - 1
        return [node for node in self.tree.speculative() if node.position < last]

    def plan(self, chunk: int, nodes: Sequence[Node], memory: KvMemory) -> StepItem:
        """Return the session's item of the next step: `chunk` prefill rows, then `nodes` (empty, or the tip
        and nodes below it, parents first)."""
        start = len(self.lease.slots)
        slots = memory.take(self.lease, chunk + len(nodes))
        self.rows = StepRows(chunk, nodes, slots, self._bare_step_granted)
        if nodes and self.arrivals.has_live:
            self.share.offered(any(node.wire_id for node in nodes[1:]))
        self._bare_step_granted = self._bare_step_granted and not nodes  # a prefill chunk leaves it
        if not chunk and len(nodes) == 1:  # the most frequent case; this takes a third of the time
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
            self._text.prompt,
            self._text.generated(self.tree.committed, start),
            self._offers.ask(self.tree, nodes) if nodes and self._offers.decides else None,
            self.request.logprobs,
            self._text.history(self.tree.committed, start),
            self.request.hints,
            self.prompt_length,
        )

    def item_ahead(self, token: IntArray, slots: Sequence[int]) -> StepItem:
        """Return the session's item of the step after the running one, which must be its `only_tip`. `token`
        [1] is filled in later; `slots` holds the slot of its row."""
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
            self._text.prompt,
            self._text.generated(self.tree.committed, position),
            logprobs=self.request.logprobs,
            history=self._text.history(self.tree.committed, position),
            hint=self.request.hints,
            prompt_length=self.prompt_length,
        )

    def hint(self, said: Sequence[Sequence[int]]) -> Hint | None:
        """Return the hint at the node where the running step probably ends. `said` holds the likely tokens
        after each of its nodes, best first; None if there are none."""
        if self.rows is None or self.ended or self.stalled_at is not None:
            return None
        by_id = {node.id: likely for node, likely in zip(self.rows.nodes, said, strict=False)}
        node: Node | None = self.tree.tip
        while node is not None and (likely := by_id.get(node.id)):
            below = node.children.get(likely[0], 0)
            if below not in by_id:
                return hint_at(self.tree, node, likely)
            node = self.tree.live.get(below)
        return None

    def begin_ahead(self, slots: list[int]) -> None:
        """Note that the engine has begun the step of `item_ahead`. `slots` holds the slot of its row."""
        self.rows = StepRows(0, [self.tree.tip], slots, False)

    def apply(self, choices: IntArray, memory: KvMemory, now: float, in_next: bool = False) -> StepProgress:
        """Apply the step's choices: commit, keep the committed slots and free the others. A prompt that is
        read completely goes to the prefix cache. `in_next`: the session's next step runs already."""
        rows, self.rows = self.rows, None
        assert rows is not None, "in the step"
        nodes, slots = rows.nodes, rows.slots
        progress = StepProgress(self, self.ready_at, len(slots), len(nodes))
        self.ready_at = now
        for node, choice in zip(nodes, choices.tolist(), strict=True):
            node.choice = choice
        # Commit the target's choices from the tip on, as far as they are known.
        tree, tokens, sources = self.tree, progress.tokens, self._sources
        progress.start = len(tree.committed)
        while progress.finish is None and (token := tree.tip.choice) is not None:
            child, bit = tree.live.get(tree.tip.children.get(token, 0)), 1 << len(tokens)
            if child is None or not child.wire_id:  # no node, or a guess that the edge did not propose
                progress.server_made |= bit
            if child is not None and (not child.wire_id or any(each.proposed(child) for each in sources)):
                progress.guessed |= bit
            for source in sources:
                source.learn(tree.tip.id, token)
            tree.advance(token)
            tokens.append(token)
            progress.finish = self.finish_reason()
        if not rows.chunk and len(nodes) == 1:  # its tip alone, which is committed
            progress.outputs = (0,)
            memory.settle(self.lease, slots, ())
        else:
            for source in sources:
                source.forget(tree, nodes)
            on_path = [output for output, node in enumerate(nodes) if node.committed]
            progress.outputs = on_path[: len(tokens)]  # the last one may be a tip that ends the text
            kept, freed = slots[: rows.chunk], list[int]()
            for node, slot in zip(nodes, slots[rows.chunk :], strict=True):
                (kept if node.committed else freed).append(slot)
            memory.settle(self.lease, kept, freed)
            if rows.chunk and nodes and not memory.recurrent:
                memory.publish(self.lease, self.evaluated, in_next)
        if self.awaited.is_told:
            had_nodes = any(node.wire_id for node in nodes[1:])
            self.awaited.committed(tree.tip_position, had_nodes, self.arrivals.has_live, now)
        self.share.turn_over(progress.num_drafts)
        return progress

    def abort_step(self, memory: KvMemory) -> StepProgress:
        """Free the slots of a step without results, so that the session can try again."""
        rows, self.rows = self.rows, None
        assert rows is not None, "in the step"
        memory.settle(self.lease, (), rows.slots)
        self._bare_step_granted |= rows.bare
        return StepProgress(self, self.ready_at, len(rows.slots), len(rows.nodes), lost=True)

    def commit(
        self,
        part: StepProgress,
        began_at: float,
        duration: float,
        now: float,
        credit: int,
        logprobs: tuple[TokenLogprobs, ...],
    ) -> Commit:
        """Return the message with the tokens of a step of `duration` seconds."""
        echo = self.num_proposes if self.num_proposes > self._num_echoed else 0  # only once for each
        is_new, self._num_echoed, self.credit_told = credit != self.credit_told, self.num_proposes, credit
        return Commit(
            start=part.start,
            tokens=tuple(part.tokens),
            server_made=part.server_made,
            guessed=part.guessed,
            echo=echo,
            hold_us=max(0, round((now - self.proposed_at) * 1e6)) if echo else 0,
            queue_us=max(0, round((began_at - part.ready_at) * 1e6)),
            compute_us=round(duration * 1e6),
            credit=credit if is_new else None,
            evaluated=part.num_outputs,
            logprobs=logprobs,
        )

    def finish_reason(self) -> FinishReason | None:
        """Return why the committed text is complete; None if it is not."""
        committed = self.tree.committed
        if committed[-1] in self._stop_ids and len(committed) > self.prompt_length:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(committed) >= self.max_length else None

    # Inside -----------------------------------------------------------------------------------------------

    def _rows(self, start: int, chunk: int, nodes: Sequence[Node], slots: Sequence[int]) -> IntArray:
        """Return int32 [4, T]: tokens, positions, parents and slots."""
        row_of = {node.id: row for row, node in enumerate(nodes, chunk)}
        parents = list(range(-1, chunk - 1 + bool(nodes)))  # the tip follows the chunk
        parents += [row_of[node.parent] for node in nodes[1:]]  # type: ignore[index]  # only a tip has none
        tokens = self.tree.committed[start : start + chunk] + [node.token for node in nodes]
        positions = list(range(start, start + chunk)) + [node.position for node in nodes]
        return np.array((tokens, positions, parents, slots), dtype=np.int32)


def _counting(start: int, count: int) -> IntArray:
    """Return int32 [count] from `start` on, a shared array where possible."""
    if not start and count < len(_FROM_NOTHING):
        return _FROM_NOTHING[:count]
    return np.arange(start, start + count, dtype=np.int32)
