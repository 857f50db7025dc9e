"""A verifier whose steps take a known time, and which tells when each of them ended.

A process for `benchmarks.api_overhead`: `python -m benchmarks.clocked_verifier --step 30`. When it starts it
writes one greedy text with the demo target, and repeats that from then on, position by position, so that a
step costs nothing but its time: a target on this processor would compete with its own event loop. `--live`
runs the target itself. It says where it listens as a line of JSON; for every line of its standard input it
prints when the steps since the last ended, and when their commits were on their way to their streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence

import numpy as np

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.effects import Effect, Reply
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import StepPlan, StepResult, TargetEngine, TargetInfo
from cloud_verifier.engine.floor import FlooredEngine
from cloud_verifier.server import Server
from cloud_verifier.worker import Worker
from common.messages import Commit, Open
from common.sampling import SamplingParams
from demo_models import TARGET_DIR
from forerun.prompts import bundled
from forerun.verify import SWITCH_INTERVAL

NUM_SLOTS = 16384
LENGTH = 400
"""Tokens of the text that is repeated."""


class RepeatingEngine:
    """Chooses what stands at the next position of one text, whatever a row's path is."""

    def __init__(self, info: TargetInfo, text: Sequence[int]) -> None:
        self.info = info
        self._text = np.resize(np.array(text, np.int32), info.max_positions + 1)

    def evaluate(self, plan: StepPlan) -> StepResult:
        """See `TargetEngine.evaluate`."""
        choices = tuple(self._text[item.positions[item.outputs] + 1] for item in plan.items)
        return StepResult(choices, tuple(np.ones(len(each), np.float32) for each in choices))


class ClockedEngine:
    """Notes when each step that chose tokens ended. Seconds of the machine's monotonic clock, which all its
    processes share (on Linux)."""

    def __init__(self, engine: TargetEngine) -> None:
        self.ends: list[float] = []
        self._engine = engine

    @property
    def info(self) -> TargetInfo:
        return self._engine.info

    def evaluate(self, plan: StepPlan) -> StepResult:
        """See `TargetEngine.evaluate`."""
        result = self._engine.evaluate(plan)
        if plan.num_outputs:
            self.ends.append(time.monotonic())
        return result


class ClockedScheduler(VerifyScheduler):
    """Notes when each commit is handed out to be sent."""

    def __init__(self, info: TargetInfo) -> None:
        super().__init__(info)
        self.told: list[float] = []

    def effects(self) -> list[Effect]:
        """See `VerifyScheduler.effects`."""
        effects = super().effects()
        now = time.monotonic()
        self.told += [now for each in effects if isinstance(each, Reply) and isinstance(each.message, Commit)]
        return effects


def written(engine: TargetEngine, prompt: tuple[int, ...]) -> list[int]:
    """The prompt and what the target writes after it, greedily."""
    scheduler = VerifyScheduler(engine.info, SchedulerConfig(recall=False, prefix_cache=False))
    sampling = SamplingParams(max_tokens=LENGTH, ignore_eos=True, temperature=0.0)
    scheduler.on_open(1, Open(prompt, sampling, engine.info.fingerprint), 0.0)
    text, now = [*prompt], 0.0
    while (plan := scheduler.next_step(now)) is not None:
        now += 0.01
        scheduler.on_step_done(engine.evaluate(plan), now)
        for effect in scheduler.effects():
            if isinstance(effect, Reply) and isinstance(effect.message, Commit):
                text += effect.message.tokens
    return text


async def serve(step: float, live: bool) -> None:
    """Until standard input ends."""
    import torch

    from cloud_verifier.engine.loading import load_engine

    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_INTERVAL)
    target, table = load_engine(str(TARGET_DIR), NUM_SLOTS)
    prompt = tuple(target.model.tokenize(bundled()[0]))
    told = target if live else RepeatingEngine(target.info, written(target, prompt))
    engine = ClockedEngine(FlooredEngine(told, step))
    scheduler = ClockedScheduler(engine.info)
    worker = Worker(engine, scheduler)
    async with Server(worker, engine.info, table, "127.0.0.1:0") as server:
        print(json.dumps({"listening": f"127.0.0.1:{server.port}"}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps({"ended": engine.ends, "told": scheduler.told}), flush=True)
            engine.ends, scheduler.told = [], []


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="a verifier that tells when its steps end")
    parser.add_argument("--step", type=float, default=30.0, metavar="MS", help="at least (%(default)s)")
    parser.add_argument("--live", action="store_true", help="run the target in every step")
    given = parser.parse_args(arguments)
    asyncio.run(serve(given.step / 1e3, given.live))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
