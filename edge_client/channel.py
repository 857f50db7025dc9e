"""The edge's end of the wire: a channel to one verifier, and the streams on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import grpc
import grpc.aio

from common.errors import ForerunError, LocalError, PeerError, UnavailableError
from common.messages import ClientMessage, Open, Opened, ServerMessage
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc as pb_grpc
from common.privacy import Privacy, stricter
from common.rpc.bounds import MAX_JOINED_RESPONSE_BYTES
from common.rpc.codec import decode_response, encode_request
from common.rpc.describe import Description, decode_description, encode_describe_request
from common.rpc.frames import UP_BYTES, Joiner, Sender, pad_open, up_size
from common.rpc.options import KEY_ENTRY, Options, channel_options
from common.rpc.status import to_error
from edge_client.held import Held, Holding
from edge_client.tls import LiveTls, Metadata, TlsSettings

logger = logging.getLogger(__name__)

DESCRIBE_TIMEOUT = 10.0
"""Seconds; a token table of 128k entries takes a slow link a few of them."""

OWN_CONNECTION: Options = (("grpc.use_local_subchannel_pool", 1),)
"""Channels of one process to one address share a connection otherwise; those of two devices cannot."""

NO_ANSWER = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""Statuses that gRPC gives by itself when nobody answers; any other comes from somebody."""

_CLOSING: set[asyncio.Task[None]] = set()
"""Kept until they are done, as a loop itself only knows tasks weakly."""

MOST_END_FRAMES = 64
"""Slots that a verifier's last frames may take before a stream under a cadence is cut."""

MOST_WAITING = 8
"""Frames of a cadence that a link has not taken; then slots go by unused, for fillers would pile up."""

OnMessage = Callable[[ServerMessage], None]
OnLost = Callable[[ForerunError | None], None]


def _keep(task: asyncio.Task[None]) -> None:
    _CLOSING.add(task)
    task.add_done_callback(_CLOSING.discard)


class Streams(Protocol):
    """Where the streams of a session go: to one verifier, or to whichever is best at the time."""

    @property
    def address(self) -> str:
        """Of the newest stream's verifier, HOST:PORT; empty before the first. For people."""
        ...

    @property
    def elsewhere(self) -> bool:
        """Whether another verifier is there, now that a stream was lost; then no pause is needed."""
        ...

    def open(self, on_message: OnMessage, on_lost: OnLost) -> Stream:
        """A new stream, at once. Raises `UnavailableError` if there is no verifier to open one at."""
        ...

    def watch(self, on_ready: Callable[[], None] | None) -> None:
        """From now on call `on_ready` whenever a verifier turns up; None for no more. A session is under way
        in between."""
        ...


class Connection:
    """A gRPC channel and what still uses it. One that is retired closes when its last stream has ended."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Callable[[], Metadata] = lambda: ()) -> None:
        """`metadata`, of the next call."""
        self.channel = channel
        self.metadata = metadata
        self.stub = pb_grpc.VerifierServiceStub(channel)
        self.num_streams = 0
        self._retired = False

    def retire(self) -> None:
        self._retired = True
        self._close_if_done()

    def release(self) -> None:
        """A stream has ended."""
        self.num_streams -= 1
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._retired and not self.num_streams:
            self._retired = False
            closing = asyncio.get_running_loop().create_task(self.channel.close())
            _keep(closing)

    async def answers(self, patience: float) -> bool:
        """Whether the verifier says anything within `patience` seconds. Its engine has no part in this."""
        try:
            await self.stub.Describe(encode_describe_request(), timeout=patience, metadata=self.metadata())
        except grpc.aio.AioRpcError as error:
            return error.code() not in NO_ANSWER
        except asyncio.CancelledError:
            if _is_own():
                raise
            return False
        return True


def _is_own() -> bool:
    """Whether a `CancelledError` is of the task that runs. gRPC raises it, too, in calls of a channel that is
    closed, and a task that took that for its own end would be gone for good."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class Stream:
    """One `Session` call: `send` never blocks, what comes is handed to `on_message`, the end to `on_lost`.

    `on_lost` is called at most once, with None after an orderly end, and never after `abandon`. `on_silent`,
    when a question beside the stream has found no answer.
    """

    def __init__(
        self,
        connection: Connection,
        on_message: OnMessage,
        on_lost: OnLost,
        on_silent: Callable[[], None],
        metadata: tuple[tuple[str, str], ...] = (),
        holding: Holding | None = None,
    ) -> None:
        self.holding = holding or Holding()  # which privacy holds
        self._outgoing: asyncio.Queue[pb.SessionRequest | None] = asyncio.Queue()
        self._sender = Sender(pb.SessionRequest, UP_BYTES)
        self._joiner = Joiner(pb.SessionResponse, MAX_JOINED_RESPONSE_BYTES)
        self._loop = asyncio.get_running_loop()
        self._slot: asyncio.TimerHandle | None = None  # when the next frame leaves, under a cadence
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_silent = on_silent
        self._connection = connection
        connection.num_streams += 1
        entries = (*(connection.metadata() or ()), *metadata)
        self._call = connection.stub.Session(self._requests(), metadata=entries or None)
        self._reader = asyncio.create_task(self._read())
        self._reader.add_done_callback(lambda _: connection.release())
        self._open: Open | None = None  # as sent
        self._interval = 0.0  # of the cadence, seconds
        self.bytes_up = 0  # serialised messages, gRPC framing excluded
        self.bytes_down = 0

    def send(self, message: ClientMessage) -> None:
        """Encoded here, where a failure is the caller's to see; inside the call it would be lost."""
        request = encode_request(message)
        if isinstance(message, Open):
            self._outgoing.put_nowait(self._begun(message, request))
        else:
            self._sender.put(request)
            self._flush()

    def abandon(self) -> None:
        """Cut it; nothing more is called."""
        self._outgoing.put_nowait(None)
        self._reader.cancel()
        self._call.cancel()

    async def finish(self, patience: float = 1.0) -> None:
        """Let a `Close` leave and the verifier end the call, for at most `patience` seconds. Under a cadence
        that goes on for a while without anybody who waits, so that the end of the text does not show."""
        self._on_lost = lambda error: None
        if self._sender.next_at is not None:
            _keep(self._loop.create_task(self._see_off(patience + MOST_END_FRAMES * self._interval)))
            return
        self._outgoing.put_nowait(None)
        await self._see_off(patience)

    async def _see_off(self, patience: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._reader
        self._call.cancel()

    async def answers(self, patience: float) -> bool:
        """Whether the verifier, asked beside this stream on the same connection, says anything in time. If
        not the next stream is opened on another connection."""
        alive = await self._connection.answers(patience)
        if not alive:
            self._on_silent()
        return alive

    async def _requests(self) -> AsyncIterator[pb.SessionRequest]:
        while (request := await self._outgoing.get()) is not None:
            self.bytes_up += request.ByteSize()
            yield request

    async def _read(self) -> None:
        lost: ForerunError | None = None
        try:
            async for response in self._call:
                if response is None:  # gRPC's word for bytes that are no such message
                    raise PeerError("the verifier sent a message that cannot be read")
                size = response.ByteSize()
                self.bytes_down += size
                for whole in self._joiner.take(response):
                    self._take(decode_response(whole))
                self.holding.came(size)
        except grpc.aio.AioRpcError as error:
            lost = to_error(error)
        except ForerunError as error:
            self._call.cancel()
            lost = error
        except asyncio.CancelledError:
            if self._reader.cancelling():
                raise
            lost = UnavailableError("the connection was closed here")
        except Exception as error:  # outermost frame of this task: the user must not wait for ever
            logger.exception("! the stream's reader failed")
            self._call.cancel()
            lost = LocalError(f"the stream's reader failed: {error}")
        finally:
            if self._slot is not None:
                self._slot.cancel()
        self._outgoing.put_nowait(None)  # else grpc's task would wait for requests until it is destroyed
        self._on_lost(lost)

    def _begun(self, message: Open, request: pb.SessionRequest) -> pb.SessionRequest:
        """The first message, as long as its privacy wants it."""
        asked, self._open = message.privacy or Privacy.OFF, message
        self._sender.size = up_size(message, asked)
        self._sender.begin(asked)
        return request if asked is Privacy.OFF else pad_open(request)

    def _take(self, message: ServerMessage) -> None:
        if isinstance(message, Opened):
            if message.privacy is not None:
                self._hold(message.privacy, message.interval_us * 1e-6)
            if self._open is not None:
                self.holding.opened(self._open, message.privacy, self._sender.level, self._interval)
        self._on_message(message)

    def _hold(self, level: Privacy, interval: float) -> None:
        """What the verifier says holds, unless it is less than was asked for."""
        if self._open is not None and level is stricter(level, self._sender.level):
            self._interval = interval
            self._sender.size = up_size(self._open, level)
            self._sender.hold(level, self._loop.time(), interval)
            self._joiner.takes_fillers = level is Privacy.STRICT
            self._flush()

    def _on_slot(self) -> None:
        self._slot = None
        self._flush()

    def _flush(self) -> None:
        """Send what may leave now, and come again when the next may."""
        if self._reader.done():
            return
        now, at = self._loop.time(), self._sender.next_at
        if at is not None and self._outgoing.qsize() >= MOST_WAITING:
            self._sender.skip(now)
        for frame in self._sender.take(now):
            self._outgoing.put_nowait(frame)
        at = self._sender.next_at
        if at is not None and self._slot is None:
            self._slot = self._loop.call_at(at, self._on_slot)


class VerifierChannel:
    """A channel to the verifier at `address` (HOST:PORT), without TLS unless `tls` says how. An async
    context manager. If the files of `tls` are replaced, what is asked from then on goes over a new
    connection; streams that are open stay where they are.

    `more` are options of gRPC's beside ours; with `OWN_CONNECTION` it shares none with other channels.
    `name`, of the host, that its certificate must bear if the settings have none. Raises `UserError` for TLS
    files that cannot be used.
    """

    elsewhere = False  # there is one verifier

    def __init__(
        self, address: str, more: Options = (), tls: TlsSettings | None = None, name: str = ""
    ) -> None:
        self.address = address
        self._more = more
        self._tls = None if tls is None else LiveTls(tls)
        self._name = (tls.server_name or name) if tls is not None else ""
        self._connection = self._connect(more)
        self._newest: Holding | None = None

    async def __aenter__(self) -> VerifierChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.channel.close()

    @property
    def num_streams(self) -> int:
        """Open now."""
        return self._connection.num_streams

    @property
    def held(self) -> Held | None:
        """The privacy of the newest stream that was opened, also if it has ended; None before."""
        return None if self._newest is None else self._newest.held

    async def describe(
        self,
        include_vocabulary: bool = False,
        include_chat_template: bool = False,
        patience: float = DESCRIBE_TIMEOUT,
    ) -> Description:
        """What the verifier serves. Raises `UnavailableError` when it cannot be reached."""
        request = encode_describe_request(include_vocabulary, include_chat_template)
        try:
            connection = self._fresh()
            response = await connection.stub.Describe(
                request, timeout=patience, metadata=connection.metadata()
            )
        except grpc.aio.AioRpcError as error:
            failure = to_error(error)
            if isinstance(failure, UnavailableError):
                failure = UnavailableError(
                    f"the verifier at {self.address} cannot be reached ({failure}); "
                    "is `forerun verify` running there?",
                    failure.code,
                )
            raise failure from error
        except asyncio.CancelledError as error:
            if _is_own():
                raise
            words = f"the connection to {self.address} was given up while it was asked"
            raise UnavailableError(words) from error
        if response is None:
            raise PeerError(f"the verifier at {self.address} describes itself in a way that cannot be read")
        return decode_description(response)

    def open(
        self,
        on_message: OnMessage,
        on_lost: OnLost,
        on_silent: Callable[[], None] | None = None,
        key: str = "",
    ) -> Stream:
        """See `Streams`. `on_silent`, when the verifier left a question beside this stream unanswered; `key`,
        by which a balancer in between may choose a verifier."""
        connection = self._fresh()

        def silent() -> None:
            self._replace(connection)
            if on_silent is not None:
                on_silent()

        entries = ((KEY_ENTRY, key),) if key else ()
        return Stream(connection, on_message, on_lost, silent, entries, Holding(self._opened))

    def _opened(self, holding: Holding) -> None:
        self._newest = holding

    def watch(self, on_ready: Callable[[], None] | None) -> None:
        """Nobody is told: a session's own pauses are how one verifier is found again."""

    def renew(self) -> None:
        """Begin anew with a connection of its own, without what gRPC remembers of the one before: a link that
        swallows everything, or pauses that have grown. Streams stay where they are."""
        self._replace(self._connection)

    def retire(self) -> None:
        """Nothing new goes over it; it closes when its last stream has ended."""
        self._connection.retire()

    def _fresh(self) -> Connection:
        """One that began with the files as they are now."""
        if self._tls is not None and self._tls.renewed():
            self._replace(self._connection)
        return self._connection

    def _replace(self, old: Connection) -> None:
        if old is self._connection:
            self._connection = self._connect((*self._more, *OWN_CONNECTION))
            old.retire()

    def _connect(self, more: Options) -> Connection:
        options: list[tuple[str, int | str]] = [*channel_options(), *dict(more).items()]
        if self._tls is None:
            return Connection(grpc.aio.insecure_channel(self.address, options=options))
        if self._name:
            options.append(("grpc.ssl_target_name_override", self._name))
        channel = grpc.aio.secure_channel(self.address, self._tls.credentials, options=options)
        return Connection(channel, self._tls.metadata)
