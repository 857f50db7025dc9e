"""Adapt the service's methods to Ray's proxy (README.md). This module needs no Ray.

Ray's proxy ends the connections of edges and forwards each message in a task. Two of its properties need a
workaround.

The proxy returns each yielded message with a copy of the call's context. Of a raised error it returns only
the code and the message. Trailing metadata reaches the edge only beside a yielded message, so a status is
sent on a last, empty frame.

The proxy treats an edge that pings as often as ours do as an attacker. After the fourth ping without data it
closes the connection with all its sessions ("Too many pings", 6.7 s into a silence). This cannot be
configured, so no stream stays silent long enough for an edge to ping.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, NoReturn

import grpc
import grpc.aio

from cloud_verifier.server.calls import VerifierService
from cloud_verifier.server.interceptor import guarded, guarded_generator
from common.errors import UnavailableError
from common.pb import verifier_pb2 as pb
from common.wire.grpc_options import KEEPALIVE_TIME_MS
from common.wire.padding import DOWN_BYTES, pad

logger = logging.getLogger(__name__)

SILENCE = KEEPALIVE_TIME_MS / 2 * 1e-3
"""Seconds without a frame after which an empty frame is sent: half of an edge's ping interval."""


class RayCall:
    """Adapts a call of Ray's proxy to `IncomingCall`. `context` is a
    `ray.serve.grpc_util.RayServegRPCContext`."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._over: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` when the method ends. The proxy's buffered answers do not count."""
        self._over.append(callback)

    def over(self) -> None:
        for callback in self._over:
            callback(self)

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        entries: list[tuple[str, Any]] = self._context.invocation_metadata()
        return entries

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return nothing: the proxy's port has no TLS."""
        return {}

    def peer(self) -> str:
        """Return an empty text: the connection is the proxy's."""
        return ""

    def time_remaining(self) -> float | None:
        """Return None: the proxy does not forward deadlines; it cancels the call when one has passed."""
        return None

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: tuple[tuple[str, Any], ...] = ()
    ) -> NoReturn:
        self._context.set_code(code)
        self._context.set_details(details)
        self._context.set_trailing_metadata([*trailing_metadata])
        raise grpc.aio.AbortError


class RayFace:
    """Offers both methods of `service` to Ray, which finds methods and parameters by name. Ray raises the
    errors in `lost` when the call of a stream's requests is gone."""

    def __init__(self, service: VerifierService, lost: tuple[type[Exception], ...] = ()) -> None:
        self._describe = guarded(service.Describe)
        self._session = guarded_generator(service.Session)
        self._lost = lost

    async def Describe(self, request: pb.DescribeRequest, grpc_context: Any) -> pb.DescribeResponse:
        call = RayCall(grpc_context)
        try:
            answer: pb.DescribeResponse = await self._describe(request, call)
        except grpc.aio.AbortError:
            return pb.DescribeResponse()  # gRPC sends the status in its place
        finally:
            call.over()
        return answer

    async def Session(
        self, request_stream: AsyncIterator[pb.SessionRequest], grpc_context: Any
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
    """Yield the frames, and an empty frame after every `silence` seconds without one."""
    async with aclosing(frames):
        while True:
            coming = asyncio.create_task(_next(frames))
            try:
                while not (await asyncio.wait({coming}, timeout=silence))[0]:
                    yield nothing()
            finally:  # a consumer that leaves cancels the pending frame; the generator can close only then
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait({coming})
            if (frame := coming.result()) is None:
                return
            yield frame


async def _next(frames: AsyncGenerator[pb.SessionResponse, None]) -> pb.SessionResponse | None:
    return await anext(frames, None)


def nothing() -> pb.SessionResponse:
    """Return an empty frame, which every edge accepts at any time."""
    frame = pb.SessionResponse()
    frame.idle.SetInParent()
    return pad(frame, DOWN_BYTES)
