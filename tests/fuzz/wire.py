"""Plays a case to a live server over a loopback socket, beside an honest edge: slower, and whole.

One server takes all cases, one after the other: that it still serves after thousands is the point.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar, assert_never

import grpc
import grpc.aio

from cloud_verifier.core.limits import SchedulerConfig
from common.sampling import SamplingParams
from common.wire.service import SERVICE_NAME
from common.wire.status import Status
from edge_client.network.channel import VerifierChannel
from schemes.policies.tree import TreePolicy
from tests.fuzz.cases import Case, Event, Leave, Listen, Send
from tests.fuzz.laws import NEIGHBOUR, Broken, Ear, check_all_returned, check_status, no_complaint
from tests.support.drafter_thread import DrafterThread
from tests.support.tiny import System, generation, running
from tests.worlds.models import TinyDrafter, target_alone

Code = grpc.StatusCode
Result = TypeVar("Result")

METHODS = {
    "Session": (f"/{SERVICE_NAME}/Session", True),
    "Describe": (f"/{SERVICE_NAME}/Describe", False),
    "Check": ("/grpc.health.v1.Health/Check", False),
    "Watch": ("/grpc.health.v1.Health/Watch", True),
    "Reflection": ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", True),
    "Nothing": (f"/{SERVICE_NAME}/Nothing", True),
}
"""Path, and whether a client streams (or may: `Watch` takes the first message)."""

UNHEARD = Status(Code.INTERNAL, "Internal error from Core", ())
"""What `grpc.aio`'s client says by itself when a message of its own meets the end of its call: it has lost
the status that came. Nothing of it is the server's, whose errors always bring a detail."""

OVER = (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError)
"""What writing raises when the server has ended the call, which its status tells."""

PROMPT = (3, 1, 2)
SAMPLING = SamplingParams(temperature=0.7, max_tokens=8, seed=11, ignore_eos=True)
TENANT_KEY = "x-tenant-of-the-proxy"
PATIENCE = 60.0  # seconds for what takes milliseconds; a busy machine may stand still for a while
A_MOMENT = 0.005  # seconds for an answer to come, where the case lets the verifier do something
A_BREATH = (
    0.002  # seconds between messages, so that the status of one that was refused is not lost (`UNHEARD`)
)
CONFIG = SchedulerConfig(recall=True, max_sessions=16)


NARROW = replace(CONFIG, prefix_cache=False, max_rows=2, promised_text=2)
"""Not all tips fit a step, so tenants take turns."""


class Site:
    """A live server, a hostile client's channel and an honest edge. A context manager; `play` takes cases.

    On a `narrow` one sessions give way to each other.
    """

    def __init__(self, *, narrow: bool = False) -> None:
        self._options: dict[str, Any] = {"config": NARROW, "num_slots": 160} if narrow else {"config": CONFIG}
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()

    def __enter__(self) -> Site:
        self._await(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._await(self._stack.aclose())
        finally:
            self._loop.close()

    def play(self, case: Case) -> list[Status]:
        """How its calls ended. Raises `Broken` when a law does not hold."""
        with no_complaint():
            return self._await(self._play(case))

    def _await(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(work)

    async def _start(self) -> None:
        enter = self._stack.enter_async_context
        self._drafts = self._stack.enter_context(DrafterThread(TinyDrafter(blend=0.0)))
        self._system: System = await enter(running(**self._options, tenant_key=TENANT_KEY))
        self._honest_channel = await enter(VerifierChannel(self._system.address))
        self._channel = await enter(grpc.aio.insecure_channel(self._system.address))

    async def _play(self, case: Case) -> list[Status]:
        honest = asyncio.create_task(self._honest())
        calls = [asyncio.create_task(self._call(case, events)) for events in case.streams]
        try:
            async with asyncio.timeout(PATIENCE):
                await honest
                ends = await asyncio.gather(*calls)
                await self._system.worker.wait_until_gone()
                while not self._system.worker.scheduler.idle:  # noqa: ASYNC110 - the last step may still run
                    await asyncio.sleep(0)
        except TimeoutError:
            raise Broken(
                f"there was no end after {PATIENCE:g} s of {self._unfinished(honest, calls)}"
            ) from None
        finally:
            for task in (honest, *calls):
                task.cancel()
            await asyncio.gather(honest, *calls, return_exceptions=True)
        check_all_returned(self._system.worker.scheduler)
        if self._system.worker.monitor.streams:
            raise Broken("the monitor keeps a stream that is gone")
        return ends

    def _unfinished(self, honest: asyncio.Task[None], calls: Sequence[asyncio.Task[Status]]) -> str:
        """What is still awaited, for a person who looks for the reason."""
        worker = self._system.worker
        named = (("the honest session", honest), *(("a hostile call", call) for call in calls))
        waiting = [name for name, task in named if not task.done()]
        waiting += [f"{len(worker.monitor.streams)} streams of the server"] * bool(worker.monitor.streams)
        return ", ".join(waiting) or "the last step"

    async def _honest(self) -> None:
        """A whole text with good drafts, beside whatever happens."""
        run = generation(
            self._honest_channel, self._drafts, SAMPLING, TreePolicy(), PROMPT, session_id=NEIGHBOUR
        )
        async for _ in run:
            pass
        expected = target_alone(PROMPT, SAMPLING, ())
        if run.session.text != expected:
            raise Broken(f"the honest session beside it got {run.session.text} and not {expected}")
        if run.session.stats.resumes:
            raise Broken("the honest session beside it had to reconnect")

    async def _call(self, case: Case, events: tuple[Event, ...]) -> Status:
        path, streams = METHODS[case.method]
        options: dict[str, Any] = {
            "metadata": ((TENANT_KEY, case.tenant), *case.metadata),
            "timeout": case.time_left,
        }
        more: tuple[grpc.StatusCode, ...] = ()
        if case.squeezed:  # which is refused; gRPC may close the call before all of it has come
            options["compression"] = grpc.Compression.Gzip
            more = (Code.UNIMPLEMENTED, Code.INTERNAL)
        if not streams:
            first = next((event.data for event in events if isinstance(event, Send)), b"")
            return await _unary(self._channel, path, first, options, (*more, Code.NOT_FOUND))
        call = self._channel.stream_stream(path, request_serializer=_same, response_deserializer=_same)
        pause = 0.0 if case.hurried else A_BREATH
        talk = Talk(call(**options), case.method, pause, more)
        return await talk.run(events)


class Talk:
    """One streaming call: says what its events say, and hears whatever comes meanwhile."""

    def __init__(self, call: Any, method: str, pause: float, more: tuple[grpc.StatusCode, ...] = ()) -> None:
        self._call = call
        self._ear = Ear() if method == "Session" else None
        self._pause = pause  # seconds after each message, in which an answer is heard
        self._endless = method == "Watch"  # the server never ends it of itself
        self._expected: tuple[grpc.StatusCode, ...] = more + (Code.UNIMPLEMENTED,) * (method == "Nothing")
        self._heard = asyncio.Event()
        self._left = False
        self._reader = asyncio.create_task(self._read())

    async def run(self, events: tuple[Event, ...]) -> Status:
        try:
            for event in events:
                if self._call.done() or not await self._happen(event):
                    break
            await self._say_no_more()
            await self._reader
        finally:
            self._call.cancel()
        code, details = await self._call.code(), await self._call.details()
        status = Status(code, details or "", tuple(await self._call.trailing_metadata() or ()))
        if code is not Code.OK and (code, details, status.trailing_metadata) != UNHEARD:
            check_status(status, self._expected + (Code.CANCELLED,) * self._left)
        return status

    async def _happen(self, event: Event) -> bool:
        """Whether it goes on."""
        match event:
            case Send():
                with contextlib.suppress(*OVER):
                    await self._call.write(event.data)
                await asyncio.wait((self._reader,), timeout=self._pause)
            case Listen():
                await self._answer()
            case Leave():
                if not event.politely:
                    self._leave()
                return False
            case _:
                assert_never(event)
        return True

    async def _answer(self) -> None:
        self._heard.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._heard.wait(), A_MOMENT)

    async def _say_no_more(self) -> None:
        if self._endless:
            self._leave()
        elif not self._call.done():
            with contextlib.suppress(*OVER):
                await self._call.done_writing()

    def _leave(self) -> None:
        self._left = True
        self._call.cancel()

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for frame in self._call:
                self._heard.set()
                if self._ear is not None:
                    self._ear.hear(frame)
        self._heard.set()


async def _unary(
    channel: grpc.aio.Channel,
    path: str,
    data: bytes,
    options: dict[str, Any],
    more: tuple[grpc.StatusCode, ...],
) -> Status:
    call: Any = channel.unary_unary(path, request_serializer=_same, response_deserializer=_same)
    try:
        await call(data, **options)
    except grpc.aio.AioRpcError as error:
        trailers: Any = error.trailing_metadata() or ()
        status = Status(error.code(), error.details() or "", tuple(trailers))
        check_status(status, more)
        return status
    return Status(Code.OK, "", ())


def _same(data: bytes) -> bytes:
    return data
