"""Turn every failure of a call into a status with a clear message, whoever's method it is.

By itself `grpc.aio` answers invalid bytes and any exception of a method with UNKNOWN and the exception's
class and text. That would reveal internals to clients without saying whose fault it was.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from common.errors import ForerunError, LocalError, PeerError
from common.wire.grpc_options import SMALL_MESSAGE_BYTES
from common.wire.status import to_status
from common.wire.wire_fields import check_length

logger = logging.getLogger(__name__)

Check = Callable[[bytes], None]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
Parse = Callable[[Any], Any]

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
"""The fields of a handler, one of which holds the method."""

DEFECT = to_status(LocalError("a defect of the verifier; its log has more"))


def check_small(data: bytes) -> None:
    """Raise `PeerError` for more than `SMALL_MESSAGE_BYTES`."""
    check_length(len(data), SMALL_MESSAGE_BYTES)


class Guard(grpc.aio.ServerInterceptor):
    """Guards every method. Invalid bytes end a call with INVALID_ARGUMENT, a defect with INTERNAL.

    `checks` raise for bytes that must not be parsed, by the method's full name; requests of other methods are
    small. In a method that reads a stream, reading invalid bytes raises `PeerError`.
    """

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None  # gRPC answers UNIMPLEMENTED
        name = next(kind for kind in KINDS if getattr(handler, kind) is not None)
        method = getattr(handler, name)
        parse = _parser(handler.request_deserializer, self._checks.get(details.method, check_small))
        guard: Any = guarded_generator if inspect.isasyncgenfunction(method) else guarded
        whole = guard(method, _each(parse) if handler.request_streaming else parse)
        return handler._replace(request_deserializer=None, **{name: whole})


def _parser(deserialize: Parse, check: Check) -> Parse:
    """Return a parser that raises `PeerError` for bytes that are no message or that `check` refuses."""

    def parse(data: bytes) -> Any:
        check(data)
        try:
            return deserialize(data)
        except DecodeError:
            raise PeerError(
                f"a message of {len(data)} bytes cannot be read: it is not the protobuf of this method"
            ) from None

    return parse


def _each(parse: Parse) -> Parse:
    async def parsed(requests: AsyncIterator[bytes]) -> AsyncGenerator[Any, None]:
        async for data in requests:
            yield parse(data)

    return parsed


def as_it_is(request: Any) -> Any:
    return request


def guarded(method: Callable[[Any, Any], Awaitable[Any]], parse: Parse = as_it_is) -> Any:
    """Guard a coroutine method. `parse` reads the bytes of its request or requests."""

    async def call(request: Any, context: Any) -> Any:
        async with _faults(context):
            return await method(parse(request), context)

    return call


def guarded_generator(
    method: Callable[[Any, Any], AsyncGenerator[Any, None]], parse: Parse = as_it_is
) -> Any:
    """Guard a method that yields its answers. `parse` as in `guarded`."""

    async def call(request: Any, context: Any) -> AsyncGenerator[Any, None]:
        try:
            async with _faults(context), aclosing(method(parse(request), context)) as responses:
                async for response in responses:
                    yield response
        except (grpc.aio.AbortError, asyncio.CancelledError) as error:
            # gRPC's state of the call keeps the error, whose frames keep the call and its messages: a cycle.
            error.__context__ = None
            raise error.with_traceback(None) from None

    return call


@asynccontextmanager
async def _faults(context: Any) -> AsyncIterator[None]:
    """Turn an error into the status of the call, unless the client has gone."""
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
        # gRPC could not send because the client has gone. That is no defect; gRPC treats such a call as
        # cancelled.
        raise asyncio.CancelledError from None
