"""What gRPC does with a call before and after our methods have it, made to say sentences.

By itself `grpc.aio` answers bytes that are no message, and any exception of a method, with UNKNOWN and the
exception's class and text. A stranger would learn of our insides, and could not tell whose fault it was.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from common.errors import ForerunError, LocalError, PeerError
from common.rpc.status import to_status

logger = logging.getLogger(__name__)

Deserialize = Callable[[bytes], Any]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
"""The fields of a handler, one of which holds the method."""


DEFECT = to_status(LocalError("a defect of the verifier; its log has more"))


class Guard(grpc.aio.ServerInterceptor):
    """Bytes that are no message end a call with INVALID_ARGUMENT, a defect of ours with INTERNAL.

    Within a method that reads a stream the first raises `PeerError` where it reads.
    """

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(details)
        if handler is None:
            return None
        name = next(kind for kind in KINDS if getattr(handler, kind) is not None)
        parse = _raised if handler.request_streaming else _kept
        method = getattr(handler, name)
        guard: Any = guarded_generator if inspect.isasyncgenfunction(method) else guarded
        changes = {name: guard(method), "request_deserializer": parse(handler.request_deserializer)}
        return handler._replace(**changes)


def _raised(deserialize: Deserialize) -> Deserialize:
    """Raise `PeerError` for bytes that are no message."""

    def parse(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            raise PeerError(
                f"a message of {len(data)} bytes cannot be read: it is not the protobuf of this method"
            ) from None

    return parse


def _kept(deserialize: Deserialize) -> Deserialize:
    """Return that error in the message's place: what a unary method's deserializer raises nobody catches."""
    parse = _raised(deserialize)

    def keep(data: bytes) -> Any:
        try:
            return parse(data)
        except PeerError as error:
            return error

    return keep


def guarded(method: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """A method of one answer, or of answers that it writes itself."""

    async def call(request: Any, context: Any) -> Any:
        async with _told(context):
            if isinstance(request, PeerError):
                raise request
            return await method(request, context)

    return call


def guarded_generator(
    method: Callable[[Any, Any], AsyncGenerator[Any, None]],
) -> Callable[[Any, Any], AsyncGenerator[Any, None]]:
    """A method whose answers are a stream."""

    async def call(request: Any, context: Any) -> AsyncGenerator[Any, None]:
        async with _told(context):
            if isinstance(request, PeerError):
                raise request
            async with aclosing(method(request, context)) as responses:
                async for response in responses:
                    yield response

    return call


@asynccontextmanager
async def _told(context: Any) -> AsyncIterator[None]:
    """What goes wrong within becomes the status of the call, if anybody still listens."""
    try:
        try:
            yield
        except (grpc.aio.AbortError, grpc.aio.InternalError):
            raise
        except ForerunError as error:
            await context.abort(*to_status(error))
        except Exception:  # outermost frame of a call
            logger.exception("! a method failed")
            await context.abort(*DEFECT)
    except grpc.aio.InternalError:
        # gRPC could not send: the client went while it was being answered. That is its right and no defect; a
        # call that was cancelled is what gRPC takes it for.
        raise asyncio.CancelledError from None
