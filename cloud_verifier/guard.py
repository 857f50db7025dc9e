"""What gRPC does with a call before and after our methods have it, made to say sentences.

By itself `grpc.aio` answers bytes that are no message, and any exception of a method, with UNKNOWN and the
exception's class and text. A stranger would learn of our insides, and could not tell whose fault it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from cloud_verifier.connections import peer_of
from cloud_verifier.line import Pace
from common.errors import CapacityError, Code, ForerunError, LocalError, PeerError, UnavailableError
from common.rpc.options import SMALL_MESSAGE_BYTES
from common.rpc.status import to_status
from common.rpc.wire_fields import check_length

logger = logging.getLogger(__name__)

Deserialize = Callable[[bytes], Any]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
Read = Callable[[AsyncIterator[Any]], Awaitable[Any]]
Place = Callable[[], contextlib.AbstractContextManager[None]]
Turn = Callable[[Any], Awaitable[None]]


KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
"""The fields of a handler, one of which holds the method."""

REQUEST_TIME = 10.0
"""Seconds in which the one request of a call must have come. gRPC itself waits as long as its sender likes,
who has not said yet who he is and may have sent 8 MiB less a byte."""

MOST_LASTING = 64
"""Calls at once that may last for ever: health that is watched, reflection. Whoever reaches the port may make
them, each costs some 30 KB, and one watcher a balancer is plenty."""

DEFECT = to_status(LocalError("a defect of the verifier; its log has more"))


def check_small(data: bytes) -> None:
    """Raise `PeerError` for more bytes than a small question has."""
    check_length(len(data), SMALL_MESSAGE_BYTES)


@dataclass(frozen=True, slots=True)
class Method:
    """What the guard knows of a method.

    `check` raises for the bytes of a message that must not be parsed, `first` for a call of which nothing is
    to be read. A method that `bounds_itself` limits how many of its calls there are and how long they last.
    """

    check: Callable[[bytes], None] = check_small
    first: Callable[[Any], object] | None = None
    bounds_itself: bool = False


QUESTION = Method()

NO_METHODS: Mapping[str, Method] = {}

QUESTION_RATE, QUESTION_BURST = 50.0, 100
"""Questions of one connection a second, and at once after a pause. An edge asks one in minutes, a
balancer one in seconds."""

LONGEST_WAIT = 5.0
"""Seconds that a question waits for its turn, at most. The calls of one connection are bounded, so a client
that asks faster soon has to wait itself."""

MAX_PACES = 8192
"""Connections whose pace is remembered, those that asked last."""


class Questions:
    """Paces the questions of each connection. Questions are all calls but sessions, and sessions that are
    refused by their caller's own fault. Callers on a unix socket have no address, and no pace."""

    def __init__(self) -> None:
        self._paces = OrderedDict[str, Pace]()  # by the connection's other end

    async def turn(self, context: Any) -> None:
        """Wait until this call may be answered."""
        peer, now = context.peer(), asyncio.get_running_loop().time()
        if peer_of(peer) is None:
            return
        if (pace := self._paces.get(peer)) is None:
            pace = self._paces[peer] = Pace(now, QUESTION_RATE, QUESTION_BURST)
        self._paces.move_to_end(peer)
        if len(self._paces) > MAX_PACES:
            self._paces.popitem(last=False)
        if wait := pace.take(now):
            await asyncio.sleep(min(wait, LONGEST_WAIT))


async def at_once(context: Any) -> None:
    """The turn of a call that waits for none."""


class Guard(grpc.aio.ServerInterceptor):
    """Bytes that are no message end a call with INVALID_ARGUMENT, a defect of ours with INTERNAL, one that
    keeps its request for itself with DEADLINE_EXCEEDED. `methods` tells of methods by their full names; all
    others are a `QUESTION`. Of methods that answer in streams and do not bound themselves there are
    `MOST_LASTING` calls at once.

    Within a method that reads a stream the first raises `PeerError` where it reads. A method may answer with
    the bytes of a message, too.
    """

    def __init__(
        self, methods: Mapping[str, Method] = NO_METHODS, questions: Questions | None = None
    ) -> None:
        self._methods = methods
        self._questions = questions or Questions()
        self._left = Questions()  # calls that their clients leave have the same pace, and delay no question
        self._num_lasting = 0

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Any:
        """See `grpc.aio.ServerInterceptor`. A method of one request becomes one of a stream of them, of which
        it gets the first: so it is we who wait."""
        handler = await continuation(details)
        if handler is None:
            handler = grpc.stream_unary_rpc_method_handler(_unknown)
        name = next(kind for kind in KINDS if getattr(handler, kind) is not None)
        method, streams = getattr(handler, name), f"stream_{name.rpartition('_')[2]}"
        read = _all_of if handler.request_streaming else _first_of
        known = self._methods.get(details.method, QUESTION)
        lasts = handler.response_streaming and not known.bounds_itself
        guard: Any = guarded_generator if inspect.isasyncgenfunction(method) else guarded
        turn = at_once if known.bounds_itself else self._questions.turn
        place = self._place if lasts else contextlib.nullcontext
        whole = guard(method, read, place, known.first, turn, self._left.turn)
        coding = {
            "request_deserializer": _raised(handler.request_deserializer, known.check),
            "response_serializer": _unless_bytes(handler.response_serializer),
        }
        return handler._replace(request_streaming=True, **{name: None, streams: whole}, **coding)

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """One of the few."""
        if self._num_lasting >= MOST_LASTING:
            raise CapacityError(
                f"{MOST_LASTING} calls of this kind stand already; ask from time to time instead"
            )
        self._num_lasting += 1
        try:
            yield
        finally:
            self._num_lasting -= 1


async def _unknown(requests: object, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


def _raised(deserialize: Deserialize, check: Callable[[bytes], None]) -> Deserialize:
    """Raise `PeerError` for bytes that are no message, or that `check` refuses."""

    def parse(data: bytes) -> Any:
        check(data)
        try:
            return deserialize(data)
        except DecodeError:
            raise PeerError(
                f"a message of {len(data)} bytes cannot be read: it is not the protobuf of this method"
            ) from None

    return parse


def _unless_bytes(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """What is said again and again need not be serialised each time."""
    return lambda message: message if isinstance(message, bytes) else serialize(message)


async def _all_of(requests: Any) -> Any:
    return requests


async def _first_of(requests: AsyncIterator[Any]) -> Any:
    try:
        async with asyncio.timeout(REQUEST_TIME):
            async for request in requests:
                return request
    except TimeoutError:
        words = f"no request came within {REQUEST_TIME:g} s"
        raise UnavailableError(words, Code.DEADLINE_EXCEEDED) from None
    raise PeerError("the call ended before its request")


def guarded(
    method: Callable[[Any, Any], Awaitable[Any]],
    read: Read = _all_of,
    place: Place = contextlib.nullcontext,
    first: Callable[[Any], object] | None = None,
    turn: Turn = at_once,
    left: Turn = at_once,
) -> Any:
    """A method of one answer, or of answers that it writes itself.

    `left` is the turn of a call that its client has left. Until then gRPC counts the call among the
    `MAX_STREAMS` of its connection, and refuses more by itself. Without it a client that opens calls and
    resets them at once (CVE-2023-44487) takes all of the event loop's time.
    """

    async def call(requests: Any, context: Any) -> Any:
        try:
            async with _told(context):
                await turn(context)
                if first is not None:
                    first(context)
                with place():
                    return await method(await read(requests), context)
        except grpc.aio.AbortError as error:
            raise _without_frames(error) from None
        except asyncio.CancelledError as error:
            _without_frames(error)  # they hold what the call has brought
            await left(context)
            raise

    return call


def guarded_generator(
    method: Callable[[Any, Any], AsyncGenerator[Any, None]],
    read: Read = _all_of,
    place: Place = contextlib.nullcontext,
    first: Callable[[Any], object] | None = None,
    turn: Turn = at_once,
    left: Turn = at_once,
) -> Any:
    """A method whose answers are a stream. `left` is that of `guarded`."""

    async def call(requests: Any, context: Any) -> AsyncGenerator[Any, None]:
        try:
            async with _told(context):
                await turn(context)
                if first is not None:
                    first(context)
                with place():
                    async with aclosing(method(await read(requests), context)) as responses:
                        async for response in responses:
                            yield response
        except grpc.aio.AbortError as error:
            raise _without_frames(error) from None
        except asyncio.CancelledError as error:
            _without_frames(error)  # they hold what the call has brought
            await left(context)
            raise

    return call


def _without_frames(error: BaseException) -> BaseException:
    """Cut the error from the frames of the method. gRPC's state of the call keeps the error, and those frames
    keep the call and all that it brought: a cycle."""
    error.__context__ = None
    return error.with_traceback(None)


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
