"""The edge's end of the wire: a channel to one verifier, and the streams on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import grpc
import grpc.aio

from common.errors import ForerunError, LocalError, PeerError, UnavailableError
from common.messages import ClientMessage, Open, Opened, ServerMessage
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy
from common.vocabulary import Vocabulary, explain_mismatch
from common.wire.codec import decode_response, encode_request, is_idle
from common.wire.describe import Description, decode_description
from common.wire.grpc_options import KEY_ENTRY, Options, channel_options, host_and_port, is_loopback
from common.wire.padding import down_grain, pad, pad_open, up_grain
from common.wire.service import VerifierStub
from common.wire.status import to_error
from edge_client.network.client_tls import LiveClientTls, Metadata, TlsSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """States the privacy of a stream from `Opened` on. The edge measures what arrives: the first message of a
    size off the grain sets `down` to off."""

    up: Privacy
    down: Privacy

    def as_json(self) -> dict[str, Any]:
        return {"up": self.up.title, "down": self.down.title}


DESCRIBE_TIMEOUT = 10.0
"""Seconds. A slow link needs a few of them for a token table of 128k entries."""

OWN_CONNECTION: Options = (("grpc.use_local_subchannel_pool", 1),)
"""Gives each channel a connection of its own, as two devices have. gRPC would share one per address."""

NO_ANSWER = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""Statuses that gRPC sets by itself without an answer. Every other status comes from a server."""

IN_PLACE_OF_A_VERIFIER = {
    "HTTP status": "a web server",
    "header with status": "a web server or a proxy",
    "header with content-type": "a web server or a proxy",
    "selected ALPN": "a web server",
    "parsing HTTP/2": "another program",
    "Method not found": "another gRPC server",
}
"""Parts of gRPC's words for the answers of other programs, the login page of a network among them."""

MORE = " `forerun doctor` shows more"

RECENT = 8
"""Round trips of which the shortest counts. A longer route shows after this many answers."""

SAME_MACHINE = 0.005
"""Seconds of round trip, below which a verifier at a loopback address is taken to run on this machine; above
it a tunnel leads to another. On two busy cores the shortest of eight answers took 0.4 to 2 ms."""

_CLOSING: set[asyncio.Task[None]] = set()
"""Tasks that close channels. The event loop keeps only weak references to its tasks."""

OnMessage = Callable[[ServerMessage], None]
OnLost = Callable[[ForerunError | None], None]


def shares_machine(address: str, rtt: float | None) -> bool:
    """Tell whether the verifier at `address` runs on this machine, by its round trip (seconds; None: not
    measured)."""
    host_port = host_and_port(address.removeprefix("dns:///"))
    return host_port is not None and is_loopback(host_port[0]) and (rtt is None or rtt < SAME_MACHINE)


class StreamSource(Protocol):
    """Opens the streams of a session, each to the only verifier or to the best one at that time."""

    @property
    def address(self) -> str:
        """Return the HOST:PORT of the newest stream's verifier for display; empty before the first."""

    @property
    def elsewhere(self) -> bool:
        """Tell whether another verifier can take over a lost stream without a pause."""

    @property
    def shares_machine(self) -> bool:
        """Tell whether the verifier of a stream opened now runs on this machine, and so on its cores."""

    def open(self, on_message: OnMessage, on_lost: OnLost) -> VerifierStream:
        """Open a stream at once. Raises `UnavailableError` if no verifier is available."""

    def watch(self, on_ready: Callable[[], None] | None) -> None:
        """Call `on_ready` whenever a verifier becomes ready. The session passes None when it ends."""


class VerifierConnection:
    """Holds a gRPC channel and counts its streams. A retired channel closes after its last stream."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Callable[[], Metadata] = lambda: ()) -> None:
        self.channel = channel
        self.metadata = metadata
        self.stub = VerifierStub(channel)
        self.num_streams = 0
        self.has_answered = False
        self._retired = False

    def retire(self) -> None:
        self._retired = True
        self._close_if_done()

    def release(self) -> None:
        self.num_streams -= 1
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._retired and not self.num_streams:
            self._retired = False
            closing = asyncio.get_running_loop().create_task(self.channel.close())
            _CLOSING.add(closing)
            closing.add_done_callback(_CLOSING.discard)

    async def answers(self, patience: float) -> bool:
        """Tell whether the verifier answers within `patience` seconds. Its engine is not involved."""
        try:
            await self.stub.Describe(pb.DescribeRequest(), timeout=patience, metadata=self.metadata())
        except grpc.aio.AioRpcError as error:
            return error.code() not in NO_ANSWER
        except asyncio.CancelledError:
            if _is_own():
                raise
            return False
        return True


def _is_own() -> bool:
    """Tell whether a `CancelledError` cancels the running task. gRPC also raises it in calls of a closed
    channel, and that must not end the task."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class VerifierStream:
    """Drives one `Session` call. `send` never blocks; messages go to `on_message`, the end to `on_lost`.

    `on_lost` is called at most once, with None after an orderly end, and never after `abandon`. `on_silent`
    is called when a question beside the stream gets no answer.
    """

    def __init__(
        self,
        connection: VerifierConnection,
        on_message: OnMessage,
        on_lost: OnLost,
        on_silent: Callable[[], None],
        metadata: tuple[tuple[str, str], ...] = (),
        on_opened: Callable[[VerifierStream], None] = lambda stream: None,
    ) -> None:
        self.held: Held | None = None  # until the verifier has opened
        self._on_opened = on_opened
        self._down_grain = 0  # bytes, of which every message down has a multiple; 0: any size will do
        self._outgoing: asyncio.Queue[pb.SessionRequest | None] = asyncio.Queue()
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
        self._grain = 0  # bytes, to a multiple of which messages are padded; 0: none is
        self.bytes_up = 0  # serialised messages, gRPC framing excluded
        self.bytes_down = 0

    def send(self, message: ClientMessage) -> None:
        """Send a message. It is encoded here, so that the caller sees a failure to encode it."""
        request = encode_request(message)
        if isinstance(message, Open):
            self._open = message
            if message.privacy is Privacy.PADDED:
                self._grain, request = up_grain(message), pad_open(request)
        elif self._grain:
            request = pad(request, self._grain)
        self._outgoing.put_nowait(request)

    def abandon(self) -> None:
        """Cut the stream. No callback is called afterwards."""
        self._outgoing.put_nowait(None)
        self._reader.cancel()
        self._call.cancel()

    async def finish(self, patience: float = 1.0) -> None:
        """Send `Close` and wait at most `patience` seconds until the verifier ends the call."""
        self._on_lost = lambda error: None
        self._outgoing.put_nowait(None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._reader
        self._call.cancel()

    async def answers(self, patience: float) -> bool:
        """Tell whether the verifier answers beside this stream in time. If not, give the connection up."""
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
                if response is None:  # gRPC returns None for bytes that it cannot parse
                    raise PeerError("the verifier sent a message that cannot be read")
                size = response.ByteSize()
                self.bytes_down += size
                if not is_idle(response):
                    message = decode_response(response)
                    if isinstance(message, Opened):
                        self._opened(message)
                    self._on_message(message)
                if self._down_grain and size % self._down_grain and self.held is not None:
                    self._down_grain = 0  # the first message off the grain ends the verifier's privacy
                    self.held = replace(self.held, down=Privacy.OFF)
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
        self._outgoing.put_nowait(None)  # else grpc's task would wait for requests until it is destroyed
        self._on_lost(lost)

    def _opened(self, message: Opened) -> None:
        if self._open is not None:
            if message.privacy is Privacy.PADDED:
                self._grain = up_grain(self._open)
            down = message.privacy or Privacy.OFF  # None: a version without any
            self._down_grain = 0 if down is Privacy.OFF else down_grain(self._open)
            self.held = Held(Privacy.PADDED if self._grain else Privacy.OFF, down)
            self._on_opened(self)


class VerifierChannel:
    """Connects to the verifier at `address` (HOST:PORT). Use it as an async context manager.

    If the files of `tls` are replaced, later calls use a new connection and open streams stay. `more` are
    further gRPC options. The certificate must bear the host name `name` unless `tls` sets one.
    Raises `UserError` for TLS files that cannot be used.
    """

    elsewhere = False  # there is one verifier

    def __init__(
        self, address: str, more: Options = (), tls: TlsSettings | None = None, name: str = ""
    ) -> None:
        self.address = address
        self._more = more
        self._tls = None if tls is None else LiveClientTls(tls)
        self._name = (tls.server_name or name) if tls is not None else ""
        self._connection = self._connect(more)
        self._newest: VerifierStream | None = None  # of those that were opened
        self._rtts = deque[float](maxlen=RECENT)

    async def __aenter__(self) -> VerifierChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.channel.close()

    @property
    def num_streams(self) -> int:
        return self._connection.num_streams

    @property
    def held(self) -> Held | None:
        """Return the privacy of the newest stream, open or ended; None before the first."""
        return None if self._newest is None else self._newest.held

    @property
    def rtt(self) -> float | None:
        """Return the shortest of the latest round trips, in seconds; None before a connection's second
        answer. The first follows a handshake."""
        return min(self._rtts, default=None)

    @property
    def shares_machine(self) -> bool:
        return shares_machine(self.address, self.rtt)

    async def describe(
        self,
        include_vocabulary: bool = False,
        include_chat_template: bool = False,
        patience: float = DESCRIBE_TIMEOUT,
    ) -> Description:
        """Ask what the verifier serves. Raises `UnavailableError` if it cannot be reached."""
        request = pb.DescribeRequest(
            include_vocabulary=include_vocabulary, include_chat_template=include_chat_template
        )
        try:
            connection = self._fresh()
            metadata = connection.metadata()
            began = time.monotonic()
            response = await connection.stub.Describe(request, timeout=patience, metadata=metadata)
            if connection.has_answered:
                self._rtts.append(time.monotonic() - began)
            connection.has_answered = True
        except grpc.aio.AioRpcError as error:
            raise self._explained(to_error(error)) from error
        except asyncio.CancelledError as error:
            if _is_own():
                raise
            words = f"the connection to {self.address} was given up before the verifier answered"
            raise UnavailableError(words) from error
        if response is None:
            raise PeerError(f"the verifier at {self.address} sent a description that cannot be read")
        return decode_description(response)

    def _explained(self, failure: ForerunError) -> ForerunError:
        """Say what a failed call means: another program answers, nothing does, or the verifier refuses."""
        words = str(failure)
        if other := next((name for part, name in IN_PLACE_OF_A_VERIFIER.items() if part in words), ""):
            advice = "check host and port, and whether this network wants a login in a browser first"
            return UnavailableError(f"{other} answers at {self.address} in place of a verifier; {advice}")
        if not isinstance(failure, UnavailableError):
            return failure
        advice = f"is `forerun verify` running there?{MORE}"
        return UnavailableError(
            f"the verifier at {self.address} cannot be reached ({words}); {advice}", failure.code
        )

    async def explain_mismatch(self, own: Vocabulary) -> str:
        """Fetch all tokens of the verifier and name the first that differs from `own`."""
        table = (await self.describe(include_vocabulary=True)).vocabulary
        return explain_mismatch(own, Vocabulary(list(table or ())))

    def open(
        self,
        on_message: OnMessage,
        on_lost: OnLost,
        on_silent: Callable[[], None] | None = None,
        key: str = "",
    ) -> VerifierStream:
        """Open a stream. For `on_silent` see `VerifierStream`; a load balancer may route by `key`."""
        connection = self._fresh()

        def silent() -> None:
            self._replace(connection)
            if on_silent is not None:
                on_silent()

        entries = ((KEY_ENTRY, key),) if key else ()
        return VerifierStream(connection, on_message, on_lost, silent, entries, self._opened)

    def _opened(self, stream: VerifierStream) -> None:
        self._newest = stream

    def watch(self, on_ready: Callable[[], None] | None) -> None:
        """Do nothing: a session finds a single verifier again by retrying after its own pauses."""

    def renew(self) -> None:
        """Replace the connection, without gRPC's backoff of the old one. Open streams stay on theirs."""
        self._replace(self._connection)

    def retire(self) -> None:
        """Refuse new streams and close after the last one has ended."""
        self._connection.retire()

    def _fresh(self) -> VerifierConnection:
        """Return a connection made with the present TLS files."""
        if self._tls is not None and self._tls.renewed():
            self._replace(self._connection)
        return self._connection

    def _replace(self, old: VerifierConnection) -> None:
        if old is self._connection:
            self._connection = self._connect((*self._more, *OWN_CONNECTION))
            old.retire()

    def _connect(self, more: Options) -> VerifierConnection:
        options: list[tuple[str, int | str]] = [*channel_options(), *dict(more).items()]
        if self._tls is None:
            return VerifierConnection(grpc.aio.insecure_channel(self.address, options=options))
        if self._name:
            options.append(("grpc.ssl_target_name_override", self._name))
        channel = grpc.aio.secure_channel(self.address, self._tls.credentials, options=options)
        return VerifierConnection(channel, self._tls.metadata)
