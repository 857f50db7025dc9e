"""Drives the real `EdgeSession` and `VerifyScheduler` in virtual time, with events in place of gRPC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from cloud_verifier.core import effects as verifier_effects
from cloud_verifier.core.engine_protocol import (
    HINTED,
    GuessPlan,
    GuessResult,
    StepHints,
    StepPlan,
    StepResult,
    TargetInfo,
)
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.lookahead import NextStep
from cloud_verifier.core.scheduler import VerifyScheduler
from common.calibration import Beliefs, PriorTable
from common.errors import LocalError, UserError
from common.messages import Close, Commit, Open, Propose, ServerMessage
from common.prompt_lookup import NO_TEXTS, SharedTexts
from common.sampling import SamplingParams
from common.wire.codec import encode_request, encode_response
from edge_client.core import effects as edge_effects
from edge_client.core.draft_times import AFTER_REST
from edge_client.core.effects import DraftRow, Expansion, ReadingTime, Reroot, SessionConfig
from edge_client.core.policies import GrowthPolicy
from edge_client.core.session import EdgeSession
from simulator.drafts import HONEST
from simulator.events import Draws, DrawStream, EventHeap
from simulator.figures import SessionResult
from simulator.heads import HeadKnowledge, guess
from simulator.knowledge import PROMPT_TOKEN, VOCAB_SIZE, Knowledge, MaskedKnowledge, ReplayedKnowledge
from simulator.virtual_lane import DOWN, UP, VirtualLane
from simulator.world import SmallDraft, World, dealt

FINGERPRINT = b"simulated"
FRAME = 14  # bytes that gRPC and HTTP/2 put before a message

PolicyMaker = Callable[[Knowledge], GrowthPolicy]
"""A new policy for each session; the session's knowledge is for bounds that may look at it."""

ToEdge = ServerMessage


class SimulatedDraft:
    """Drafts from what a `Knowledge` reveals. A `small` draft foresees chains before its rows.

    A parallel draft (`masked`) evaluates `levels` of the tree for each row: later steps need no rows there.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        small: SmallDraft | None,
        draws: Draws,
        masked: MaskedKnowledge | None = None,
        levels: int = 1,
    ) -> None:
        self._knowledge = knowledge
        self._masked, self._levels = masked, levels
        self._unknown: dict[int, int] = {}  # by live node: the tokens that the row which answered did not see
        self._said: dict[int, Expansion] = {}  # of these nodes
        self._position = 0  # of the tip
        self._small, self._draws = small, draws
        # By node: its best token, and the tokens of a chain that are right below it.
        self._foreseen: dict[int, tuple[int | None, int]] = {}
        self.num_rows = self.num_small_steps = 0  # that the latest `expand` evaluated
        self._on_path: dict[int, bool] = {}  # live nodes that were drafted, and the tip
        self._tip = 0
        self._evaluated: set[int] = set()  # live nodes, and the tip
        self.num_unread = 0  # committed tokens before the tip that were not evaluated

    def start(self, tip: int) -> None:
        self._on_path, self._tip, self._evaluated, self.num_unread = {tip: True}, tip, set(), 0
        self._foreseen, self._unknown, self._said = {}, {}, {}

    def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
        self._evaluated.update(row.id for row in rows)
        self.num_unread = 0
        if self._masked is not None:
            self.num_rows = self.num_small_steps = 0
            return [self._expand_ahead(self._masked, row, {each.id for each in rows}) for row in rows]
        expansions = [self._expand(row) for row in rows]
        new = [row for row, said in zip(rows, expansions, strict=True) if not self._is_foreseen(row, said)]
        self.num_rows, self.num_small_steps = len(new), 0
        if self._small is not None and new:
            self._foresee(self._small, new, {each.id: each for each in expansions})
        return expansions

    def _expand_ahead(self, masked: MaskedKnowledge, row: DraftRow, asked: set[int]) -> Expansion:
        """Answer by the mask of an earlier step, or by a new row."""
        if row.parent is None:
            self._position = row.position
        if row.id in self._unknown:
            return self._said[row.id]
        above = None if row.parent is None else self._unknown.get(row.parent)
        if above is None or above + 1 == self._levels or (above == 0 and row.parent in asked):
            self._unknown[row.id] = 0
            self.num_rows += 1
            said = self._expand(row)
        else:
            said = self._by_mask(masked, row, above + 1)
        self._said[row.id] = said
        return said

    def _by_mask(self, masked: MaskedKnowledge, row: DraftRow, mask: int) -> Expansion:
        self._unknown[row.id] = mask
        said = self._expand(row)
        if not self._on_path[row.id]:
            return said
        tokens, scores = masked.candidates_by_mask(row.position + 1, mask)
        return Expansion(row.id, tokens, scores)

    def _follow(self, masked: MaskedKnowledge, node: int, token: int) -> None:
        """Answer by a mask below a committed token that was the best candidate there."""
        above = self._unknown.get(self._tip)
        if node in self._unknown or above is None or above + 1 == self._levels:
            return
        if self._said[self._tip].tokens[:1] == (token,):
            self._on_path[node] = True
            row = DraftRow(node, self._tip, token, self._position + 1)
            self._said[node] = self._by_mask(masked, row, above + 1)

    def _is_foreseen(self, row: DraftRow, said: Expansion) -> bool:
        """Return whether an earlier step evaluated the row as part of a chain."""
        best, left = (None, 0) if row.parent is None else self._foreseen.get(row.parent, (None, 0))
        if not left or best != row.token:
            return False
        self._foreseen[row.id] = said.tokens[0] if said.tokens else None, left - 1
        return True

    def _foresee(self, small: SmallDraft, rows: list[DraftRow], said: dict[int, Expansion]) -> None:
        """Let the small draft go on below the first row, or below the chain that begins with it."""
        end = rows[0]
        for row in rows[1:]:
            end = row if row.parent == end.id else end
        self.num_rows += small.tokens
        self.num_small_steps = small.tokens
        right = 0
        while right < small.tokens and self._agrees(small, end.position + 1 + right):
            right += 1
        if tokens := said[end.id].tokens:
            self._foreseen[end.id] = tokens[0], right

    def _agrees(self, small: SmallDraft, position: int) -> bool:
        return self._draws.uniform(DrawStream.SMALL_DRAFT, position) < small.agreement

    def reroot(self, change: Reroot) -> None:
        for node, token in change.committed:
            if self._masked is not None:
                self._follow(self._masked, node, token)
            self._position += 1
            self.num_unread += self._tip not in self._evaluated
            self._evaluated.discard(self._tip)
            self._tip = node
            self._on_path[node] = True
        self._evaluated.difference_update(change.dead)
        for node, _ in change.committed[:-1]:
            del self._on_path[node]
            self._foreseen.pop(node, None)
            self._unknown.pop(node, None)
            self._said.pop(node, None)
        for node in change.dead:
            self._on_path.pop(node, None)
            self._foreseen.pop(node, None)
            self._unknown.pop(node, None)
            self._said.pop(node, None)

    def _expand(self, row: DraftRow) -> Expansion:
        on_path, knowledge = self._on_path, self._knowledge
        right = on_path.get(row.id)
        if right is None:
            above = row.parent is not None and on_path[row.parent]
            right = on_path[row.id] = above and knowledge.truth(row.position) == row.token
        if right:
            tokens, scores = knowledge.candidates(row.position + 1)
        else:
            tokens, scores = knowledge.candidates_off_path(row.id, row.position + 1)
        return Expansion(row.id, tokens, scores)


class Receiver(Protocol):
    """Takes what a device sends: the verifier, or a relay before it."""

    def receive(self, device: SimulatedDevice, message: Open | Propose | Close) -> None:
        """Take a message that has arrived."""


class SimulatedDevice:
    """Drives one session's `EdgeSession`, and returns its result."""

    def __init__(
        self, events: EventHeap, verifier: Receiver, world: World, key: int, make: PolicyMaker
    ) -> None:
        self.world, self.key = world, key
        draws = Draws(world.seed, key)
        self.knowledge = self._known()
        self.session = EdgeSession(
            self._config(),
            make(self.knowledge),
            self._shared(),
            pace=world.device.pace(),
        )
        self.arrivals: list[float] = []
        self.finished: edge_effects.Finished | None = None
        self.began_at = 0.0
        self._events, self._verifier = events, verifier
        device = world.device
        masked = None if device.levels == 1 else masked_knowledge_of(world, key)
        self._drafter = SimulatedDraft(self.knowledge, device.small, draws, masked, device.levels)
        self._up = VirtualLane(events, world.link, UP, draws)
        self._down = VirtualLane(events, world.link, DOWN, draws)
        self._moves: list[Reroot] = []  # tip moves that wait for the draft step under way
        self._drafting = False
        self._drafted_at = 0.0  # seconds; when the latest draft step ended
        self._has_read_prompt = False

    def _known(self) -> Knowledge:
        """Return what the model that drafts here knows."""
        return knowledge_of(self.world, self.key)

    def _config(self) -> SessionConfig:
        """Return the session's configuration."""
        world = self.world
        prompt = (PROMPT_TOKEN,) * world.prompt_tokens
        if world.looks_up:  # a prompt of one token would repeat itself
            prompt = tuple(VOCAB_SIZE - 1 - place for place in range(world.prompt_tokens))
        return SessionConfig(
            prompt,
            SamplingParams(max_tokens=world.tokens, ignore_eos=True),
            FINGERPRINT,
            prior=world.draft.prior,
            recall=world.device.recall,
            draft_waits=world.device.draft_waits,
            patience=None,
            asks_when_silent=False,  # nothing is lost here, and nobody sets timers
            num_read=0 if world.device.time_to_read(len(prompt)) else len(prompt),
        )

    def _shared(self) -> SharedTexts:
        """Return the texts beside its own that the device looks up in."""
        return NO_TEXTS

    def start(self) -> None:
        self.began_at = self._events.now
        self._start_session()

    def _start_session(self) -> None:
        self._has_read_prompt = False
        self.session.start(self._events.now)
        self._carry_out()

    def result(self) -> SessionResult:
        """Return the result. Raises `LocalError` if the session has not ended well."""
        if self.finished is None or self.finished.error is not None:
            raise LocalError(f"simulated session {self.key} did not reach its end: {self.finished}")
        return SessionResult(
            self.session.text,
            target_text(self.knowledge, self.world),
            tuple(self.arrivals),
            self.session.stats,
            *self.num_bytes,
        )

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Count the bytes sent and received over the user's connection."""
        return self._up.num_bytes, self._down.num_bytes

    def to_edge(self, message: ToEdge) -> None:
        """Send the verifier's message over the link."""
        self._down.carry(encode_response(message).ByteSize() + FRAME, partial(self._receive, message))

    def _receive(self, message: ToEdge) -> None:
        if self.finished is None:
            self._take(message)
            self._carry_out()  # as in production, text goes out before the session plans
            if isinstance(message, Commit):
                self.session.plan(self._events.now)
                self._carry_out()

    def _take(self, message: ToEdge) -> None:
        self.session.on_message(message, self._events.now, plan=False)

    def _carry_out(self) -> None:
        for effect in self.session.effects():
            match effect:
                case edge_effects.Expand():
                    self._expand(effect.rows)
                case edge_effects.Send():
                    self._send(effect.message)
                case edge_effects.MoveTip():
                    self._moves.append(effect.change)
                    if not self._drafting:
                        self._apply_moves()
                case edge_effects.Emit():
                    self._emit(effect)
                case edge_effects.StartDrafter():
                    self._drafter.start(effect.tip)
                case edge_effects.Finished():
                    self.finished = effect

    def _emit(self, effect: edge_effects.Emit) -> None:
        self.arrivals += [self._events.now - self.began_at] * len(effect.tokens)

    def _send(self, message: Open | Propose | Close) -> None:
        self._up.carry(
            encode_request(message).ByteSize() + FRAME, partial(self._verifier.receive, self, message)
        )

    def _expand(self, rows: tuple[DraftRow, ...]) -> None:
        self._drafting = True
        num_read = self._drafter.num_unread
        expansions = self._drafter.expand(rows)
        took, num_read = self._draft_step(num_read)
        self._has_read_prompt = True
        levels = self.world.device.levels
        if levels > 1 and not self._drafter.num_rows:
            levels = 0
        reading = ReadingTime(num_read, took if num_read else 0.0, levels=levels)
        self._events.after(took, partial(self._drafted, expansions, reading))

    def _draft_step(self, num_read: int) -> tuple[float, int]:
        """Return the seconds of the draft step that has just been asked for, and the committed tokens that it
        reads. `num_read` are those without the prompt."""
        device, drafter = self.world.device, self._drafter
        took = device.draft_step_time(drafter.num_rows, drafter.num_small_steps) + device.read_time(num_read)
        if self._events.now - self._drafted_at > AFTER_REST:
            took += device.wake_time
        prompt_time = 0.0 if self._has_read_prompt else device.time_to_read(self.world.prompt_tokens)
        if prompt_time:
            num_read += self.world.prompt_tokens - 1
        return took + prompt_time, num_read

    def _drafted(self, expansions: list[Expansion], reading: ReadingTime) -> None:
        self._drafting, self._drafted_at = False, self._events.now
        self._apply_moves()
        if self.finished is None:
            self.session.on_drafted(expansions, self._events.now, reading)
            self._carry_out()

    def _apply_moves(self) -> None:
        for change in self._moves:
            self._drafter.reroot(change)
        self._moves.clear()


class SimulatedVerifier:
    """Simulates the cluster's side: one `VerifyScheduler`, and a target that knows every session's text."""

    def __init__(self, events: EventHeap, world: World) -> None:
        self.world = world
        sessions = world.sessions()  # all may be open at once, and none is refused
        num_slots = sum(
            each.prompt_tokens + each.tokens + world.verifier.max_nodes_per_session for each in sessions
        )
        one_read = world.verifier.max_rows  # a step reads a session's context once, whatever rows it has
        heads = world.verifier.heads
        info = TargetInfo(
            "simulated",
            VOCAB_SIZE,
            2**20,
            num_slots,
            (),
            FINGERPRINT,
            one_read,
            guess_depth=len(heads.accuracy) if heads is not None else 0,
            row_times=world.verifier.step_times,
        )
        config = SchedulerConfig(
            max_sessions=len(sessions),
            max_rows=world.verifier.max_rows,
            max_nodes_per_session=world.verifier.max_nodes_per_session,
            max_slowdown=world.verifier.max_slowdown,
            recall=world.verifier.recall,
            prefix_cache=False,  # all sessions have the same prompt, which is to be read by each
        )
        self.scheduler = VerifyScheduler(info, config)
        if self.scheduler.drafter:
            self.scheduler.drafter.beliefs = Beliefs(PriorTable(((0.0, HONEST),)))
        self._events = events
        self._devices: dict[int, SimulatedDevice] = {}
        self._heads: dict[int, HeadKnowledge] = {}
        self._choices: dict[int, np.ndarray] = {}  # [position] the target's choice at each
        self._ahead: NextStep | None = None  # what the engine goes on with at the end of the running step
        self._wakes_at: float | None = None  # to begin a step that has waited for nodes

    def admit(self, device: SimulatedDevice) -> None:
        """Register the session before its `Open` arrives."""
        length = device.world.prompt_tokens + device.world.tokens
        self._devices[device.key] = device
        if (heads := self.world.verifier.heads) is not None:
            draws = Draws(self.world.seed, device.key)
            self._heads[device.key] = HeadKnowledge(heads, device.knowledge, draws)
        self._choices[device.key] = np.array(
            [device.knowledge.truth(position + 1) for position in range(length)], np.int32
        )

    def receive(self, device: SimulatedDevice, message: Open | Propose | Close) -> None:
        now = self._events.now
        match message:
            case Propose():
                self.scheduler.on_propose(device.key, message, now)
            case Open():
                self.scheduler.on_open(device.key, message, now)
            case Close():
                self.scheduler.on_close(device.key, message, now)
        self._carry_out()

    def _carry_out(self) -> None:
        for effect in self.scheduler.effects():
            if isinstance(effect, verifier_effects.Reply):
                self._devices[effect.session].to_edge(effect.message)
            elif effect.error is not None:
                raise LocalError(f"the simulated verifier ended session {effect.session}: {effect.error}")
        if self._ahead is not None and self.scheduler.outlook_changed:
            self._ahead = None
            self.scheduler.look_back()
        guesses = self.scheduler.next_guess(self._events.now)
        if guesses is not None:
            self._guess(guesses)
            return
        plan = self.scheduler.next_step(self._events.now)
        if plan is not None:
            self._step(plan)
        elif (until := self.scheduler.waits_until) is not None and until != self._wakes_at:
            self._wakes_at = until
            self._events.at(until, self._carry_out)

    def _guess(self, plan: GuessPlan) -> None:
        heads = self.world.verifier.heads
        assert heads is not None, "asked for guesses"
        result = guess(self._heads, plan)
        duration = heads.duration(result.num_levels, sum(map(len, result.guesses)))
        self._events.after(duration, partial(self._guessed, result))

    def _guessed(self, result: GuessResult) -> None:
        assert self.scheduler.drafter is not None, "asked for guesses"
        self.scheduler.drafter.on_guessed(result, self._events.now)
        self._carry_out()

    def _step(self, plan: StepPlan) -> None:
        result, context = self._evaluate(plan)
        duration = self.world.verifier.time(plan.num_rows, context, self._events.now)
        if share := self.world.verifier.hint_at:
            self._events.after(share * duration, partial(self._hint, share, plan))
        self._events.after(duration, partial(self._step_done, result))
        self._ahead = self.scheduler.look_ahead()

    def _hint(self, share: float, plan: StepPlan) -> None:
        likely = tuple(
            tuple(self._likely(item.session, row) for row in item.positions[item.outputs].tolist())
            if item.hint
            else ()
            for item in plan.items
        )
        self.scheduler.on_hints(StepHints(share, likely))
        self._carry_out()

    def _likely(self, key: int, position: int) -> tuple[int, ...]:
        """Return the likely tokens after a position of the text, best first, by an exit of the world's
        skill."""
        right = int(self._choices[key][position])
        others = [each for each in self._devices[key].knowledge.candidates(position + 1)[0] if each != right]
        draw = Draws(self.world.seed, key).uniform(DrawStream.HINT, position)
        place, left = 0, 1.0 - self.world.verifier.hint_skill
        while draw >= 1.0 - left and place < HINTED:
            place, left = place + 1, 0.5 * left
        return tuple([*others[:place], right, *others[place:]][:HINTED])

    def _step_done(self, result: StepResult) -> None:
        ahead, self._ahead = self._ahead, None
        next_plan = None if ahead is None else ahead.complete(result)
        self.scheduler.on_step_done(result, self._events.now, next_began=next_plan is not None)
        self._carry_out()
        if next_plan is not None:
            self._step(next_plan)

    def _evaluate(self, plan: StepPlan) -> tuple[StepResult, int]:
        """Return the choices, and the committed slots read.

        A row off the text's path is answered as if it were on it: it can never be committed.
        """
        choices, context = [], 0
        for item in plan.items:
            chosen = self._choices[item.session][item.positions[item.outputs]]
            choices.append(chosen)
            context += len(item.prefix_slots)
        sure = np.ones(plan.num_outputs, np.float32)
        margins = tuple(sure[: len(chosen)] for chosen in choices)
        return StepResult(tuple(choices), margins), context


def simulate(
    world: World, make: PolicyMaker, device: type[SimulatedDevice] = SimulatedDevice
) -> list[SessionResult]:
    """Return every session's result, in the order of their keys. Equal arguments give equal results.

    Each verifier serves its own sessions (`dealt`). `device` selects where the draft runs.
    """
    return dealt_back(
        world, [simulate_replica(world, make, device, each) for each in range(world.num_verifiers)]
    )


def simulate_replica(
    world: World, make: PolicyMaker, device: type[SimulatedDevice], replica: int
) -> list[SessionResult]:
    """Return the results of one verifier's sessions, independent of all others."""
    events = EventHeap()
    verifier = SimulatedVerifier(events, world.at_verifier(replica))
    devices = dict[int, SimulatedDevice]()
    sessions = world.sessions()
    for key in dealt(world)[replica]:
        own = world.at_verifier(replica, key).own(sessions[key])
        devices[key] = device(events, verifier, own, key, make)
        verifier.admit(devices[key])
        events.at(sessions[key].start, devices[key].start)
    events.run()
    results = {key: each.result() for key, each in devices.items()}
    for key, result in results.items():
        if result.tokens != result.truth:
            raise LocalError(f"simulated session {key} wrote another text than its target")
    return list(results.values())


def dealt_back(world: World, parts: Sequence[Sequence[SessionResult]]) -> list[SessionResult]:
    """Merge the verifiers' results in the order of all sessions' keys."""
    by_key = {
        key: result
        for keys, results in zip(dealt(world), parts, strict=True)
        for key, result in zip(keys, results, strict=True)
    }
    return [by_key[key] for key in range(world.num_sessions)]


def knowledge_of(world: World, key: int) -> Knowledge:
    """Return the truth of session `key` and its draft's knowledge of that truth."""
    draft = world.draft
    make = draft.read if world.looks_up else draft.session
    return make(Draws(world.seed, key), world.session_place(key), world.prompt_tokens)


def masked_knowledge_of(world: World, key: int) -> MaskedKnowledge:
    """Return what the masks of session `key`'s draft say. Raises `UserError` for a draft without masks."""
    known = knowledge_of(world, key)
    is_short = isinstance(known, ReplayedKnowledge) and known.num_masks < world.device.levels - 1
    if is_short or not isinstance(known, MaskedKnowledge):
        raise UserError(
            f"device levels is {world.device.levels}, and the world's draft has no such masks; leave levels "
            "out, or describe the draft by its mean"
        )
    return known


def target_text(knowledge: Knowledge, world: World) -> tuple[int, ...]:
    """Return the target's text after the prompt."""
    return tuple(map(knowledge.truth, range(world.prompt_tokens, world.prompt_tokens + world.tokens)))
