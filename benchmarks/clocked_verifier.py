"""A verifier whose steps take a known time, and which tells of each token when its step ended.

A process for `benchmarks.api_overhead`: `python -m benchmarks.clocked_verifier --step 30`. When it starts it
writes one greedy text with the demo target, and repeats that from then on, position by position, so that a
step costs nothing but its time: a target on this processor would compete with its own event loop. `--live`
runs the target itself. It says where it listens as a line of JSON. For every line of its standard input it
prints two times of each token since the last line: when its step ended, and when its commit was handed out to
be sent. Both are seconds of the machine's monotonic clock, which all its processes share (on Linux).
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


class ClockedScheduler(VerifyScheduler):
    """Notes of each token when its step ended, and when its commit was handed out."""

    def __init__(self, info: TargetInfo) -> None:
        super().__init__(info)
        self._ended_at = 0.0  # of the newest step
        self._times: dict[str, list[float]] = {"ended": [], "told": []}

    def on_step_done(
        self, result: StepResult, now: float, ended_at: float | None = None, next_began: bool = False
    ) -> None:
        """See `VerifyScheduler.on_step_done`."""
        self._ended_at = now if ended_at is None else ended_at
        super().on_step_done(result, now, ended_at, next_began)

    def effects(self) -> list[Effect]:
        """See `VerifyScheduler.effects`. The worker takes them after every step."""
        effects = super().effects()
        now = time.monotonic()
        for each in effects:
            if isinstance(each, Reply) and isinstance(each.message, Commit):
                count = len(each.message.tokens)
                self._times["ended"] += [self._ended_at] * count
                self._times["told"] += [now] * count
        return effects

    def take_times(self) -> dict[str, list[float]]:
        """Those of the tokens since the last call."""
        times, self._times = self._times, {"ended": [], "told": []}
        return times


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
    engine = FlooredEngine(told, step)
    scheduler = ClockedScheduler(engine.info)
    worker = Worker(engine, scheduler)
    async with Server(worker, engine.info, table, "127.0.0.1:0") as server:
        print(json.dumps({"listening": f"127.0.0.1:{server.port}"}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(scheduler.take_times()), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="a verifier that tells when the steps of its tokens end")
    parser.add_argument("--step", type=float, default=30.0, metavar="MS", help="at least (%(default)s)")
    parser.add_argument("--live", action="store_true", help="run the target in every step")
    given = parser.parse_args(arguments)
    asyncio.run(serve(given.step / 1e3, given.live))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
