"""One verifier of a world: the real scheduler, and an engine that takes its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cloud_verifier.core import effects as server_effects
from cloud_verifier.core.ahead import NextStep
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import StepPlan, StepResult, TargetInfo
from common.chances import Chances
from common.errors import ForerunError, LocalError
from common.messages import Close, Open, Propose
from tests.worlds.models import TinyTarget

if TYPE_CHECKING:
    from tests.worlds.world import World


class Host:
    """Runs in the time of its world, and answers through it."""

    def __init__(self, world: World, info: TargetInfo, chances: Chances | None) -> None:
        self.engine = TinyTarget(info, memory=world.spec.memory, chances=chances)
        self.scheduler = VerifyScheduler(info, world.spec.config)
        self.steps_ahead = 0
        self._world = world
        self._steps = 0
        self._ahead: NextStep | None = None

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
                case server_effects.End():
                    world.down(effect.session, effect)
        if self._ahead is not None and self.scheduler.outlook_changed:
            self._ahead = None
            self.scheduler.look_back()
        plan = self.scheduler.next_step(world.now)
        if plan is not None:
            self._step(plan)

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
