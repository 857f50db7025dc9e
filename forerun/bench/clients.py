"""A process of clients (`forerun.bench.crowd`), told what to do and asked how it went.

    python -m forerun.bench.clients --core 0

Lines of JSON on standard input: `{"do": "learn", ...}` brings the texts, `{"do": "run", "job": ...}` a load.
It answers `{"event": "ready"}` when every client is connected, waits for `{"do": "go"}`, tells of samples if
the job wants some, and ends with `{"event": "done", ...}`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from common.errors import ForerunError
from forerun.bench.crowd import Crowd, Library, clock
from forerun.bench.job import Job
from forerun.options import add_core, pin_to_core


async def serve() -> None:
    """Loads one after the other. At the end of standard input, in the middle of a load as well: whoever has
    asked for it is gone."""
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    reading, working = asyncio.create_task(_read(messages)), asyncio.create_task(_work(messages))
    await asyncio.wait({reading, working}, return_when=asyncio.FIRST_COMPLETED)
    for task in (reading, working):
        task.cancel()
    for result in await asyncio.gather(reading, working, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def _read(messages: asyncio.Queue[dict[str, Any]]) -> None:
    """What comes on standard input, to its end."""
    reader = asyncio.StreamReader(limit=2**26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        messages.put_nowait(json.loads(line))


async def _work(messages: asyncio.Queue[dict[str, Any]]) -> None:
    library = Library()
    while True:
        message = await messages.get()
        if message["do"] == "learn":
            library.learn(message)
            _tell("learnt")
            continue
        job = Job.from_json(message["job"])
        async with Crowd(library, job) as crowd:
            _tell("ready")
            await messages.get()  # go
            await _run(crowd, job)


def _tell(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


async def _run(crowd: Crowd, job: Job) -> None:
    began_at, cpu = clock(), time.process_time()
    samples = asyncio.create_task(_sample(crowd, job.sample)) if job.sample else None
    await crowd.run()
    wall, spent = clock() - began_at, time.process_time() - cpu
    if samples is not None:
        samples.cancel()
        await asyncio.gather(samples, return_exceptions=True)
    runs = [run.as_json() for run in crowd.runs]
    _tell("done", began_at=began_at, wall=wall, cpu=spent, runs=runs, rest=crowd.pulse.take(clock()))


async def _sample(crowd: Crowd, pause: float) -> None:
    due_at = clock()
    while True:
        due_at += pause
        await asyncio.sleep(max(0.0, due_at - clock()))
        _tell("sample", now=clock(), cpu=time.process_time(), **crowd.pulse.take(clock()))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m forerun.bench.clients", description=__doc__)
    add_core(parser)
    options = parser.parse_args(arguments)
    pin_to_core(options.core)
    try:
        asyncio.run(serve())
    except ForerunError as error:
        print(f"forerun: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
