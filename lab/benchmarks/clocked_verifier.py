"""Runs a verifier whose steps take a known time, and reports for each token when its step ended.

A process for `lab.benchmarks.api_overhead` and `lab.benchmarks.rewriting`: `python -m
lab.benchmarks.clocked_verifier --step 30`. On start it writes one greedy text with the demo target, and
repeats that text from then on, position by position. So a step costs nothing but its time: a target on this
processor would compete with its own event loop. `--live` runs the target itself. `--text` writes the text
of a file, JSON with `prompt` and `text`. A line of JSON gives its address and, with `--text`, the token ids
of the prompt and the number of those of the text. For every line of its standard input it prints two times
of each token since the last line: the end of its step, and the moment when its commit was handed out to be
sent. Both are seconds of the machine's monotonic clock, shared by its processes (on Linux).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cloud_verifier.core.effects import Effect, Reply
from cloud_verifier.core.engine_protocol import StepPlan, StepResult, TargetEngine, TargetInfo
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.torch_loading import load_engine
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.serving import SWITCH_INTERVAL
from cloud_verifier.server.worker import Worker
from common.messages import Commit, Open
from common.sampling import SamplingParams
from lab.demo_models import TARGET_DIR
from lab.floored_engine import FlooredEngine
from training.prompts import bundled

NUM_SLOTS = 16384
LENGTH = 400
"""Tokens of the text that is repeated."""


class RepeatingEngine(TargetEngine):
    """Chooses the token at the next position of one text, whatever a row's path is."""

    def __init__(self, info: TargetInfo, text: Sequence[int]) -> None:
        self.info = info
        self._text = np.resize(np.array(text, np.int32), info.max_positions + 1)

    def evaluate(self, plan: StepPlan) -> StepResult:
        choices = tuple(self._text[item.positions[item.outputs] + 1] for item in plan.items)
        return StepResult(choices, tuple(np.ones(len(each), np.float32) for each in choices))


class ClockedScheduler(VerifyScheduler):
    """Records for each token when its step ended, and when its commit was handed out."""

    times: dict[str, list[float]]
    _ended_at = 0.0  # of the newest step

    def on_step_done(
        self,
        result: StepResult,
        now: float,
        ended_at: float | None = None,
        next_began: bool = False,
        report: bool = True,
    ) -> None:
        self._ended_at = now if ended_at is None else ended_at
        super().on_step_done(result, now, ended_at, next_began, report)

    def effects(self) -> list[Effect]:
        """Take the effects, as the worker does after every step, and record their commits."""
        effects, now = super().effects(), time.monotonic()
        for tokens in committed(effects):
            self.times["ended"] += [self._ended_at] * len(tokens)
            self.times["told"] += [now] * len(tokens)
        return effects


def committed(effects: Sequence[Effect]) -> list[Sequence[int]]:
    """Return the tokens of each commit."""
    messages = (each.message for each in effects if isinstance(each, Reply))
    return [message.tokens for message in messages if isinstance(message, Commit)]


def written(engine: TargetEngine, prompt: tuple[int, ...]) -> list[int]:
    """Return the prompt and the target's greedy text after it."""
    scheduler = VerifyScheduler(engine.info, SchedulerConfig(recall=False, prefix_cache=False))
    sampling = SamplingParams(max_tokens=LENGTH, ignore_eos=True, temperature=0.0)
    scheduler.on_open(1, Open(prompt, sampling, engine.info.fingerprint), 0.0)
    text, now = [*prompt], 0.0
    while (plan := scheduler.next_step(now)) is not None:
        now += 0.01
        scheduler.on_step_done(engine.evaluate(plan), now)
        text += [token for tokens in committed(scheduler.effects()) for token in tokens]
    return text


def given_text(tokenize: Callable[[str], list[int]], path: Path) -> tuple[list[int], list[int]]:
    """Return the token ids of a file's prompt and text."""
    written = json.loads(path.read_text(encoding="utf-8"))
    return tokenize(written["prompt"]), tokenize(written["text"])[len(tokenize("")) :]


async def serve(step: float, live: bool, path: Path | None, recall: bool) -> None:
    """Serve until standard input ends."""
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_INTERVAL)
    target, table = load_engine(str(TARGET_DIR), NUM_SLOTS)
    told: dict[str, Any] = {}
    if path is not None:
        prompt, text = given_text(target.model.tokenize, path)
        told = {"prompt": prompt, "num_tokens": len(text)}
        repeating = RepeatingEngine(replace(target.info, max_positions=NUM_SLOTS), [*prompt, *text])
    else:
        beginning = tuple(target.model.tokenize(bundled()[0]))
        repeating = RepeatingEngine(target.info, written(target, beginning))
    engine = FlooredEngine(target if live else repeating, step)
    scheduler = ClockedScheduler(engine.info, SchedulerConfig(recall=recall))
    scheduler.times = {"ended": [], "told": []}
    async with Server(Worker(engine, scheduler), engine.info, table, "127.0.0.1:0") as server:
        print(json.dumps({"listening": f"127.0.0.1:{server.port}", **told}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            times, scheduler.times = scheduler.times, {"ended": [], "told": []}
            print(json.dumps(times), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="a verifier that reports when each token's step ended")
    parser.add_argument("--step", type=float, default=30.0, metavar="MS", help="at least (%(default)s)")
    parser.add_argument("--live", action="store_true", help="run the target in every step")
    parser.add_argument("--text", type=Path, metavar="FILE", help="write the text of this file")
    parser.add_argument("--recall", action="store_true", help="guess repeated text")
    given = parser.parse_args()
    asyncio.run(serve(given.step / 1e3, given.live, given.text, given.recall))
