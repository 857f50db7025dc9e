"""Several sessions on one llama.cpp context: one llama_decode a turn evaluates the rows of all.

Guarantees for each session:

- **Fair share.** If the requested rows exceed a turn, sessions share them max-min fairly. An indivisible
  rest goes to the first in line, and the session with the most rows moves to the end.
- **Short waits for prompts.** While another session has a text, a batch of a prompt takes at most
  `BATCH_TIME` by measurement; groups that compute by turns divide it. Prompts get a third of the time, and
  all time without requested rows.
- **Short waits for masks.** While several sessions have a text, sessions with expensive masks share 5 % of
  the time, one row a turn (`MaskTime`).
- **Isolated failures.** A batch that llama.cpp refuses is undone. Each of its sessions then tries alone:
  first without its branches, then with an empty KV, then it fails.

llama.cpp's attention computes all cells up to the last in use, also those of other sessions. So a beginning
text parks the kept texts of released sessions: it copies their KV out of the cells, and back for a text with
the same beginning. Reading takes about a hundred times as long.

Room is made in this order: the kept texts; the requesting session's branches; the branches of the session
with the most, if it exceeds its share.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from common.errors import CapacityError, ForerunError, LocalError, UserError
from common.estimators import WidthTimes
from common.llama.runtime import NO_KV_SLOT, LlamaRuntime
from common.mask_time import MaskCost, MaskTime
from common.sampling import SamplingParams
from edge_client.core.effects import (
    DEAR_MASKS,
    NOTHING_READ,
    DraftRow,
    Expansion,
    Outcome,
    ReadingTime,
    Reroot,
    StartDrafter,
)
from edge_client.draft.batch_plan import BatchPlan, DraftNode, EngineSurprise
from edge_client.draft.branches import Sequences
from edge_client.draft.llama_session import LlamaSession, ParkedText, num_equal

logger = logging.getLogger(__name__)

BATCH_TIME = 0.1
"""Seconds that a batch of a prompt may take. The processor can do nothing else meanwhile."""

ALONE = 32
"""Tokens of a prompt in a batch of the only session, even if `BATCH_TIME` allows fewer. Larger batches are
faster. A session that begins meanwhile waits for some tenths of a second."""

OTHERS_TIME = 2.0
"""Seconds of other sessions' draft steps after each second of evaluating a prompt."""

ASKS_AGAIN = 0.005
"""Seconds within which a drafting session requests its next step, if it needs one."""

ASSUMED = {1: 0.002, 2: 0.0025}
"""Seconds of a batch by its tokens, before the first measurement."""

MAX_STRIKES = 3  # after branches dropped and KV emptied, a third failure is the session's


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """Reports the end of a session's draft step."""

    member: int
    outcome: Outcome
    reading: ReadingTime = NOTHING_READ


@dataclass(slots=True, eq=False)
class GroupMember:
    """Holds a session's place in the group and its pending draft step."""

    index: int
    session: LlamaSession
    is_drafting: bool = False  # has a text and has not failed or been released
    asked: list[DraftNode] | None = None  # of the draft step under way
    todo: list[DraftNode] = field(default_factory=list)  # the unanswered rows of `asked`
    limit: int = 0  # most rows a turn: halved when more found no room
    strikes: int = 0  # failures in a row
    is_suspect: bool = False  # was in a failed batch: goes alone
    failure: ForerunError | None = None  # since its text began
    released_at: int = 0  # turn; the first released is the first forgotten
    num_rows: int = 0  # draft rows evaluated for it so far
    reading: ReadingTime = NOTHING_READ  # in the draft step under way
    grammar: str = ""  # of its text
    masks: MaskCost = field(default_factory=MaskCost)  # kept by `MaskTime`

    @property
    def tenant(self) -> str:
        return str(self.index)

    def forget(self) -> None:
        """Drop the draft step."""
        self.asked, self.todo, self.reading = None, [], NOTHING_READ
        self.is_suspect, self.strikes = False, 0


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """Marks the rows [start, stop) of a batch as a member's."""

    member: GroupMember
    start: int
    stop: int


class DraftGroup:
    """Schedules the draft steps of several sessions. One thread drives it.

    Inputs are `begin`, `reroot`, `ask` and `release` of members 0..size-1, then `turn` while `has_work`. A
    member has at most one draft step under way, and until its end no other input but `release`.
    Raises `UserError` if the context has too few sequences for `size` members.
    """

    levels = 1  # of the tree that a decode buys

    def __init__(
        self,
        runtime: LlamaRuntime,
        size: int,
        num_candidates: int = 5,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not 1 <= size <= runtime.n_seq_max // 2:
            raise UserError(
                f"{size} sessions at once need n_seq_max to be {2 * size} at least and it is "
                f"{runtime.n_seq_max}: each has its text and one branch; raise n_seq_max or take fewer seats"
            )
        self._runtime, self._clock = runtime, clock
        self._sequences = Sequences(runtime, size, runtime.n_seq_max)
        self.members = tuple(
            GroupMember(index, self._session(index, num_candidates)) for index in range(size)
        )
        self._line = list(self.members)  # the longest wait first
        self.beside = [self]  # the groups that compute by turns on this processor
        self.batch_times = WidthTimes(ASSUMED)  # of batches, by their tokens
        self._piece = self._find_piece()  # tokens of a prompt in one batch
        self._debt = 0.0  # seconds of draft steps owed for reading prompts
        self._answered_at = 0.0  # end of the last draft step
        self._num_releases = 0
        self.parked: tuple[ParkedText, ...] = ()  # the first parked is the first forgotten
        self._answers: list[MemberAnswer] = []
        self._mask_time = MaskTime()
        self._is_full_told = False  # a text has not fitted, and the log says so

    def _session(self, trunk: int, num_candidates: int) -> LlamaSession:
        return LlamaSession(self._runtime, self._sequences, trunk, num_candidates, self._clock)

    @property
    def has_work(self) -> bool:
        """Tell whether `turn` has anything to do."""
        return bool(self._answers) or any(member.todo for member in self.members)

    @property
    def pause(self) -> float | None:
        """Return the seconds until `turn` has work without an input; None: it never has."""
        if not self.has_work:
            return None
        now = self._clock()
        drafters, masks_at = self._let_in(now)
        if self._answers or drafters:
            return 0.0
        waits = [] if masks_at is None else [masks_at]
        if any(member.todo and self._must_read(member) for member in self.members):
            waits.append(self._answered_at + ASKS_AGAIN if self._owes_time else now)
        return max(0.0, min(waits) - now)

    def begin(self, index: int, start: StartDrafter) -> None:
        """Begin a member's new text. A failure is the answer to its first draft step."""
        member, session = self.members[index], self.members[index].session
        member.forget()
        if self._kept != [member] or 2 * session.num_common(start.tokens) < session.num_held:
            self._park_kept()
        member.failure, member.is_drafting = None, True
        self._piece = self._find_piece()
        member.grammar = start.sampling.grammar
        self._mask_time.begin(member)
        try:
            session.begin(start.tokens, start.tip, start.sampling, start.plain, start.generated)
        except ForerunError as error:
            self._fail(member, error)
            return
        lenders = (other.session for other in self.members if other is not member)
        session.borrow(max(lenders, key=lambda other: other.num_common(start.tokens), default=session))
        if self.parked:
            common, parked = max(
                ((num_equal(each.tokens, start.tokens), each) for each in self.parked), key=itemgetter(0)
            )
            if session.load(parked) and 2 * common >= len(parked.tokens):
                self.parked = tuple(each for each in self.parked if each is not parked)

    @property
    def _kept(self) -> list[GroupMember]:
        """Return the released members with cells, the first released first."""
        kept = [member for member in self.members if not member.is_drafting and member.session.num_held]
        return sorted(kept, key=lambda member: member.released_at)

    def _park_kept(self) -> bool:
        """Free the cells of kept texts. Return False without any.

        All parked texts together have `n_ctx` tokens at most, and of a recurrent model `n_seq_max` states.
        """
        kept = [member.session.park() for member in self._kept]
        parked = [*self.parked, *kept]
        while sum(len(each.tokens) for each in parked) > self._runtime.n_ctx:
            del parked[0]
        if self._runtime.is_recurrent:
            del parked[: -self._runtime.n_seq_max]
        self.parked = tuple(parked)
        return bool(kept)

    def reroot(self, index: int, change: Reroot) -> None:
        """Move a member's tip."""
        if self.members[index].failure is None:
            self.members[index].session.reroot(change)

    def ask(self, index: int, rows: Sequence[DraftRow]) -> None:
        """Begin a member's draft step. A later `turn` answers, the next one if it needs no evaluation."""
        member = self.members[index]
        if member.failure is not None:
            self._answers.append(MemberAnswer(index, member.failure))
            return
        member.asked = []
        try:
            member.asked += [member.session.node_of(row) for row in rows]
        except ForerunError as error:
            self._fail(member, error)
            return
        member.todo = [node for node in member.asked if node.expansion is None]
        member.limit = self._runtime.max_rows
        self._answer_if_done(member)

    def num_common(self, index: int, tokens: Sequence[int]) -> int:
        """Return how many leading `tokens` a member's text has evaluated. Any thread may call."""
        return self.members[index].session.num_common(tokens)

    def num_kept(self, tokens: Sequence[int]) -> int:
        """Return how many leading `tokens` some text has evaluated. Any thread may call; the group's own may
        park a text meanwhile, which costs little."""
        parked = [num_equal(each.tokens, tokens) for each in self.parked]
        return max([*parked, *(member.session.num_common(tokens) for member in self.members)])

    def release(self, index: int) -> None:
        """End a member's text and drop its draft step. Its evaluated tokens are kept."""
        member = self.members[index]
        member.forget()
        member.is_drafting = False
        member.session.release()
        self._num_releases += 1
        member.released_at = self._num_releases

    def fail(self, index: int, error: ForerunError) -> None:
        """Stop a member's drafting until its next text, because of a defect."""
        self._fail(self.members[index], error)

    def turn(self) -> list[MemberAnswer]:
        """Evaluate one batch if a member waits. Return the ended draft steps in order."""
        plan = BatchPlan()
        slices = self._fill_plan(plan)
        if slices:
            self._evaluate(plan, slices)
            served = {part.member.index: part.stop - part.start for part in slices}
            self._line.sort(key=lambda member: served.get(member.index, 0))  # stable: equals keep their order
        answers, self._answers = self._answers, []
        return answers

    def _fill_plan(self, plan: BatchPlan) -> list[BatchSlice]:
        """Fill the plan: draft rows first, then pieces of prompts."""
        drafters, _ = self._let_in(self._clock())
        readers = [member for member in self._line if member.todo and self._must_read(member)]
        suspects = [member for member in (*drafters, *readers) if member.is_suspect]
        if suspects:
            drafters = [member for member in drafters if member is suspects[0]]
            readers = [member for member in readers if member is suspects[0]]
        slices: list[BatchSlice] = []
        most = [1 if self._is_held_back(each) else min(len(each.todo), each.limit) for each in drafters]
        rows = fair_shares(most, self._runtime.max_rows)
        for member, share in zip(drafters, rows, strict=True):
            if not share:
                continue
            start = plan.begin()
            try:
                member.session.plan_rows(member.todo[:share], plan)
            except EngineSurprise as surprise:  # neither the batch nor the sequences have room
                member.session.retract(plan.cut(start))
                if not slices:  # other members of this turn took no room
                    self._strike(member, surprise)
                continue
            if self._is_held_back(member):
                member.reading += DEAR_MASKS
            slices.append(BatchSlice(member, start, len(plan.tokens)))
        if readers:
            tokens = fair_shares([each.session.num_missing for each in readers], self._room_to_read(plan))
            for member, share in zip(readers, tokens, strict=True):
                if share:
                    start = plan.begin()
                    member.session.plan_text(share, plan)
                    slices.append(BatchSlice(member, start, len(plan.tokens)))
        return slices

    def _must_read(self, member: GroupMember) -> bool:
        """Tell whether a member's text must be evaluated before its rows."""
        missing = member.session.num_missing
        if not missing:
            return False
        return missing > min(self._most_read, self._runtime.n_batch - self._runtime.max_rows)

    @property
    def _most_read(self) -> int:
        """Return the tokens of a prompt in one batch for the present number of sessions."""
        if self._is_shared:
            return self._piece
        return min(max(self._piece, ALONE), self._runtime.n_batch)

    @property
    def num_drafting(self) -> int:
        """Return the number of sessions that have a text now."""
        return sum(member.is_drafting for member in self.members)

    @property
    def _is_shared(self) -> bool:
        """Tell whether several sessions on this processor have a text now."""
        return sum(group.num_drafting for group in self.beside) > 1

    def _is_held_back(self, member: GroupMember) -> bool:
        """Tell whether the member's masks would delay others."""
        return member.masks.dear and self._is_shared

    def _let_in(self, now: float) -> tuple[list[GroupMember], float | None]:
        """Return the members to serve, and the time at which the masks of others may go on."""
        drafters = [member for member in self._line if member.todo and not self._must_read(member)]
        return self._mask_time.let_in(drafters, now) if self._is_shared else (drafters, None)

    @property
    def _owes_time(self) -> bool:
        """Tell whether drafting goes before reading: a session may soon request its next step."""
        return self._debt > 0 and self._somebody_drafts

    @property
    def _somebody_drafts(self) -> bool:
        return any(member.is_drafting and not self._must_read(member) for member in self.members)

    def _room_to_read(self, plan: BatchPlan) -> int:
        """Return how many tokens of prompts fit into this turn."""
        asks_again = bool(plan.tokens) or self._clock() < self._answered_at + ASKS_AGAIN
        if self._owes_time and asks_again:
            return 0
        return min(self._runtime.n_batch - len(plan.tokens), self._most_read)

    def _evaluate(self, plan: BatchPlan, slices: list[BatchSlice]) -> None:
        batch = self._runtime.batch
        batch.fill(plan.tokens, plan.positions, plan.sequences, plan.outputs)
        for row, more in plan.shared.items():
            batch.share(row, [plan.sequences[row], *more])
        began = self._clock()
        code = self._runtime.decode()
        while code == NO_KV_SLOT and self._park_kept():
            code = self._runtime.decode()
        took = self._clock() - began
        if code != 0:
            self._undo(plan, slices, EngineSurprise(f"llama_decode returned {code}", full=code == NO_KV_SLOT))
            return
        self._book(plan, slices, took)
        num_outputs = sum(plan.outputs)
        logits = self._runtime.logits(num_outputs)
        if len(logits) != num_outputs:
            self._undo(plan, slices, EngineSurprise("llama.cpp gave no logits"))
            return
        first, costs = 0, dict[int, float]()
        for part in slices:
            member, nodes = part.member, plan.nodes[part.start : part.stop]
            member.session.settle(nodes)
            outputs = plan.outputs[part.start : part.stop]
            ranked = [node for node, output in zip(nodes, outputs, strict=True) if node and output]
            if ranked or not member.todo:  # a text evaluated again does not prove that its rows will succeed
                member.is_suspect, member.strikes = False, 0
            if not ranked:
                continue
            rows, first = logits[first : first + len(ranked)], first + len(ranked)
            try:
                member.session.rank(rows, ranked)
            except ForerunError as error:
                self._fail(member, error)
            else:
                member.num_rows += len(ranked)
                member.todo = [node for node in member.todo if node.expansion is None]
                self._answer_if_done(member)
            if member.grammar and self._is_shared:
                costs[member.index] = member.session.mask_time
        if costs:
            now = self._clock()
            self._mask_time.note(dict(enumerate(self.members)), costs, now, now - began)

    def _book(self, plan: BatchPlan, slices: list[BatchSlice], took: float) -> None:
        """Record a batch's time and the time that its reading owes to drafting sessions."""
        self.batch_times.sample(len(plan.tokens), took)
        num_rows = sum(plan.outputs)
        if num_rows == len(plan.tokens):
            self._debt = max(0.0, self._debt - took / OTHERS_TIME)
            return
        self._piece = self._find_piece()
        if self._somebody_drafts:
            self._debt += max(0.0, took - self.batch_times.predict(num_rows))
        for part in slices:
            if num_read := plan.nodes[part.start : part.stop].count(None):  # committed tokens before a tip
                part.member.reading += ReadingTime(num_read, took)

    def _find_piece(self) -> int:
        """Return the tokens that this group's part of `BATCH_TIME` allows: a power of two, or a whole batch.
        Where one row takes that long already, as many as take half as long again."""
        num_groups = sum(group.num_drafting > 0 for group in self.beside)
        most = max(BATCH_TIME / max(1, num_groups), 1.5 * self.batch_times.predict(1))
        piece = 1
        while piece < self._runtime.n_batch and self.batch_times.predict(2 * piece) <= most:
            piece *= 2
        return min(piece, self._runtime.n_batch)

    def measured(self, shape: Mapping[int, float]) -> None:
        """Set the measured seconds of a batch by its tokens."""
        self.batch_times.measured(shape)
        self._piece = self._find_piece()

    def _answer_if_done(self, member: GroupMember) -> None:
        if member.asked is not None and not member.todo:
            expansions = [node.expansion for node in member.asked if node.expansion is not None]
            self._answers.append(MemberAnswer(member.index, expansions, member.reading))
            self._answered_at = self._clock()
            member.asked, member.reading = None, NOTHING_READ

    def _undo(self, plan: BatchPlan, slices: list[BatchSlice], surprise: EngineSurprise) -> None:
        """Undo a failed batch. Its members go alone next, which shows the one at fault."""
        for part in slices:
            part.member.session.retract(plan.nodes[part.start : part.stop])
            part.member.is_suspect = True
        if len(slices) == 1:
            self._strike(slices[0].member, surprise)
        else:
            logger.debug("a batch of %d sessions is retried one session at a time: %s", len(slices), surprise)

    def _strike(self, member: GroupMember, surprise: EngineSurprise) -> None:
        """Handle a lone member's surprise: try again with less KV, or fail."""
        member.strikes += 1
        member.is_suspect = True  # so that it makes room from its own KV
        member.session.note(surprise)
        if member.strikes >= MAX_STRIKES and (member.limit <= 1 or not surprise.full):
            failed = LocalError(f"the draft model failed after a resync too: {surprise}")
            self._fail(member, member.session.too_small() if surprise.full else failed)
        elif member.strikes == 1:
            member.session.drop_branches()
        elif surprise.full:
            member.session.drop_branches()
            self._rob_richest(member)
            member.limit = max(1, min(member.limit, len(member.todo)) // 2)
        else:
            member.session.clear()

    def _rob_richest(self, member: GroupMember) -> None:
        """Drop the branches of the session with the most, if they exceed its share."""
        others = [each.session for each in self.members if each is not member]
        richest = max(others, key=lambda session: session.num_branches, default=None)
        if richest is not None and richest.num_branches > self._sequences.count // max(1, self.num_drafting):
            richest.drop_branches()

    def _fail(self, member: GroupMember, error: ForerunError) -> None:
        """Stop a member's drafting until its next text and free its KV.

        An agent repeats a long text with each request, so the log warns only of the first without room.
        """
        is_told = isinstance(error, CapacityError) and self._is_full_told
        self._is_full_told |= isinstance(error, CapacityError)
        logger.log(logging.DEBUG if is_told else logging.WARNING, "x drafting ends: %s", error)
        if member.asked is not None:
            self._answers.append(MemberAnswer(member.index, error))
        member.forget()
        member.failure, member.is_drafting = error, False
        member.session.clear()


@dataclass(slots=True)
class MemberDrafter:
    """Drafts for one text by a group's member. `expand` blocks until the draft step has ended.

    Answers to other members stay in `answers`. All drafters of a group must share that mapping.
    """

    group: DraftGroup
    index: int = 0
    answers: dict[int, MemberAnswer] = field(default_factory=dict)
    reading: ReadingTime = NOTHING_READ

    def start(self, tokens: Sequence[int], tip: int, sampling: SamplingParams, plain: int = 0) -> None:
        """Begin a text. Raises the `ForerunError` of a text that cannot be drafted."""
        self.group.begin(self.index, StartDrafter(tuple(tokens), tip, sampling, plain))
        if failure := self.group.members[self.index].failure:
            raise failure

    def reroot(self, change: Reroot) -> None:
        self.group.reroot(self.index, change)

    def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
        """Run a draft step. Raises its `ForerunError`."""
        self.group.ask(self.index, rows)
        while self.index not in self.answers:
            self.answers |= {answer.member: answer for answer in self.group.turn()}
        answer = self.answers.pop(self.index)
        self.reading = answer.reading
        if isinstance(answer.outcome, ForerunError):
            raise answer.outcome
        return list(answer.outcome)


def fair_shares(wanted: Sequence[int], total: int) -> list[int]:
    """Divide `total` max-min fairly. An indivisible rest goes to the first."""
    if sum(wanted) <= total:
        return list(wanted)
    shares = [0] * len(wanted)
    hungry = [place for place, want in enumerate(wanted) if want > 0]
    while hungry and total > 0:
        each = max(1, total // len(hungry))
        for place in hungry:
            more = min(each, wanted[place] - shares[place], total)
            shares[place] += more
            total -= more
        hungry = [place for place in hungry if shares[place] < wanted[place]]
    return shares
