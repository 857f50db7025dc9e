"""A world: edges and one verifier in virtual time, with delays, lost streams and odd drafters.

A heap of (time, sequence, action) as in SimPy; the machines are the real ones, the rest is seeded.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from cloud_verifier.core import effects as server_effects
from cloud_verifier.core.ahead import NextStep
from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import StepPlan, StepResult, TargetInfo
from common.acceptance import COUPLED, Acceptance
from common.chances import Chances
from common.errors import ForerunError, LocalError, UnavailableError
from common.messages import Close, Commit, Drain, Finish, Open, Opened, Propose, TokenLogprobs
from common.recall import NgramTable
from common.sampling import SamplingParams
from edge_client.core import effects as edge_effects
from edge_client.core.config import SessionConfig
from edge_client.core.policies import GrowthPolicy, Mode
from edge_client.core.session import EdgeSession
from tests.worlds.models import FINGERPRINT, VOCAB, TinyDrafter, TinyTarget

Down = Opened | Commit | Drain | Finish | server_effects.End


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
    patience: float | None = 1.0
    eos: tuple[int, ...] = ()  # what it knows of the target's end tokens
    acceptance: Acceptance = COUPLED
    draft_top: int = 32
    logprobs: int | None = None


@dataclass(frozen=True)
class WorldSpec:
    """Everything a run depends on. Times in seconds."""

    edges: tuple[EdgeSpec, ...]
    seed: int = 0
    delay: tuple[float, float] = (0.005, 0.080)  # one way, drawn per message; order within a stream is kept
    step_time: tuple[float, float] = (0.01, 0.04)
    draft_time: tuple[float, float] = (0.001, 0.02)
    losses: int = 0  # streams broken at random moments
    outages: tuple[tuple[float, float], ...] = ()  # from when to when no stream is up
    config: SchedulerConfig = field(default_factory=lambda: SchedulerConfig(prefill_chunk=5))
    num_slots: int = 4096
    eos: tuple[int, ...] = (0,)
    steps_failing: tuple[int, ...] = ()  # engine steps that raise
    memory: int = 3  # tokens that the target looks at
    ngrams: int = 0  # keys of a table that all edges guess from
    looks_ahead: float = 0.0  # how often the engine goes on with a step that was planned ahead
    lag: tuple[float, float] = (0.0, 0.0)  # from a step's end to when the verifier hears of it, if it did


class Edge:
    """One edge's driver: a session, a drafter and its current stream."""

    def __init__(
        self,
        index: int,
        spec: EdgeSpec,
        memory: int,
        ngrams: NgramTable | None,
        chances: Chances | None = None,
    ) -> None:
        self.index = index
        self.spec = spec
        config = SessionConfig(
            spec.prompt,
            spec.sampling,
            FINGERPRINT,
            session_id=f"edge-{index}",
            recall=spec.recall,
            patience=spec.patience,
            max_attempts=100,  # with few slots it may be refused for as long as others write
            eos_token_ids=spec.eos,
            acceptance=spec.acceptance,
            draft_top=spec.draft_top,
            logprobs=spec.logprobs,
        )
        self.session = EdgeSession(config, spec.policy(), ngrams, chances)
        self.drafter = spec.drafter()
        self.drafter.memory = memory
        self.pending: list[edge_effects.MoveTip] = []  # tip moves during a draft step
        self.drafting = False
        self.draft_steps = 0
        self.stream = -1
        self.emitted: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.preview: list[int] = []  # what the user sees after it, told apart
        self.num_previewed = 0
        self.device_only = False
        self.end: edge_effects.Finished | None = None


class World:
    """Runs a `WorldSpec` to its end; `trace` is everything that happened. `chances`, of its one edge's drafts
    and of its acceptance rule, are those of the seed unless a test has others."""

    def __init__(self, spec: WorldSpec, chances: Chances | None = None) -> None:
        self.spec = spec
        self.random = random.Random(spec.seed)
        self.now = 0.0
        self.trace: list[str] = []
        info = TargetInfo("tiny", VOCAB, 512, spec.num_slots, spec.eos, FINGERPRINT)
        self.engine = TinyTarget(info, memory=spec.memory, chances=chances)
        self.scheduler = VerifyScheduler(info, spec.config)
        ngrams = NgramTable(spec.ngrams) if spec.ngrams else None
        self.edges = [Edge(i, e, spec.memory, ngrams, chances) for i, e in enumerate(spec.edges)]
        self.streams: dict[int, Edge] = {}  # alive
        self.arrival: dict[tuple[int, str], float] = {}  # last arrival per stream and direction
        self._next_stream = 0
        self._sequence = 0
        self._steps = 0
        self.steps_ahead = 0
        self._ahead: NextStep | None = None
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def run(self) -> None:
        """Until nothing is left to happen. Raises `LocalError` after an unreasonable number of events."""
        for edge in self.edges:
            self.at(edge.spec.starts_at, partial(self._start, edge))
        for _ in range(self.spec.losses):
            self.at(self.random.uniform(0.0, 3.0), self._break_some_stream)
        for start, _ in self.spec.outages:
            self.at(start, self._break_all_streams)
        events = 0
        while self._heap:
            self.now, _, action = heapq.heappop(self._heap)
            action()
            self.scheduler.check_integrity()
            events += 1
            if events > 200_000:
                raise LocalError("this world does not end")

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, action))

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
        self.trace.append(f"{self.now:.6f} edge {edge.index} {effect}")
        assert edge.end is None, f"{effect} after the end"
        match effect:
            case edge_effects.StartDrafter():
                edge.drafter.start(effect.tokens, effect.tip, effect.sampling, effect.plain)
            case edge_effects.Expand():
                self._expand(edge, effect)
            case edge_effects.MoveTip():
                edge.pending.append(effect)
                self._apply_moves(edge)
            case edge_effects.Connect():
                self._connect(edge)
            case edge_effects.Send():
                self._up(edge, effect.message)
            case edge_effects.Emit():
                assert effect.start == len(edge.spec.prompt) + len(edge.emitted)
                edge.emitted += effect.tokens
                edge.logprobs += effect.logprobs
                agreed = edge.preview[: len(effect.tokens)]
                assert agreed == list(effect.tokens[: len(agreed)]), "a wrong guess was not withdrawn"
                del edge.preview[: len(effect.tokens)]
            case edge_effects.Preview():
                assert effect.start == len(edge.spec.prompt) + len(edge.emitted) + len(edge.preview)
                assert edge.device_only, "a guess came before the mode was told"
                edge.preview += effect.tokens
                edge.num_previewed += len(effect.tokens)
            case edge_effects.Withdraw():
                kept = effect.start - len(edge.spec.prompt) - len(edge.emitted)
                assert edge.preview[kept:] == list(effect.tokens), "what was not shown cannot be withdrawn"
                del edge.preview[kept:]
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
        edge.drafting = True
        edge.draft_steps += 1
        expansions = edge.drafter.expand(effect.rows)
        fails = edge.draft_steps == edge.spec.fails_after

        def done() -> None:
            edge.drafting = False
            self._apply_moves(edge)
            if edge.end is not None:
                return
            if fails:
                error = LocalError("the drafter is broken")
                self._input(edge, lambda: edge.session.on_drafter_failed(error, self.now))
            else:
                self._input(edge, lambda: edge.session.on_drafted(expansions, self.now))

        self.at(self.now + self.random.uniform(*self.spec.draft_time), done)

    def _connect(self, edge: Edge) -> None:
        if edge.stream in self.streams:
            self._break(edge.stream, tell_edge=False)
        edge.stream = self._next_stream
        self._next_stream += 1
        self.streams[edge.stream] = edge
        if any(start <= self.now < end for start, end in self.spec.outages):
            self._break(edge.stream, tell_edge=True)

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
        self._delayed(stream, "up", lambda: self._server_receives(stream, message))

    def _down(self, stream: int, message: Down) -> None:
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
                self._input(edge, lambda: edge.session.on_stream_lost(error, self.now))
            return
        self._input(edge, lambda: edge.session.on_message(message, self.now))

    def _break_all_streams(self) -> None:
        for stream in sorted(self.streams):
            self._break(stream, tell_edge=True)

    def _break_some_stream(self) -> None:
        if self.streams:
            self._break(self.random.choice(sorted(self.streams)), tell_edge=True)

    def _break(self, stream: int, tell_edge: bool) -> None:
        edge = self.streams.pop(stream)
        self.trace.append(f"{self.now:.6f} stream {stream} breaks")

        def server_learns() -> None:
            self._server(lambda: self.scheduler.on_close(stream, None, self.now))

        def edge_learns() -> None:
            if edge.end is None and edge.stream == stream and edge.session.state.value in ("opening", "open"):
                error = UnavailableError("the link broke")
                self._input(edge, lambda: edge.session.on_stream_lost(error, self.now))

        self.at(self.now + self.random.uniform(0.0, 0.3), server_learns)
        if tell_edge:
            self.at(self.now + self.random.uniform(0.0, 0.3), edge_learns)

    # The verifier -----------------------------------------------------------------------------------------

    def _server_receives(self, stream: int, message: Open | Propose | Close) -> None:
        match message:
            case Open():
                self._server(lambda: self.scheduler.on_open(stream, message, self.now))
            case Propose():
                self._server(lambda: self.scheduler.on_propose(stream, message, self.now))
            case Close():
                self._server(lambda: self.scheduler.on_close(stream, message, self.now))

    def _server(self, call: Callable[[], None]) -> None:
        call()
        for effect in self.scheduler.effects():
            self.trace.append(f"{self.now:.6f} verifier {effect}")
            match effect:
                case server_effects.Reply():
                    self._down(effect.session, effect.message)
                case server_effects.End():
                    self._down(effect.session, effect)
        if self._ahead is not None and self.scheduler.outlook_changed:
            self._ahead = None
            self.scheduler.look_back()
        plan = self.scheduler.next_step(self.now)
        if plan is not None:
            self._step(plan)

    def _step(self, plan: StepPlan, result: StepResult | None = None) -> None:
        """The engine begins a step; it has the result already if it began before the verifier heard of the
        end of the one before."""
        self._steps += 1
        fails = self._steps in self.spec.steps_failing
        result = result or self.engine.evaluate(plan)
        if self.random.random() < self.spec.looks_ahead:
            self._ahead = self.scheduler.look_ahead()

        def done() -> None:
            ahead, self._ahead = self._ahead, None
            if fails:
                error: ForerunError = LocalError("the engine failed")
                self._server(lambda: self.scheduler.on_step_failed(error, self.now))
                return
            begins = ahead is not None and self.random.random() < 0.8
            next_plan = ahead.complete(result) if ahead is not None and begins else None
            if next_plan is None:
                self._server(lambda: self.scheduler.on_step_done(result, self.now))
                return
            ended_at, self.steps_ahead = self.now, self.steps_ahead + 1
            heard_at = self.now + self.random.uniform(*self.spec.lag)
            next_result = self.engine.evaluate(next_plan) if self.random.random() < 0.5 else None

            def heard() -> None:
                self._server(lambda: self.scheduler.on_step_done(result, self.now, ended_at, True))
                self._step(next_plan, next_result)

            self.at(heard_at, heard)

        self.at(self.now + self.random.uniform(*self.spec.step_time), done)
