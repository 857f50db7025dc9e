"""Runs many edges in one event loop, each on its own connection, as clients of a load.

    python -m lab.bench.clients

Sessions, policies and the wire are the product's; only the drafts come from `lab.bench.oracle`. The
process reads lines of JSON from standard input: `{"do": "learn", ...}` brings the texts, `{"do": "run",
"job": ...}` a load. It answers `{"event": "ready"}` when every client is connected, waits for `{"do": "go"}`,
and ends the load with `{"event": "done", ...}`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from common.errors import CapacityError, ForerunError
from common.messages import FinishReason
from common.privacy import Privacy
from common.wire.describe import Description
from edge_client.core.effects import (
    NOTHING_READ,
    Drafted,
    DraftEffect,
    Expand,
    MoveTip,
    SessionConfig,
    StartDrafter,
)
from edge_client.core.policies import make_policy
from edge_client.core.session import EdgeSession
from edge_client.network.channel import OWN_CONNECTION, VerifierChannel
from edge_client.network.generation import Generation
from forerun.cli import reported
from lab.bench.load import (
    OFF,
    ORACLE,
    RECORDED,
    LoadJob,
    LoadText,
    TextRun,
    first_difference,
    frozen,
    json_lines,
)
from lab.bench.oracle import KnowingDrafter, Oracle, recording
from simulator.drafts import HONEST
from simulator.knowledge import Candidates, Knowledge

WARMING = 64
"""Number of connections made at a time."""

clock = time.monotonic


class LoopDrafts:
    """Runs a drafter without cost in the event loop. A draft step's outcome arrives `draft_time` seconds
    later, or when the loop is free again."""

    def __init__(self, drafter: KnowingDrafter, draft_time: float) -> None:
        self._drafter = drafter
        self._draft_time = draft_time

    def submit(self, effect: DraftEffect, on_drafted: Drafted) -> None:
        match effect:
            case StartDrafter():
                self._drafter.start(effect.tokens, effect.tip, effect.sampling)
            case MoveTip():
                self._drafter.reroot(effect.change)
            case Expand():
                self._expand(effect, on_drafted)

    def _expand(self, effect: Expand, on_drafted: Drafted) -> None:
        outcome, loop = self._drafter.expand(effect.rows), asyncio.get_running_loop()
        if self._draft_time:
            loop.call_later(self._draft_time, on_drafted, outcome, NOTHING_READ)
        else:
            loop.call_soon(on_drafted, outcome, NOTHING_READ)


class Library:
    """Holds the texts that this process knows, and the recorded drafts."""

    def __init__(self) -> None:
        self.texts: dict[int, LoadText] = {}
        self.said: dict[int, Sequence[Candidates]] = {}

    def learn(self, message: dict[str, Any]) -> None:
        self.texts = {each["number"]: LoadText(**frozen(each)) for each in message["texts"]}
        self.said = {int(number): frozen(said) for number, said in message["said"].items()}


class ClientCrowd:
    """Runs all clients of this process for one job."""

    def __init__(self, library: Library, job: LoadJob) -> None:
        self.runs: list[TextRun] = []
        self._library = library
        self._job = job
        self._stack = contextlib.AsyncExitStack()
        self._channels: list[VerifierChannel] = []
        self._target: Description

    async def __aenter__(self) -> ClientCrowd:
        """Connect all clients. Raise `UnavailableError` if there is no verifier."""
        self._channels = [await self._connection() for _ in range(self._job.clients)]
        described = list[Description]()
        for first in range(0, len(self._channels), WARMING):
            some = self._channels[first : first + WARMING]
            described += await asyncio.gather(*(channel.describe() for channel in some))
        self._target = described[0]
        if self._job.drafts.kind == ORACLE:  # its tables take a second to compute, now and not in the load
            self._said(next(iter(self._library.texts.values())))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def run(self) -> None:
        """Carry out the whole load."""
        numbers = iter(self._job.numbers)

        async def serve(channel: VerifierChannel) -> None:
            for number in numbers:  # one iterator for all clients: each takes the next text
                await self._write(channel, number)

        await asyncio.gather(*map(serve, self._channels))

    async def _connection(self) -> VerifierChannel:
        return await self._stack.enter_async_context(VerifierChannel(self._job.address, OWN_CONNECTION))

    async def _write(self, channel: VerifierChannel, number: int) -> None:
        """Open a session and record its text."""
        text, run, job = self._library.texts[number], TextRun(number, clock()), self._job
        drafter = None if job.drafts.kind == OFF else KnowingDrafter(text, self._said(text))
        drafts = None if drafter is None else LoopDrafts(drafter, job.draft_time)
        generation = Generation(self._session(text), channel, drafts)
        written: list[int] = []
        try:
            async for emit in generation:
                run.arrivals += [clock() - run.opened_at] * len(emit.tokens)
                written += emit.tokens
        except ForerunError as error:
            run.refused = isinstance(error, CapacityError) and not written
            run.error = str(error)
        run.finished = not run.error and generation.reason in (FinishReason.LENGTH, FinishReason.STOP)
        run.difference = first_difference(written, text.reference[: len(written)] or written)
        run.tokens = written if job.tell_tokens else []
        run.stats = asdict(generation.session.stats)
        run.bytes_up, run.bytes_down = generation.traffic.up, generation.traffic.down
        if drafter is not None:
            run.asked, run.right = drafter.counts.asked, drafter.counts.right
        self.runs.append(run)

    def _session(self, text: LoadText) -> EdgeSession:
        """Make a session without reconnects: a refused session is counted, not served later."""
        job = self._job
        config = SessionConfig(
            prompt=text.prompt,
            sampling=job.sampling,
            fingerprint=self._target.fingerprint,
            session_id=f"bench-{text.number}",
            prior=HONEST if job.drafts.kind == ORACLE else None,
            eos_token_ids=self._target.eos_token_ids,
            max_attempts=0,
            patience=None,
            privacy=Privacy.OFF,  # the verifier's options say what holds
        )
        return EdgeSession(config, make_policy(OFF if job.drafts.kind == OFF else job.policy))

    def _said(self, text: LoadText) -> Knowledge:
        job = self._job
        if job.drafts.kind == RECORDED:
            return recording(text, self._library.said[text.number], job.seed)
        return Oracle(text, job.drafts.acceptance, self._target.vocab_size, job.seed)


async def serve() -> None:
    """Run loads in sequence until standard input ends, even in the middle of a load."""
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    reading, working = asyncio.create_task(_read(messages)), asyncio.create_task(_work(messages))
    await asyncio.wait({reading, working}, return_when=asyncio.FIRST_COMPLETED)
    for task in (reading, working):
        task.cancel()
    for result in await asyncio.gather(reading, working, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def _read(messages: asyncio.Queue[dict[str, Any]]) -> None:
    async for message in json_lines():
        messages.put_nowait(message)


async def _work(messages: asyncio.Queue[dict[str, Any]]) -> None:
    library = Library()
    while True:
        message = await messages.get()
        if message["do"] == "learn":
            library.learn(message)
            _tell("learnt")
            continue
        async with ClientCrowd(library, LoadJob.from_json(message["job"])) as crowd:
            _tell("ready")
            await messages.get()  # go
            began_at, cpu = clock(), time.process_time()
            await crowd.run()
            wall, spent = clock() - began_at, time.process_time() - cpu
            runs = [asdict(run) for run in crowd.runs]
            _tell("done", began_at=began_at, wall=wall, cpu=spent, runs=runs)


def _tell(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    argparse.ArgumentParser(prog="python -m lab.bench.clients", description=__doc__).parse_args(arguments)
    return reported(lambda: asyncio.run(serve()))


if __name__ == "__main__":
    sys.exit(main())
