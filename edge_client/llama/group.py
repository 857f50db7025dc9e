"""Several sessions on one llama.cpp context: the rows that all of them wait for, in one llama_decode a turn.

What a session may count on, however many there are:

- **Its share.** Where the rows asked for exceed a turn, each session gets as many as every other that still
  wants some; what cannot be divided goes to the first in line, and who was given most goes to its end.
- **Not to wait for another's prompt.** While another session has a text, a batch of a prompt takes
  `BATCH_TIME` at most, by measured time. Reading gets a third of the time, and all the time in which nobody
  asks for rows.
- **Not to wait for another's dear masks.** While several sessions have a text, those with dear masks share
  5 % of the time, one row a turn (`MaskTime`).
- **Its own failure only.** A batch that llama.cpp did not take is undone, and each of its sessions tries
  alone in the next turns: first with its branches dropped, then with its KV empty, then it fails.

Room is made in this order: the kept texts of released sessions, oldest first; the asking session's branches;
those of the session that has the most, if that is more than its share.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from common.errors import ForerunError, LocalError, UserError
from common.estimators import WidthTimes
from common.mask_time import MaskTime
from edge_client.core.drafter import DEAR_MASKS, NOTHING_READ, DraftRow, Expansion, Reading, Reroot
from edge_client.core.effects import StartDrafter
from edge_client.llama.plan import BatchPlan, DraftNode, Surprise
from edge_client.llama.ranking import Logits
from edge_client.llama.runtime import NO_KV_SLOT, LlamaRuntime
from edge_client.llama.sequences import Sequences
from edge_client.llama.session import LlamaSession, check_spans

logger = logging.getLogger(__name__)

Outcome = Sequence[Expansion] | ForerunError

BATCH_TIME = 0.1
"""Seconds that a batch of a prompt may take. The model can do nothing else meanwhile."""

ALONE = 32
"""Tokens of a prompt in a batch of the only session, even if `BATCH_TIME` allows fewer. Larger batches read
faster, and a session that comes meanwhile waits for some tenths of a second."""

OTHERS_TIME = 2.0
"""Seconds of other sessions' draft steps that come after each second of reading a prompt."""

ASKS_AGAIN = 0.005
"""Seconds within which a session that drafts asks for its next step, if it wants one."""

ASSUMED = {1: 0.002, 2: 0.0025}
"""Seconds of a batch by its tokens, before any was measured."""

MAX_STRIKES = 3  # after branches dropped and KV emptied, a third failure is the session's


@dataclass(frozen=True, slots=True)
class Answer:
    """How a draft step of a session ended."""

    member: int
    outcome: Outcome
    reading: Reading = NOTHING_READ


@dataclass(slots=True, eq=False)
class Member:
    """A place for a session in the group, and what its session waits for."""

    index: int
    session: LlamaSession
    is_drafting: bool = False  # has a text and has not failed or been released
    asked: list[DraftNode] | None = None  # of the draft step under way
    todo: list[DraftNode] = field(default_factory=list)  # those of them that are not answered yet
    limit: int = 0  # rows of it a turn at most: halved where more found no room
    strikes: int = 0  # failures in a row
    is_suspect: bool = False  # was in a batch that failed: goes alone
    failure: ForerunError | None = None  # since its text began
    released_at: int = 0  # turn; who was released first is forgotten first
    num_rows: int = 0  # draft rows evaluated for it so far
    reading: Reading = NOTHING_READ  # in the draft step under way
    grammar: str = ""  # of its text
    dear_masks: bool = False  # see `MaskTime`
    masks_known: bool = False

    @property
    def tenant(self) -> str:
        """Dear masks are shared out by members."""
        return str(self.index)

    def forget(self) -> None:
        """No draft step is under way any more."""
        self.asked, self.todo, self.reading = None, [], NOTHING_READ
        self.is_suspect, self.strikes = False, 0


@dataclass(frozen=True, slots=True)
class Ride:
    """Rows [start, stop) of a batch, which are a member's."""

    member: Member
    start: int
    stop: int


class DraftGroup:
    """Driven by `begin`, `reroot`, `ask` and `release` of its members 0..size-1, then `turn` while
    `has_work`. One thread. A member has one draft step under way at most, and meanwhile no other input but
    `release`.

    Raises `UserError` if the context has too few sequences for so many.
    """

    def __init__(
        self,
        runtime: LlamaRuntime,
        size: int,
        num_candidates: int = 5,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock`: seconds, monotonic."""
        if not 1 <= size <= runtime.n_seq_max // 2:
            raise UserError(
                f"{size} sessions at once need n_seq_max to be {2 * size} at least and it is "
                f"{runtime.n_seq_max}: each has its text and one branch; raise n_seq_max or take fewer seats"
            )
        self._runtime = runtime
        self._sequences = Sequences(runtime, size, runtime.n_seq_max)
        self.members = tuple(
            Member(index, LlamaSession(runtime, self._sequences, index, num_candidates, clock))
            for index in range(size)
        )
        self._line = list(self.members)  # who waited longest first
        self._clock = clock
        self.batch_times = WidthTimes(ASSUMED)  # of batches, by their tokens
        self._piece = self._find_piece()  # tokens of a prompt in one batch
        self._debt = 0.0  # seconds of draft steps that reading owes to those who draft
        self._answered_at = 0.0  # when a draft step ended last
        self._num_releases = 0
        self._answers: list[Answer] = []
        self._mask_time = MaskTime()

    # --- inputs -----------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `turn` has anything to do."""
        return bool(self._answers) or any(member.todo for member in self.members)

    @property
    def pause(self) -> float | None:
        """Seconds for which `turn` has nothing to do unless there is an input; None: until there is one."""
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
        """A member's new text. What it fails of is answered to the first draft step asked for."""
        member, session = self.members[index], self.members[index].session
        member.forget()
        member.failure, member.is_drafting = None, True
        member.grammar = start.sampling.grammar
        self._mask_time.begin(member)
        try:
            session.begin(start.tokens, start.tip, start.sampling, start.plain)
        except ForerunError as error:
            self._fail(member, error)
            return
        lenders = (other.session for other in self.members if other is not member)
        session.borrow(max(lenders, key=lambda other: other.num_common(start.tokens), default=session))

    def reroot(self, index: int, change: Reroot) -> None:
        """A member's tip moved."""
        if self.members[index].failure is None:
            self.members[index].session.reroot(change)

    def ask(self, index: int, rows: Sequence[DraftRow]) -> None:
        """A member's draft step: an `Answer` of a later `turn`, at once if nothing is to be evaluated."""
        member = self.members[index]
        if member.failure is not None:
            self._answers.append(Answer(index, member.failure))
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

    def release(self, index: int) -> None:
        """A member's text is over, and nobody waits for its draft step. What it has evaluated is kept."""
        member = self.members[index]
        member.forget()
        member.is_drafting = False
        member.session.release()
        self._num_releases += 1
        member.released_at = self._num_releases

    def fail(self, index: int, error: ForerunError) -> None:
        """A member drafts no more until its next text: a defect was met."""
        self._fail(self.members[index], error)

    # --- a turn -----------------------------------------------------------------------------------------

    def turn(self) -> list[Answer]:
        """Evaluate one batch, if anybody waits for one; the draft steps that ended, in order."""
        plan = BatchPlan()
        rides = self._board(plan)
        if rides:
            self._evaluate(plan, rides)
            served = {ride.member.index: ride.stop - ride.start for ride in rides}
            self._line.sort(key=lambda member: served.get(member.index, 0))  # stable: of equals, as before
        answers, self._answers = self._answers, []
        return answers

    def _board(self, plan: BatchPlan) -> list[Ride]:
        """Fill the plan: draft rows first, then pieces of prompts."""
        drafters, _ = self._let_in(self._clock())
        readers = [member for member in self._line if member.todo and self._must_read(member)]
        suspects = [member for member in (*drafters, *readers) if member.is_suspect]
        if suspects:
            drafters = [member for member in drafters if member is suspects[0]]
            readers = [member for member in readers if member is suspects[0]]
        rides: list[Ride] = []
        most = [1 if self._is_held_back(each) else min(len(each.todo), each.limit) for each in drafters]
        rows = fair_shares(most, self._runtime.max_rows)
        for member, share in zip(drafters, rows, strict=True):
            if share:
                self._plan_rows(member, share, plan, rides)
        tokens = fair_shares([each.session.num_missing for each in readers], self._room_to_read(plan))
        for member, share in zip(readers, tokens, strict=True):
            if share:
                start = plan.begin()
                member.session.plan_text(share, plan)
                rides.append(Ride(member, start, len(plan.tokens)))
        return rides

    def _must_read(self, member: Member) -> bool:
        """Whether a member's text is to be evaluated before its rows can be."""
        beside_rows = self._runtime.n_batch - self._runtime.max_rows
        return member.session.num_missing > min(self._most_read, beside_rows)

    @property
    def _most_read(self) -> int:
        """Tokens of a prompt in one batch, for as many sessions as have a text now."""
        if self._is_shared:
            return self._piece
        return min(max(self._piece, ALONE), self._runtime.n_batch)

    @property
    def _is_shared(self) -> bool:
        """Whether several sessions have a text now."""
        return sum(member.is_drafting for member in self.members) > 1

    def _is_held_back(self, member: Member) -> bool:
        """Whether its masks would hold others up."""
        return member.dear_masks and self._is_shared

    def _let_in(self, now: float) -> tuple[list[Member], float | None]:
        """Those who wait for rows and whose masks need not wait; and until when those of the others do."""
        drafters = [member for member in self._line if member.todo and not self._must_read(member)]
        return self._mask_time.let_in(drafters, now) if self._is_shared else (drafters, None)

    @property
    def _owes_time(self) -> bool:
        """Whether sessions that draft come before reading now: one may be about to ask for its next step."""
        return self._debt > 0 and self._somebody_drafts

    @property
    def _somebody_drafts(self) -> bool:
        return any(member.is_drafting and not self._must_read(member) for member in self.members)

    def _room_to_read(self, plan: BatchPlan) -> int:
        """Tokens of prompts in this turn."""
        asks_again = bool(plan.tokens) or self._clock() < self._answered_at + ASKS_AGAIN
        if self._owes_time and asks_again:
            return 0
        return min(self._runtime.n_batch - len(plan.tokens), self._most_read)

    def _plan_rows(self, member: Member, share: int, plan: BatchPlan, rides: list[Ride]) -> None:
        """A member's rows, if the batch and the sequences have room for them."""
        start = plan.begin()
        try:
            member.session.plan_rows(member.todo[:share], plan)
        except Surprise as surprise:
            member.session.retract(plan.cut(start))
            if not rides:  # not for want of what others of this turn took
                self._strike(member, surprise)
            return
        if self._is_held_back(member):
            member.reading += DEAR_MASKS
        rides.append(Ride(member, start, len(plan.tokens)))

    def _evaluate(self, plan: BatchPlan, rides: list[Ride]) -> None:
        plan.fill(self._runtime.batch)
        began = self._clock()
        code = self._runtime.decode()
        while code == NO_KV_SLOT and self._forget_oldest():
            code = self._runtime.decode()
        took = self._clock() - began
        if code != 0:
            self._undo(plan, rides, Surprise(f"llama_decode returned {code}", full=code == NO_KV_SLOT))
            return
        self._book(plan, rides, took)
        num_outputs = sum(plan.outputs)
        logits = self._runtime.logits(num_outputs)
        if len(logits) != num_outputs:
            self._undo(plan, rides, Surprise("llama.cpp gave no logits"))
            return
        first, costs = 0, dict[int, float]()
        for ride in rides:
            nodes, outputs = plan.nodes[ride.start : ride.stop], plan.outputs[ride.start : ride.stop]
            ride.member.session.settle(nodes)
            ranked = [node for node, output in zip(nodes, outputs, strict=True) if node and output]
            self._serve(ride.member, logits[first : first + len(ranked)], ranked)
            if ranked and ride.member.grammar and self._is_shared:
                costs[ride.member.index] = ride.member.session.mask_time
            first += len(ranked)
        now = self._clock()
        self._mask_time.note(dict(enumerate(self.members)), costs, now, now - began)

    def _book(self, plan: BatchPlan, rides: list[Ride], took: float) -> None:
        """Book how long a batch took, and how much time its reading owes to sessions that draft."""
        self.batch_times.sample(len(plan.tokens), took)
        num_rows = sum(plan.outputs)
        if num_rows == len(plan.tokens):
            self._debt = max(0.0, self._debt - took / OTHERS_TIME)
            return
        self._piece = self._find_piece()
        if self._somebody_drafts:
            self._debt += max(0.0, took - self.batch_times.predict(num_rows))
        for ride in rides:
            if num_read := plan.num_read(ride.start, ride.stop):
                ride.member.reading += Reading(num_read, took)

    def _find_piece(self) -> int:
        """As many tokens as `BATCH_TIME` allows: a power of two, or a whole batch."""
        piece = 1
        while piece < self._runtime.n_batch and self.batch_times.predict(2 * piece) <= BATCH_TIME:
            piece *= 2
        return min(piece, self._runtime.n_batch)

    def measured(self, shape: Mapping[int, float]) -> None:
        """Take seconds of a batch by its tokens, as measured with this model."""
        self.batch_times.measured(shape)
        self._piece = self._find_piece()

    def _serve(self, member: Member, logits: Logits, nodes: list[DraftNode]) -> None:
        """A member's rows were evaluated; `nodes` are those with logits."""
        if nodes or not member.todo:  # a text read again is no proof that the rows below it will do
            member.is_suspect, member.strikes = False, 0
        if not nodes:
            return
        try:
            member.session.rank(logits, nodes)
        except ForerunError as error:
            self._fail(member, error)
            return
        member.num_rows += len(nodes)
        member.todo = [node for node in member.todo if node.expansion is None]
        self._answer_if_done(member)

    def _answer_if_done(self, member: Member) -> None:
        if member.asked is not None and not member.todo:
            found = [node.expansion for node in member.asked if node.expansion is not None]
            self._answers.append(Answer(member.index, found, member.reading))
            self._answered_at = self._clock()
            member.asked, member.reading = None, NOTHING_READ

    # --- failures ---------------------------------------------------------------------------------------

    def _undo(self, plan: BatchPlan, rides: list[Ride], surprise: Surprise) -> None:
        """A batch was not evaluated. Whose fault it is shows when its members go alone."""
        for ride in rides:
            ride.member.session.retract(plan.nodes[ride.start : ride.stop])
            ride.member.is_suspect = True
        if len(rides) == 1:
            self._strike(rides[0].member, surprise)
        else:
            logger.debug("a batch of %d sessions is tried one by one: %s", len(rides), surprise)

    def _strike(self, member: Member, surprise: Surprise) -> None:
        """A member alone met a surprise: it tries again with less, or fails."""
        member.strikes += 1
        member.is_suspect = True  # what room is made is its own
        member.session.note(surprise)
        if member.strikes >= MAX_STRIKES and (member.limit <= 1 or not surprise.full):
            failed = LocalError(f"the draft model failed after a resync too: {surprise}")
            self._fail(member, member.session.no_room() if surprise.full else failed)
        elif member.strikes == 1:
            member.session.drop_branches()
        elif surprise.full:
            member.session.drop_branches()
            self._rob_richest(member)
            member.limit = max(1, min(member.limit, len(member.todo)) // 2)
        else:
            member.session.clear()

    def _rob_richest(self, member: Member) -> None:
        """The session with the most branches loses them if they are more than its share."""
        num_drafting = sum(each.is_drafting for each in self.members)
        others = [each.session for each in self.members if each is not member]
        richest = max(others, key=lambda session: session.num_branches, default=None)
        if richest is not None and richest.num_branches > self._sequences.count // max(1, num_drafting):
            richest.drop_branches()

    def _forget_oldest(self) -> bool:
        """Give up the kept text of the session released first. False: there is none."""
        kept = [member for member in self.members if not member.is_drafting and member.session.num_held]
        if not kept:
            return False
        min(kept, key=lambda member: member.released_at).session.clear()
        return True

    def _fail(self, member: Member, error: ForerunError) -> None:
        """A member drafts no more until its next text; what it held is free for the others."""
        logger.warning("x drafting ends: %s", error)
        if member.asked is not None:
            self._answers.append(Answer(member.index, error))
        member.forget()
        member.failure, member.is_drafting = error, False
        member.session.clear()

    # --- law 3 ------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """No sequence, cell or node leaks, whoever has it. Raises `LocalError`."""
        self._sequences.check_integrity()
        for member in self.members:
            member.session.check_integrity()
        check_spans(self._runtime, dict.fromkeys(self._sequences.idle, 0))


def fair_shares(wanted: Sequence[int], total: int) -> list[int]:
    """`total` divided so that nobody gets more than wanted, and who gets less gets as much as anybody; what
    cannot be divided goes to the first."""
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
