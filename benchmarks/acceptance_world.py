"""The demo pair in virtual time: one real edge session and the real scheduler, drafter, engine and messages.

A draft step, a target step and the way over the link take what `Times` says, so that what is measured does
not depend on the machine. For `benchmarks.acceptance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.effects import Reply
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import StepPlan, StepResult, TargetEngine
from common.acceptance import AcceptanceRule
from common.errors import LocalError
from common.messages import Close, Commit, Drain, Finish, Open, Opened, Propose
from common.rpc.size import request_size
from common.tree import Node
from edge_client.core import effects as edge_effects
from edge_client.core.config import SessionConfig
from edge_client.core.drafter import Drafter
from edge_client.core.policies import Candidate, GrowthPolicy, GrowthView
from edge_client.core.policies.base import expandable, unsent
from edge_client.core.session import EdgeSession
from simulator.events import Events


class ShapePolicy:
    """A tree of a fixed shape for each round trip. Without fill: the verifier waits for it."""

    name = "shape"
    fill = False

    def __init__(self, widths: Sequence[int]) -> None:
        self._widths = widths

    def branch(self, view: GrowthView, node: Node, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return candidates[: self._widths[node.position - view.tree.tip_position]]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        return () if view.num_sent else self._growing(view)

    def send(self, view: GrowthView) -> Sequence[Node]:
        return () if view.num_sent or self._growing(view) else unsent(view)

    def _growing(self, view: GrowthView) -> list[Node]:
        end = view.tree.tip_position + len(self._widths)
        return [node for node in expandable(view) if node.position < end]


@dataclass(frozen=True, slots=True)
class Times:
    """Of a world, seconds."""

    rtt: float
    target_step: float
    draft_step: float
    draft_row: float = 0.0003  # of each row beyond the first


NO_TIME = Times(0.0, 1e-3, 1e-4, 0.0)


@dataclass(frozen=True, slots=True)
class Written:
    """What one text took."""

    text: tuple[int, ...]
    target_steps: int
    proposed: int  # nodes sent
    bytes_proposed: int  # of the messages that carried them
    seconds: float  # virtual, from the first token on


def write(
    engine: TargetEngine, drafter: Drafter, config: SessionConfig, policy: GrowthPolicy, times: Times
) -> Written:
    """One text from its beginning to its end. Raises the `ForerunError` that ended it."""
    return World(engine, drafter, EdgeSession(config, policy), times).run()


class World:
    """One session and its verifier. Messages keep their order: every one takes half of the round trip."""

    def __init__(self, engine: TargetEngine, drafter: Drafter, session: EdgeSession, times: Times) -> None:
        self._engine, self._drafter, self._session, self._times = engine, drafter, session, times
        rules = tuple(AcceptanceRule)
        self._scheduler = VerifyScheduler(engine.info, SchedulerConfig(max_nodes_per_session=32, rules=rules))
        self._events = Events()
        self._bytes = 0
        self._arrivals: list[float] = []
        self._drafting = False
        self._moves: list[edge_effects.MoveTip] = []
        self._end: edge_effects.Finished | None = None

    def run(self) -> Written:
        self._session.start(0.0)
        self._carry_out()
        self._events.run()
        if self._end is None:
            raise LocalError("a text stalled before its end; please report this")
        if self._end.error is not None:
            raise self._end.error
        stats = self._session.stats
        return Written(
            self._session.text,
            stats.target_steps,
            stats.proposed,
            self._bytes,
            self._arrivals[-1] - self._arrivals[0],
        )

    # The edge ---------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        for effect in self._session.effects():
            match effect:
                case edge_effects.StartDrafter():
                    self._drafter.start(effect.tokens, effect.tip, effect.sampling, effect.plain)
                case edge_effects.Expand():
                    self._expand(effect)
                case edge_effects.MoveTip():
                    self._moves.append(effect)
                    self._move()
                case edge_effects.Send():
                    self._send(effect.message)
                case edge_effects.Emit():
                    self._arrivals += [self._events.now] * len(effect.tokens)
                case edge_effects.Finished():
                    self._end = effect

    def _send(self, message: Open | Propose | Close) -> None:
        if isinstance(message, Propose):
            self._bytes += request_size(message)
        self._events.after(self._times.rtt / 2, partial(self._at_verifier, message))

    def _expand(self, effect: edge_effects.Expand) -> None:
        self._drafting = True
        expansions = self._drafter.expand(effect.rows)
        took = self._times.draft_step + (len(effect.rows) - 1) * self._times.draft_row

        def drafted() -> None:
            self._drafting = False
            self._move()
            if self._end is None:
                self._session.on_drafted(expansions, self._events.now)
                self._carry_out()

        self._events.after(took, drafted)

    def _move(self) -> None:
        """Tip moves wait for the draft step under way."""
        if not self._drafting:
            for move in self._moves:
                self._drafter.reroot(move.change)
            self._moves.clear()

    def _at_edge(self, message: Opened | Commit | Drain | Finish) -> None:
        if self._end is None:
            self._session.on_message(message, self._events.now)
            self._carry_out()

    # The verifier -----------------------------------------------------------------------------------------

    def _at_verifier(self, message: Open | Propose | Close) -> None:
        now = self._events.now
        match message:
            case Open():
                self._scheduler.on_open(1, message, now)
            case Propose():
                self._scheduler.on_propose(1, message, now)
            case Close():
                self._scheduler.on_close(1, message, now)
        self._go_on()

    def _go_on(self) -> None:
        for effect in self._scheduler.effects():
            if isinstance(effect, Reply):
                self._events.after(self._times.rtt / 2, partial(self._at_edge, effect.message))
            elif effect.error is not None:
                raise effect.error
        plan = self._scheduler.next_step(self._events.now)
        if plan is not None:
            self._step(plan)

    def _step(self, plan: StepPlan) -> None:
        result: StepResult = self._engine.evaluate(plan)

        def done() -> None:
            self._scheduler.on_step_done(result, self._events.now)
            self._go_on()

        self._events.after(self._times.target_step, done)
