"""A world: edges and verifiers in virtual time, with delays, lost streams, drains and odd drafters.

A heap of (time, sequence, action) as in SimPy; the machines are the real ones, the rest is seeded.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from cloud_verifier.core import effects as server_effects
from cloud_verifier.core.engine_protocol import GuessPlan, StepPlan, StepResult, TargetInfo
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.lookahead import NextStep
from cloud_verifier.core.scheduler import VerifyScheduler
from common.acceptance import COUPLED, Acceptance
from common.chances import Chances
from common.errors import CapacityError, ForerunError, LocalError, UnavailableError
from common.messages import Close, Commit, Drain, Open, Propose, ServerMessage, TokenLogprobs
from common.prompt_lookup import SharedTexts
from common.sampling import SamplingParams
from common.suffix_index import GrowingIndex
from common.tree_hints import hint_at
from edge_client.core import effects as edge_effects
from edge_client.core.draft_times import AFTER_REST, DraftTimes
from edge_client.core.effects import NOTHING_READ, Mode, ReadingTime, SessionConfig
from edge_client.core.policies import GrowthPolicy
from edge_client.core.session import EdgeSession
from edge_client.core.verifier_choice import Demerits, VerifierCandidate, choose, has_another
from tests.worlds.models import FINGERPRINT, VOCAB, TinyDrafter, TinyTarget, begin

Down = ServerMessage | server_effects.End


@dataclass(frozen=True)
class EdgeSpec:
    """One edge of a world."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    policy: Callable[[], GrowthPolicy]
    drafter: Callable[[], TinyDrafter] = TinyDrafter
    starts_at: float = 0.0
    fails_after: int | None = None  # the drafter fails in its n-th step
    recall: bool = False
    references: tuple[tuple[int, ...], ...] = ()
    patience: float | None = 1.0
    eos: tuple[int, ...] = ()  # what it knows of the target's end tokens
    acceptance: Acceptance = COUPLED
    draft_top: int = 32
    committed: tuple[int, ...] = ()  # text that it begins with; the target's own, or law 1 means nothing
    logprobs: int | None = None
    draft_waits: bool = False


@dataclass(frozen=True)
class WorldSpec:
    """Everything a run depends on. Times in seconds."""

    edges: tuple[EdgeSpec, ...]
    seed: int = 0
    delay: tuple[float, float] = (0.005, 0.080)  # one way, drawn per message; order within a stream is kept
    step_time: tuple[float, float] = (0.01, 0.04)
    draft_time: tuple[float, float] = (0.001, 0.02)  # of a step of one row
    row_time: float = 0.0  # of each further row
    read_time: float = 0.0  # of each committed token that a draft step reads
    wake_time: float = 0.0  # of a draft step after a rest
    shares_pace: bool = False  # all edges are texts of one device, and learn its pace together
    losses: int = 0  # streams broken at random moments
    outages: tuple[tuple[float, float], ...] = ()  # from when to when no stream is up
    config: SchedulerConfig = field(default_factory=lambda: SchedulerConfig(prefill_chunk=5))
    num_slots: int = 4096
    row_buckets: tuple[int, ...] = ()  # that the engine pads its steps to
    eos: tuple[int, ...] = (0,)
    steps_failing: tuple[int, ...] = ()  # engine steps that raise
    memory: int = 3  # tokens that the target looks at
    remember: int = 0  # tokens of earlier texts that all edges guess from
    files: tuple[tuple[int, ...], ...] = ()  # token ids of files that all edges guess from
    plans_later: float = 0.0  # how often an edge decides after a Commit only when others had their turn
    looks_ahead: float = 0.0  # how often the engine goes on with a step that was planned ahead
    lag: tuple[float, float] = (0.0, 0.0)  # from a step's end to when the verifier hears of it, if it did
    verifiers: int = 1
    drains: tuple[float, ...] = ()  # when which drains: the first the first; the last verifier stays
    grace: float = 0.3  # of a drain
    freezes: int = 0  # streams that fall silent at random moments, and nobody is told
    guess_depth: int = 0  # levels of the verifiers' own drafter; 0: there is none
    guess_blend: float = 0.3  # how bad it is
    guess_lies: bool = False
    guess_time: tuple[float, float] = (0.001, 0.01)
    guesses_failing: tuple[int, ...] = ()  # guesses that raise
    hints: float = 0.0  # how often a Commit is followed by a hint at some node, right, wrong or too late
    refusals: tuple[float, float] = (0.0, 0.0)  # from when to when no session is let in; seconds to wait


class Edge:
    """One edge's driver: a session, a drafter and its current stream."""

    def __init__(
        self,
        index: int,
        spec: EdgeSpec,
        memory: int,
        shared: SharedTexts,
        chances: Chances | None = None,
        pace: DraftTimes | None = None,
    ) -> None:
        self.index = index
        self.spec = spec
        config = SessionConfig(
            spec.prompt,
            spec.sampling,
            FINGERPRINT,
            session_id=f"edge-{index}",
            recall=spec.recall,
            references=spec.references,
            patience=spec.patience,
            committed=spec.committed,
            eos_token_ids=spec.eos,
            acceptance=spec.acceptance,
            draft_top=spec.draft_top,
            logprobs=spec.logprobs,
            draft_waits=spec.draft_waits,
        )
        self.session = EdgeSession(config, spec.policy(), shared, chances, pace=pace)
        self.drafter = spec.drafter()
        self.drafter.memory = memory
        self.pending: list[edge_effects.MoveTip] = []  # tip moves during a draft step
        self.drafting = False
        self.drafted_at = -1.0  # when the latest draft step ended
        self.draft_steps = 0
        self.stream = -1
        self.emitted: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.preview: list[int] = []  # what the user sees after it, told apart
        self.num_previewed = 0
        self.device_only = False
        self.end: edge_effects.Finished | None = None
        self.first = len(config.begins_with)  # position of the first token that it shows
        self.demerits = Demerits()
        self.host = 0  # of its current stream
        self.hosts: list[int] = []  # of all its streams
        self.num_probes = 0

    @property
    def is_waiting(self) -> bool:
        """For its current stream to be open, or for text on it."""
        return self.end is None and self.session.state.value in ("opening", "open")


class World:
    """Runs a `WorldSpec` to its end; `trace` is everything that happened. `chances`, of its one edge's drafts
    and of its acceptance rule, are those of the seed unless a test has others."""

    def __init__(self, spec: WorldSpec, chances: Chances | None = None) -> None:
        self.spec = spec
        self.random = random.Random(spec.seed)
        self.now = 0.0
        self.trace: list[str] = []
        depth = spec.guess_depth
        info = TargetInfo(
            "tiny", VOCAB, 512, spec.num_slots, spec.eos, FINGERPRINT,
            guess_depth=depth, row_buckets=spec.row_buckets,
        )  # fmt: skip
        self.hosts = [Host(self, info, chances) for _ in range(spec.verifiers)]
        written = GrowingIndex(capacity=spec.remember) if spec.remember else None
        shared = SharedTexts(written, tuple(map(GrowingIndex, spec.files)))
        pace = DraftTimes() if spec.shares_pace else None
        self.edges = [Edge(i, e, spec.memory, shared, chances, pace) for i, e in enumerate(spec.edges)]
        self.streams: dict[int, Edge] = {}  # alive
        self.arrival: dict[tuple[int, str], float] = {}  # last arrival per stream and direction
        self._next_stream = 0
        self._sequence = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def run(self) -> None:
        """Until nothing is left to happen. Raises `LocalError` after an unreasonable number of events."""
        for edge in self.edges:
            self.at(edge.spec.starts_at, partial(self._start, edge))
        for _ in range(self.spec.losses):
            self.at(self.random.uniform(0.0, 3.0), self._break_some_stream)
        for _ in range(self.spec.freezes):
            self.at(self.random.uniform(0.0, 3.0), self._freeze_some_stream)
        for start, _ in self.spec.outages:
            self.at(start, self._break_all_streams)
        for host, when in zip(self.hosts[:-1], self.spec.drains, strict=False):
            self.at(when, host.drain)
        events = 0
        while self._heap:
            self.now, _, action = heapq.heappop(self._heap)
            action()
            for host in self.hosts:
                host.scheduler.check_integrity()
            events += 1
            if events > 200_000:
                raise LocalError("this world does not end")

    @property
    def scheduler(self) -> VerifyScheduler:
        """Of the first verifier, where there is one."""
        return self.hosts[0].scheduler

    @property
    def steps_ahead(self) -> int:
        return sum(host.steps_ahead for host in self.hosts)

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, action))

    def note_received(self, stream: int, message: Open | Propose | Close) -> None:
        """A verifier gets it now; for who keeps a record."""

    def note_step(self, plan: StepPlan) -> None:
        """A verifier begins a step now."""

    def note_effect(self, who: str, effect: edge_effects.Effect | server_effects.Effect) -> None:
        """An edge or a verifier asks for this now."""
        self.trace.append(f"{self.now:.6f} {who} {effect}")

    def _start(self, edge: Edge) -> None:
        self._input(edge, lambda: edge.session.start(self.now))

    # Edge -------------------------------------------------------------------------------------------------

    def _input(self, edge: Edge, call: Callable[[], None]) -> None:
        """Give the session an input, then carry out its effects."""
        call()
        for effect in edge.session.effects():
            self._edge_effect(edge, effect)
        if edge.session.next_timer_at is not None:
            timer = edge.session.next_timer_at
            self.at(timer, lambda: self._timer(edge, timer))
        if edge.end is None:
            edge.session.check_integrity()

    def _timer(self, edge: Edge, when: float) -> None:
        if edge.session.next_timer_at == when:
            self._input(edge, lambda: edge.session.on_timer(self.now))

    def _edge_effect(self, edge: Edge, effect: edge_effects.Effect) -> None:
        self.note_effect(f"edge {edge.index}", effect)
        assert edge.end is None, f"{effect} after the end"
        match effect:
            case edge_effects.StartDrafter():
                begin(
                    edge.drafter, effect.tokens, effect.tip, effect.sampling, effect.plain, effect.generated
                )
            case edge_effects.Expand():
                self._expand(edge, effect)
            case edge_effects.MoveTip():
                edge.pending.append(effect)
                self._apply_moves(edge)
            case edge_effects.Connect():
                self._connect(edge)
            case edge_effects.Send():
                self._up(edge, effect.message)
            case edge_effects.Probe():
                self._probe(edge, effect.patience)
            case edge_effects.Emit():
                assert effect.start == edge.first + len(edge.emitted)
                edge.emitted += effect.tokens
                edge.logprobs += effect.logprobs
                agreed = edge.preview[: len(effect.tokens)]
                assert agreed == list(effect.tokens[: len(agreed)]), "a wrong guess was not withdrawn"
                del edge.preview[: len(effect.tokens)]
            case edge_effects.Preview():
                assert effect.start == edge.first + len(edge.emitted) + len(edge.preview)
                assert edge.device_only, "a guess came before the mode was told"
                edge.preview += effect.tokens
                edge.num_previewed += len(effect.tokens)
            case edge_effects.Withdraw():
                kept = effect.start - edge.first - len(edge.emitted)
                assert edge.preview[kept:] == list(effect.tokens), "what was not shown cannot be withdrawn"
                del edge.preview[kept:]
            case edge_effects.PreviewEnds():
                assert effect.position == edge.first + len(edge.emitted) + len(edge.preview) - 1
            case edge_effects.ChangeMode():
                edge.device_only = effect.standing.mode is Mode.DEVICE_ONLY
            case edge_effects.Finished():
                edge.end = effect

    def _apply_moves(self, edge: Edge) -> None:
        if not edge.drafting:
            for move in edge.pending:
                edge.drafter.reroot(move.change)
            edge.pending.clear()

    def _expand(self, edge: Edge, effect: edge_effects.Expand) -> None:
        assert not edge.drafting
        begins = edge.emitted or edge.device_only or not edge.spec.draft_waits
        assert begins, "the draft did not wait for text"
        edge.drafting = True
        edge.draft_steps += 1
        expansions, spec = edge.drafter.expand(effect.rows), self.spec
        num_read = edge.drafter.reading.num_tokens
        pause = spec.read_time * num_read + spec.wake_time * (self.now - edge.drafted_at > AFTER_REST)
        took = pause + self.random.uniform(*spec.draft_time) + spec.row_time * (len(effect.rows) - 1)
        reading = ReadingTime(num_read, took) if num_read else NOTHING_READ
        fails = edge.draft_steps == edge.spec.fails_after

        def done() -> None:
            edge.drafting, edge.drafted_at = False, self.now
            self._apply_moves(edge)
            if edge.end is not None:
                return
            if fails:
                error = LocalError("the drafter is broken")
                self._input(edge, lambda: edge.session.on_drafter_failed(error, self.now))
            else:
                self._input(edge, lambda: edge.session.on_drafted(expansions, self.now, reading))

        self.at(self.now + took, done)

    def _connect(self, edge: Edge) -> None:
        if edge.stream in self.streams:
            self._break(edge.stream, tell_edge=False)
        edge.stream = self._next_stream
        self._next_stream += 1
        edge.host = self._host_of(edge)
        edge.hosts.append(edge.host)
        self.streams[edge.stream] = edge
        if any(start <= self.now < end for start, end in self.spec.outages):
            self._break(edge.stream, tell_edge=True)

    def _candidates(self) -> list[VerifierCandidate]:
        """As probes show them, which may be late: a verifier that drains is known by one look in two."""
        known = [host.scheduler.draining and self.random.random() < 0.5 for host in self.hosts]
        return [VerifierCandidate(str(index), ready=not gone) for index, gone in enumerate(known)]

    def _host_of(self, edge: Edge) -> int:
        if len(self.hosts) == 1:
            return 0
        over = edge.demerits.passed_over(self.now)
        chosen = choose(edge.session.config.session_id, self._candidates(), over)
        assert chosen is not None
        return int(chosen.name)

    def _lose(self, edge: Edge, error: ForerunError) -> None:
        """The edge learns that its stream has ended."""
        retry_after = error.retry_after if isinstance(error, CapacityError) else None
        edge.demerits.failed(str(edge.host), self.now, self.random.random(), retry_after)
        if len(self.hosts) == 1:
            self._input(edge, lambda: edge.session.on_stream_lost(error, self.now))
            return
        another = has_another(self._candidates(), edge.demerits.passed_over(self.now))
        self._input(edge, lambda: edge.session.on_stream_lost(error, self.now, another))
        self.at(self.now + self.random.uniform(0.0, 0.5), lambda: self._turn_up(edge))

    def _turn_up(self, edge: Edge) -> None:
        if edge.end is None:
            self._input(edge, lambda: edge.session.on_ready(self.now))

    def _probe(self, edge: Edge, patience: float) -> None:
        stream, edge.num_probes = edge.stream, edge.num_probes + 1
        alive = stream in self.streams
        wait = sum(self.random.uniform(*self.spec.delay) for _ in range(2)) if alive else patience

        def answer() -> None:
            if edge.stream == stream and edge.is_waiting:
                self._input(edge, lambda: edge.session.on_probed(stream in self.streams, self.now))

        self.at(self.now + wait, answer)

    # The network ------------------------------------------------------------------------------------------

    def _delayed(self, stream: int, direction: str, action: Callable[[], None]) -> None:
        """After a random delay, in order within stream and direction, unless the stream broke meanwhile."""
        when = max(
            self.now + self.random.uniform(*self.spec.delay), self.arrival.get((stream, direction), 0.0)
        )
        self.arrival[stream, direction] = when
        self.at(when, lambda: action() if stream in self.streams else None)

    def _up(self, edge: Edge, message: Open | Propose | Close) -> None:
        stream = edge.stream
        if stream not in self.streams:
            return
        host = self.hosts[edge.host]
        start, end = self.spec.refusals
        if isinstance(message, Open) and start <= self.now < end:
            error = CapacityError("no room for now", retry_after=0.2)
            self._delayed(stream, "up", lambda: self.down(stream, server_effects.End(stream, error)))
            return
        self._delayed(stream, "up", lambda: host.receive(stream, message))

    def down(self, stream: int, message: Down) -> None:
        if stream in self.streams:
            self._delayed(stream, "down", lambda: self._edge_receives(stream, message))

    def _edge_receives(self, stream: int, message: Down) -> None:
        edge = self.streams[stream]
        if edge.end is not None or edge.stream != stream:
            return
        if isinstance(message, server_effects.End):
            del self.streams[stream]
            error = message.error or UnavailableError("the stream ended")
            if edge.session.state.value != "over":
                self._lose(edge, error)
            return
        if isinstance(message, Drain):
            edge.demerits.failed(str(edge.host), self.now, self.random.random())
        later = self.spec.plans_later > 0 and self.random.random() < self.spec.plans_later
        self._input(edge, lambda: self._take(edge, message, not later))
        if later and isinstance(message, Commit):
            self.at(self.now + 0.001, lambda: self._input(edge, lambda: edge.session.plan(self.now)))

    def _take(self, edge: Edge, message: ServerMessage, plan: bool) -> None:
        edge.session.on_message(message, self.now, plan=plan)

    def _break_all_streams(self) -> None:
        for stream in sorted(self.streams):
            self._break(stream, tell_edge=True)

    def _break_some_stream(self) -> None:
        if self.streams:
            self._break(self.random.choice(sorted(self.streams)), tell_edge=True)

    def _freeze_some_stream(self) -> None:
        if self.streams:
            self._break(self.random.choice(sorted(self.streams)), tell_edge=False)

    def _break(self, stream: int, tell_edge: bool) -> None:
        edge = self.streams.pop(stream)
        host = self.hosts[edge.host]
        self.trace.append(f"{self.now:.6f} stream {stream} breaks")

        def server_learns() -> None:
            host.input(lambda: host.scheduler.on_close(stream, None, self.now))

        def edge_learns() -> None:
            if edge.stream == stream and edge.is_waiting:
                self._lose(edge, UnavailableError("the link broke"))

        self.at(self.now + self.random.uniform(0.0, 0.3), server_learns)
        if tell_edge:
            self.at(self.now + self.random.uniform(0.0, 0.3), edge_learns)


class Host:
    """Runs in the time of its world, and answers through it."""

    def __init__(self, world: World, info: TargetInfo, chances: Chances | None) -> None:
        spec = world.spec
        blend, lies = spec.guess_blend, spec.guess_lies
        self.engine = TinyTarget(info, memory=spec.memory, chances=chances, blend=blend, lies=lies)
        self.scheduler = VerifyScheduler(info, world.spec.config)
        self.steps_ahead = 0
        self._world = world
        self._steps = 0
        self._guesses = 0
        self._ahead: NextStep | None = None
        self._wakes_at: float | None = None

    def receive(self, stream: int, message: Open | Propose | Close) -> None:
        scheduler, now = self.scheduler, self._world.now
        self._world.note_received(stream, message)
        match message:
            case Open():
                self.input(lambda: scheduler.on_open(stream, message, now))
            case Propose():
                self.input(lambda: scheduler.on_propose(stream, message, now))
            case Close():
                self.input(lambda: scheduler.on_close(stream, message, now))

    def drain(self) -> None:
        """It goes away for good."""
        world = self._world
        self.input(lambda: self.scheduler.drain(world.spec.grace, world.now))
        ends_at = world.now + world.spec.grace
        world.at(ends_at, lambda: self.input(lambda: self.scheduler.on_timer(ends_at)))

    def input(self, call: Callable[[], None]) -> None:
        """Give the scheduler an input, then carry out its effects."""
        world = self._world
        call()
        for effect in self.scheduler.effects():
            world.note_effect("verifier", effect)
            match effect:
                case server_effects.Reply():
                    world.down(effect.session, effect.message)
                    self._hint(effect)
                case server_effects.End():
                    world.down(effect.session, effect)
        if self._ahead is not None and self.scheduler.outlook_changed:
            self._ahead = None
            self.scheduler.look_back()
        guesses = self.scheduler.next_guess(world.now)
        if guesses is not None:
            self._guess(guesses)
            return
        plan = self.scheduler.next_step(world.now)
        if plan is not None:
            self._step(plan)
        elif (until := self.scheduler.waits_until) is not None and until != self._wakes_at:
            self._wakes_at = until
            world.at(until, lambda: self.input(lambda: self.scheduler.on_timer(world.now)))

    def _hint(self, reply: server_effects.Reply) -> None:
        session, draw = self.scheduler.sessions.get(reply.session), self._world.random
        share = self._world.spec.hints if isinstance(reply.message, Commit) else 0.0
        if session is None or not session.request.hints or not share or draw.random() >= share:
            return
        node = draw.choice(list(session.tree.live.values()))
        tokens = draw.sample(range(VOCAB), draw.randint(1, 4))
        if node.choice is not None and draw.random() < 0.5:
            tokens.insert(0, node.choice)
        hint = hint_at(session.tree, node, tokens)
        assert hint is not None, "no tree here is as deep"
        if draw.random() < 0.1:
            hint = replace(hint, path=(*hint.path, draw.randrange(VOCAB)))
        self._world.down(reply.session, hint)

    def _guess(self, plan: GuessPlan) -> None:
        world, self._guesses = self._world, self._guesses + 1
        result, fails = self.engine.guess(plan), self._guesses in self._world.spec.guesses_failing
        drafter = self.scheduler.drafter
        assert drafter is not None, "asked for guesses"

        def done() -> None:
            if fails:
                self.input(drafter.on_failed)
            else:
                self.input(lambda: drafter.on_guessed(result, world.now))

        world.at(world.now + world.random.uniform(*world.spec.guess_time), done)

    def _step(self, plan: StepPlan, result: StepResult | None = None) -> None:
        """The engine begins a step; it has the result already if it began before the verifier heard of the
        end of the one before."""
        world = self._world
        world.note_step(plan)
        self._steps += 1
        fails = self._steps in world.spec.steps_failing
        result = result or self.engine.evaluate(plan)
        if world.random.random() < world.spec.looks_ahead:
            self._ahead = self.scheduler.look_ahead()

        def done() -> None:
            ahead, self._ahead = self._ahead, None
            if fails:
                error: ForerunError = LocalError("the engine failed")
                self.input(lambda: self.scheduler.on_step_failed(error, world.now))
                return
            begins = ahead is not None and world.random.random() < 0.8
            next_plan = ahead.complete(result) if ahead is not None and begins else None
            if next_plan is None:
                self.input(lambda: self.scheduler.on_step_done(result, world.now))
                return
            ended_at, self.steps_ahead = world.now, self.steps_ahead + 1
            heard_at = world.now + world.random.uniform(*world.spec.lag)
            next_result = self.engine.evaluate(next_plan) if world.random.random() < 0.5 else None

            def heard() -> None:
                self.input(lambda: self.scheduler.on_step_done(result, world.now, ended_at, True))
                self._step(next_plan, next_result)

            world.at(heard_at, heard)

        world.at(world.now + world.random.uniform(*world.spec.step_time), done)
