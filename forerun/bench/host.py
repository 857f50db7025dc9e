"""A verifier that is measured: `forerun verify` with a meter around its engine and its scheduler.

    python -m forerun.bench.host --model demo_models/target --json

It takes the options of `forerun verify`; `--model formula` is a target without a model. Each line of JSON
on its standard input, `{"objects": true}` to have Python's objects counted, too, is answered by one on its
standard output: what happened since the last one. At the end of its input it stops.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import gc
import json
import pstats
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import TargetEngine
from cloud_verifier.engine.floor import FlooredEngine
from cloud_verifier.worker import Worker
from common.errors import ForerunError, UserError
from common.rpc.describe import TokenTable
from forerun import verify
from forerun.bench.formula import FORMULA, TABLE, FormulaEngine
from forerun.bench.meter import Meter, memory_bytes
from forerun.logs import hush_libraries
from forerun.options import pin_to_core

SHOWN = 40
"""Functions of a profile."""


class Host:
    """A `verify.Watch` that answers on standard output."""

    def __init__(self, meter: Meter, profile: Path | None = None) -> None:
        self._meter = meter
        self._profile = profile

    def watched(self, scheduler: VerifyScheduler) -> VerifyScheduler:
        self._scheduler = scheduler
        found: VerifyScheduler = self._meter.scheduler(scheduler)
        return found

    async def run(self, worker: Worker) -> None:
        """Answer questions until there are no more."""
        reader = await _standard_input()
        with contextlib.nullcontext() if self._profile is None else _profiled(self._profile):
            while line := await reader.readline():
                print(json.dumps(self._told(json.loads(line))), flush=True)

    def _told(self, asked: dict[str, Any]) -> dict[str, Any]:
        scheduler, memory = self._scheduler, self._scheduler.memory
        if scheduler.idle:
            scheduler.check_integrity()
        return {
            **self._meter.take(),
            "memory_bytes": memory_bytes(),
            "objects": len(gc.get_objects()) if asked.get("objects") else None,
            "sessions": len(scheduler.sessions),
            "idle": scheduler.idle,
            "num_slots": memory.num_slots,
            "free_slots": memory.pool.num_free,
            "cached_slots": memory.cache.num_slots,
            "reserved_slots": memory.num_reserved,
            "preempted": scheduler.room.num_preempted,
        }


AUTO_SLOTS = 16384
"""Slots of the formula's engine where none are asked for; it has no memory to fill."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m forerun.bench.host", description=__doc__)
    verify.add_options(parser)
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="where a profile of the event loop's thread goes"
    )
    return parser


def load(options: argparse.Namespace) -> tuple[TargetEngine, TokenTable]:
    """A model's engine, or the formula's. Raises `UserError`."""
    if options.model != FORMULA:
        return verify.load(options)
    engine = FormulaEngine(options.slots or AUTO_SLOTS)
    return (FlooredEngine(engine, options.step_floor) if options.step_floor else engine), TABLE


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


@contextlib.contextmanager
def _profiled(path: Path) -> Iterator[None]:
    """This thread's profile goes to `path` at the end, also at one by a signal."""
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        yield
    finally:
        profiler.disable()
        with path.open("w", encoding="utf-8") as out:
            pstats.Stats(profiler, stream=out).sort_stats("tottime").print_stats(SHOWN)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = make_parser().parse_args(arguments)
    try:
        verify.check_options(options)
        pin_to_core(options.core)
        hush_libraries()
        engine, table = load(options)
        meter = Meter()
        asyncio.run(verify.serve(options, meter.engine(engine), table, Host(meter, options.profile)))
    except ForerunError as error:
        print(f"forerun: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
