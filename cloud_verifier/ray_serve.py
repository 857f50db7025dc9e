"""The service's methods as Ray Serve calls them (docs/ray.md); this module itself needs no Ray.

Ray's proxy ends the connections of edges and hands each message on by a task. Two of its ways need an answer.

It hands back what a method yields, each with a copy of the call's context, and of what a method raises only
the code and the sentence. So what trails a status gets to the edge only beside something that was yielded:
here a status travels on a last frame that says nothing.

And it takes an edge that pings as often as ours do for an attacker: after the fourth ping without data in
between it closes the connection ("Too many pings", 6.7 s into a silence in which nothing else is asked), with
all its sessions. It cannot be told otherwise, so no stream is silent for so long that an edge would ping.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio

from cloud_verifier.guard import guarded, guarded_generator
from cloud_verifier.service import VerifierService
from common.errors import UnavailableError
from common.pb import verifier_pb2 as pb
from common.rpc.frames import DOWN_BYTES, pad
from common.rpc.options import KEEPALIVE_TIME_MS

logger = logging.getLogger(__name__)

SILENCE = KEEPALIVE_TIME_MS / 2 * 1e-3
"""Seconds without a frame after which one that says nothing leaves; half of what makes an edge ping."""


class Context(Protocol):
    """As much of `ray.serve.grpc_util.RayServegRPCContext` as is used here."""

    def invocation_metadata(self) -> list[tuple[str, Any]]: ...

    def set_code(self, code: grpc.StatusCode) -> None: ...

    def set_details(self, details: str) -> None: ...

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, Any]]) -> None: ...


class RayCall:
    """A `Call` that Ray's proxy has carried here."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._over: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """See `Call`. It is over when the method is: what Ray's proxy keeps of an answer is its own."""
        self._over.append(callback)

    def over(self) -> None:
        for callback in self._over:
            callback(self)

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        return self._context.invocation_metadata()

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Empty: the proxy's port knows no TLS."""
        return {}

    def peer(self) -> str:
        """Empty: the connection is the proxy's."""
        return ""

    def time_remaining(self) -> float | None:
        """None: the proxy keeps an edge's deadline to itself, and cancels the call when it has passed."""
        return None

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: tuple[tuple[str, Any], ...] = ()
    ) -> NoReturn:
        """See `Call`."""
        self._context.set_code(code)
        self._context.set_details(details)
        self._context.set_trailing_metadata([*trailing_metadata])
        raise grpc.aio.AbortError


class RayFace:
    """Both methods of `service`; Ray finds methods and their parameters by name. `lost` are the errors by
    which Ray says that the call which brought a stream's requests is gone."""

    def __init__(self, service: VerifierService, lost: tuple[type[Exception], ...] = ()) -> None:
        self._describe = guarded(service.Describe)
        self._session = guarded_generator(service.Session)
        self._lost = lost

    async def Describe(self, request: pb.DescribeRequest, grpc_context: Context) -> pb.DescribeResponse:
        call = RayCall(grpc_context)
        try:
            answer: pb.DescribeResponse | bytes = await self._describe(request, call)
        except grpc.aio.AbortError:
            return pb.DescribeResponse()  # gRPC sends the status in its place
        finally:
            call.over()
        return pb.DescribeResponse.FromString(answer) if isinstance(answer, bytes) else answer

    async def Session(
        self, request_stream: AsyncIterator[pb.SessionRequest], grpc_context: Context
    ) -> AsyncGenerator[pb.SessionResponse, None]:
        frames = self._session(self._until_lost(request_stream), RayCall(grpc_context))
        try:
            async with aclosing(never_silent(frames)) as sent:
                async for frame in sent:
                    yield frame
        except grpc.aio.AbortError:
            yield nothing()

    async def _until_lost(
        self, requests: AsyncIterator[pb.SessionRequest]
    ) -> AsyncGenerator[pb.SessionRequest, None]:
        try:
            async for request in requests:
                yield request
        except self._lost as error:
            raise UnavailableError("Ray's proxy has ended the call") from error


async def never_silent(
    frames: AsyncGenerator[pb.SessionResponse, None], silence: float = SILENCE
) -> AsyncGenerator[pb.SessionResponse, None]:
    """The frames, and one that says nothing whenever none has come for so many seconds."""
    async with aclosing(frames):
        while True:
            coming = asyncio.create_task(_next(frames))
            try:
                while not (await asyncio.wait({coming}, timeout=silence))[0]:
                    yield nothing()
            finally:  # who stops listening stops the frames, too; only then can they be closed
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait({coming})
            if (frame := coming.result()) is None:
                return
            yield frame


async def _next(frames: AsyncGenerator[pb.SessionResponse, None]) -> pb.SessionResponse | None:
    return await anext(frames, None)


def nothing() -> pb.SessionResponse:
    """A frame that brings no byte of a message in parts: every edge takes it, at any time, and is none the
    wiser."""
    frame = pb.SessionResponse()
    frame.part.SetInParent()
    return pad(frame, DOWN_BYTES)
