"""Clients: edges without a screen, many in one event loop, each on a connection of its own.

Sessions, policies and the wire are the product's; only the drafts may come from elsewhere
(`forerun.bench.oracle`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from common.errors import CapacityError, ForerunError
from common.messages import FinishReason
from common.privacy import Privacy
from common.rpc.describe import Description
from edge_client.channel import OWN_CONNECTION, VerifierChannel
from edge_client.core.config import SessionConfig
from edge_client.core.drafter import NOTHING_READ
from edge_client.core.effects import Expand, MoveTip, StartDrafter
from edge_client.core.policies import make_policy
from edge_client.core.session import EdgeSession
from edge_client.draft_worker import Drafted, Drafts, DraftWorker
from edge_client.generation import Generation
from forerun.bench.job import LIVE, OFF, ORACLE, RECORDED, Job, TextRun
from forerun.bench.oracle import KnowingDrafter, Oracle, Recording, Said
from forerun.bench.pulse import Pulse
from forerun.bench.texts import Text, first_difference
from forerun.edge_places import try_draft
from simulator.drafts import HONEST
from simulator.draws import Draws, Stream
from simulator.knowledge import Candidates

IDLE_POLICY = "sync:1"
"""Without fill: the verifier waits for the device, however long it thinks."""

IDLE_ACCEPTANCE = 0.5

WARMING = 64
"""Connections that are made at a time."""

clock = time.monotonic


class LoopDrafts:
    """Runs a drafter that costs nothing within the event loop. A draft step's outcome comes `draft_time`
    seconds later, at the earliest when the loop is free again."""

    def __init__(self, drafter: KnowingDrafter, draft_time: float) -> None:
        self._drafter = drafter
        self._draft_time = draft_time

    def submit(self, effect: StartDrafter | MoveTip) -> None:
        match effect:
            case StartDrafter():
                self._drafter.start(effect.tokens, effect.tip, effect.sampling)
            case MoveTip():
                self._drafter.reroot(effect.change)

    def expand(self, effect: Expand, on_drafted: Drafted) -> None:
        outcome, loop = self._drafter.expand(effect.rows), asyncio.get_running_loop()
        if self._draft_time:
            loop.call_later(self._draft_time, on_drafted, outcome, NOTHING_READ)
        else:
            loop.call_soon(on_drafted, outcome, NOTHING_READ)


class Library:
    """The texts that this process knows, and what was recorded of them."""

    def __init__(self) -> None:
        self.texts: dict[int, Text] = {}
        self.said: dict[int, list[Candidates]] = {}
        self.draft_path = ""  # of the model that live clients run

    def learn(self, message: dict[str, Any]) -> None:
        found = [Text.from_json(each) for each in message["texts"]]
        self.texts = {text.number: text for text in found}
        self.said = {
            int(number): [(tuple(tokens), tuple(scores)) for tokens, scores in said]
            for number, said in message.get("said", {}).items()
        }
        self.draft_path = message.get("draft", "")


class Device:
    """One client: a connection, and a draft model of its own where the job asks for that."""

    def __init__(self, channel: VerifierChannel, live: DraftWorker | None = None) -> None:
        self.channel = channel
        self.live = live


class Crowd:
    """All clients of this process, for one job."""

    def __init__(self, library: Library, job: Job) -> None:
        self.pulse = Pulse()
        self.runs: list[TextRun] = []
        self._library = library
        self._job = job
        self._stack = contextlib.AsyncExitStack()
        self._devices: list[Device] = []
        self._idle: list[Device] = []
        self._target: Description

    async def __aenter__(self) -> Crowd:
        """Connect everybody. Raises `UnavailableError` if nobody is there."""
        job = self._job
        self._devices = [await self._device() for _ in range(job.clients)]
        self._idle = [await self._device(live=False) for _ in range(job.idle)]
        everybody, described = [*self._devices, *self._idle], list[Description]()
        for first in range(0, len(everybody), WARMING):
            some = everybody[first : first + WARMING]
            described += await asyncio.gather(*(device.channel.describe() for device in some))
        self._target = described[0]
        self._warm()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _warm(self) -> None:
        """Tables of an oracle's confidence, which take a second to compute, are there before the load is."""
        text = next(iter(self._library.texts.values()))
        if self._job.drafts.kind == ORACLE:
            self._oracle(text, self._job.drafts.acceptance)
        if self._job.idle:
            self._oracle(text, IDLE_ACCEPTANCE)

    async def run(self) -> None:
        """The whole load; who is idle is sent away when the others have ended."""
        idle = [asyncio.create_task(self._stay(place, device)) for place, device in enumerate(self._idle)]
        await (self._open_loop() if self._job.is_open else self._closed_loop())
        for task in idle:
            task.cancel()
        await asyncio.gather(*idle, return_exceptions=True)

    # Loads ------------------------------------------------------------------------------------------------

    async def _closed_loop(self) -> None:
        began_at, numbers = clock(), self._numbers()

        async def serve(device: Device) -> None:
            for number in numbers:  # one iterator for all: each takes the next text
                await self._write(device, number)
                if self._job.duration is not None and clock() - began_at >= self._job.duration:
                    return

        await asyncio.gather(*map(serve, self._devices))

    def _numbers(self) -> Iterator[int]:
        job = self._job
        while True:
            yield from job.numbers
            if job.duration is None:
                return

    async def _open_loop(self) -> None:
        """A text that comes while all devices are busy gets a new one: its user does not wait for others."""
        began_at, free, tasks = clock(), list(self._devices), list[asyncio.Task[None]]()

        async def serve(number: int) -> None:
            device = free.pop() if free else await self._device()
            await self._write(device, number)
            free.append(device)

        for number, at in zip(self._job.numbers, self._job.times, strict=True):
            await asyncio.sleep(max(0.0, began_at + at - clock()))
            tasks.append(asyncio.create_task(serve(number)))
        await asyncio.gather(*tasks)

    async def _stay(self, place: int, device: Device) -> None:
        """An idle session, again and again. The first ones begin one after the other within a `think`."""
        draws = Draws(self._job.seed, place)
        await asyncio.sleep(draws.uniform(Stream.ARRIVAL, 0) * self._job.think)
        while True:
            number = self._job.numbers[place % len(self._job.numbers)]
            run = await self._write(device, number, IDLE_POLICY, self._job.think)
            if not run.finished:  # a device that was turned away does not hammer at the door
                await asyncio.sleep(self._job.think)

    # One text ---------------------------------------------------------------------------------------------

    async def _write(self, device: Device, number: int, policy: str = "", think: float = 0.0) -> TextRun:
        """Open a session and take what comes. `policy` and `think` are an idle session's, which is not
        counted among those under way."""
        text, run = self._library.texts[number], TextRun(number, clock())
        drafts, drafter = self._drafts(device, text, think)
        generation = Generation(self._session(text, policy), device.channel, drafts)
        place = None if think else self.pulse.opened(run.opened_at)
        written: list[int] = []
        try:
            async for emit in generation:
                now = clock()
                if place is not None:
                    self._arrived(place, run, len(emit.tokens), now)
                run.arrivals += [now - run.opened_at] * len(emit.tokens)
                written += emit.tokens
        except ForerunError as error:
            run.refused = isinstance(error, CapacityError) and not written
            run.error = str(error)
        finally:  # an idle session is cancelled in the end; what it has written is checked as well
            run.finished = not run.error and generation.reason in (FinishReason.LENGTH, FinishReason.STOP)
            run.difference = first_difference(written, text.reference[: len(written)] or written)
            run.tokens = written if self._job.tell_tokens else []
            self._close(run, generation, drafter)
            self.pulse.ended(place, run)
        return run

    def _arrived(self, place: int, run: TextRun, count: int, now: float) -> None:
        if not run.arrivals:
            self.pulse.began(now - run.opened_at)
        self.pulse.arrived(place, count, now)

    def _close(self, run: TextRun, generation: Generation, drafter: KnowingDrafter | None) -> None:
        if not self._job.keep:
            return
        run.stats = asdict(generation.session.stats)
        run.bytes_up, run.bytes_down = generation.traffic.up, generation.traffic.down
        if drafter is not None:
            run.asked, run.right = drafter.counts.asked, drafter.counts.right
        self.runs.append(run)

    def _session(self, text: Text, policy: str) -> EdgeSession:
        """No reconnects: who is refused is counted, not served later."""
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
        return EdgeSession(config, make_policy(policy or (OFF if job.drafts.kind == OFF else job.policy)))

    def _drafts(
        self, device: Device, text: Text, think: float
    ) -> tuple[Drafts | None, KnowingDrafter | None]:
        job = self._job
        if think:
            return LoopDrafts(
                drafter := KnowingDrafter(text, self._oracle(text, IDLE_ACCEPTANCE)), think
            ), drafter
        if job.drafts.kind == OFF:
            return None, None
        if job.drafts.kind == LIVE:
            return device.live, None
        drafter = KnowingDrafter(text, self._said(text))
        return LoopDrafts(drafter, job.draft_time), drafter

    def _said(self, text: Text) -> Said:
        if self._job.drafts.kind == RECORDED:
            return Recording(text, self._library.said[text.number], self._job.seed)
        return self._oracle(text, self._job.drafts.acceptance)

    def _oracle(self, text: Text, acceptance: float) -> Oracle:
        return Oracle(text, acceptance, self._target.vocab_size, self._job.seed)

    async def _device(self, live: bool = True) -> Device:
        channel = await self._stack.enter_async_context(VerifierChannel(self._job.address, OWN_CONNECTION))
        if not live or self._job.drafts.kind != LIVE:
            return Device(channel)
        from edge_client.llama.drafter import LlamaDrafter
        from edge_client.llama.runtime import LlamaRuntime
        from edge_client.llama.settings import LlamaSettings

        settings = LlamaSettings(self._library.draft_path, threads=1)
        try_draft(settings)
        runtime = self._stack.enter_context(LlamaRuntime(settings))
        return Device(channel, self._stack.enter_context(DraftWorker(LlamaDrafter(runtime))))
