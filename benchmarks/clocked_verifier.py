"""A verifier of the demo target whose steps take a known time, and which tells when each of them ended.

A process for `benchmarks.api_overhead`: `python -m benchmarks.clocked_verifier --step 30`. It says where it
listens as a line of JSON; for every line of its standard input it prints the ends of steps since the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence

from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import StepPlan, StepResult, TargetEngine, TargetInfo
from cloud_verifier.engine.floor import FlooredEngine
from cloud_verifier.service import Server
from cloud_verifier.worker import Worker
from demo_models import TARGET_DIR
from forerun.verify import SWITCH_INTERVAL

NUM_SLOTS = 16384


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


async def serve(step: float) -> None:
    """Until standard input ends."""
    import torch

    from cloud_verifier.engine.loading import load_engine

    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_INTERVAL)
    target, table = load_engine(str(TARGET_DIR), NUM_SLOTS)
    engine = ClockedEngine(FlooredEngine(target, step))
    worker = Worker(engine, VerifyScheduler(engine.info))
    async with Server(worker, engine.info, table, "127.0.0.1:0") as server:
        print(json.dumps({"listening": f"127.0.0.1:{server.port}"}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            ends, engine.ends = engine.ends, []
            print(json.dumps(ends), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="a verifier that tells when its steps end")
    parser.add_argument("--step", type=float, default=30.0, metavar="MS", help="at least (%(default)s)")
    given = parser.parse_args(arguments)
    asyncio.run(serve(given.step / 1e3))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
