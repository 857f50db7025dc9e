"""Serve devices as a verifier does, and draft for the verifier behind with the middle model."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from cloud_verifier.core.effects import End
from cloud_verifier.identity.identity import IncomingCall
from cloud_verifier.identity.server_tls import LiveServerTls, ServerTls
from cloud_verifier.server.calls import SERVICE_NAME, SESSION, Framing
from cloud_verifier.server.grpc_server import listen
from cloud_verifier.server.interceptor import Guard
from cloud_verifier.server.outbox import Outbox, Pace
from common.calibration import Beliefs
from common.errors import Code, ForerunError, LocalError, PeerError, UnavailableError, UserError
from common.messages import Close, Drain, Open, Propose
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc as pb_grpc
from common.privacy import Privacy
from common.vocabulary import Vocabulary
from common.wire.codec import decode_request
from common.wire.grpc_options import MAX_MESSAGE_BYTES, server_options
from common.wire.wire_fields import check_padding, check_request
from edge_client.core.effects import Effect, Send
from edge_client.core.policies import make_policy
from edge_client.draft.late_seat import DraftSeat
from edge_client.network.channel import OnLost, OnMessage, VerifierChannel, VerifierStream
from edge_client.network.client_tls import Metadata
from edge_client.network.generation import Generation
from edge_client.texts.text_service import DraftSource
from schemes.relay.session import RelaySession, config_of

logger = logging.getLogger(__name__)

OPEN_TIME = 30.0
"""Seconds in which a stream's `Open` must come, as for a verifier (`SchedulerConfig.open_timeout`)."""

STALL_TIME = 60.0
"""Seconds for which a device may leave its messages unread, as for a verifier
(`SchedulerConfig.stall_timeout`)."""

MOST_POSITIONS = 2**20
"""Positions of the longest text, which bound an `Open`. The verifier behind has the target's own limit."""

HALF_CLOSED = "the stream was half-closed without a Close"

IDENTITY = "authorization"
"""Metadata entry of a caller's token (docs/protocol.md, rule 14)."""


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Describes one relay. Without a token of its own it may forward those of its callers. `privacy` is the
    least level in both directions."""

    forwards_tokens: bool
    privacy: Privacy = Privacy.PADDED


class CallerStreams:
    """Opens streams to the verifier with one caller's metadata. A `StreamSource`."""

    elsewhere = False
    shares_machine = False  # a relay stands between its devices and a far verifier

    def __init__(self, channel: VerifierChannel, entries: Metadata) -> None:
        self._channel, self._entries = channel, entries
        self.address = channel.address
        self.watch = channel.watch

    def open(self, on_message: OnMessage, on_lost: OnLost) -> VerifierStream:
        return self._channel.open(on_message, on_lost, entries=self._entries)


class RelayedText(Generation):
    """Runs one `RelaySession` over streams to the verifier. The messages for the device go to `outbox`."""

    def __init__(self, relayed: RelaySession, streams: CallerStreams, seat: DraftSeat | None) -> None:
        super().__init__(relayed.edge, streams, seat)
        self.outbox = Outbox(self._on_full)
        self._relayed = relayed
        self._take = relayed.on_message
        self._stall: asyncio.TimerHandle | None = None  # while the device does not read
        self._broken: PeerError | None = None  # the device broke a rule

    def take(self, message: Propose | Close) -> None:
        """Take a message of the device."""
        match message:
            case Propose():
                self._input(lambda now: self._propose(message, now))
            case Close():
                self._input(self._relayed.on_close)

    async def run(self) -> None:
        """Write the text to its end, and end the device's stream then."""
        error: ForerunError | None = None
        try:
            async for _ in self.shown():
                pass
        except PeerError as caught:  # towards the device, the verifier's fault is that of this side
            error = caught if caught is self._broken else LocalError(str(caught), caught.code)
        except ForerunError as caught:
            error = caught
        self.outbox.put_nowait(End(0, error))

    def _on_full(self, full: bool) -> None:
        """End the text if the device reads nothing for `STALL_TIME`."""
        if self._stall is not None:
            self._stall.cancel()
        unread = UnavailableError(f"the device has not read its messages for {STALL_TIME:g} s")
        self._stall = asyncio.get_running_loop().call_later(STALL_TIME, self._fail, unread) if full else None

    def _propose(self, message: Propose, now: float) -> None:
        try:
            self._relayed.on_propose(message, now)
        except PeerError as error:
            self._broken = error
            raise

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._relayed.sent(effect.message)
        super()._carry_out(effects)
        for answer in self._relayed.answers():
            self.outbox.put_nowait(answer)


class RelayService(pb_grpc.VerifierServiceServicer):
    """Serves devices' streams. `drafts` give seats at the middle model, whose tokens are `vocabulary`."""

    def __init__(
        self, channel: VerifierChannel, drafts: DraftSource, vocabulary: Vocabulary, settings: RelaySettings
    ) -> None:
        self._channel, self._drafts, self._vocabulary = channel, drafts, vocabulary
        self._settings = settings
        self._beliefs = Beliefs()
        self._texts: set[RelayedText] = set()  # of open streams

    async def Describe(self, request: pb.DescribeRequest, context: IncomingCall) -> pb.DescribeResponse:
        """Pass the verifier's answer on, without acceptance rules: sessions here have the coupled rule."""
        answer = await self._channel.ask(request, self._entries(context))
        del answer.acceptance_rules[:]
        return answer

    async def Session(
        self, requests: AsyncIterator[pb.SessionRequest], context: IncomingCall
    ) -> AsyncGenerator[pb.SessionResponse]:
        try:
            async with asyncio.timeout(OPEN_TIME):
                request = await anext(requests, None)
        except TimeoutError:  # the device may have slept, and may try again
            raise UnavailableError(f"no Open came within {OPEN_TIME:g} s", Code.DEADLINE_EXCEEDED) from None
        if request is None:
            raise UnavailableError(HALF_CLOSED)
        first = _message(request)
        if not isinstance(first, Open):
            raise PeerError("a stream begins with Open", Code.FAILED_PRECONDITION)
        framing = Framing(self._settings.privacy)
        framing.asked(first)
        async with contextlib.AsyncExitStack() as stack:
            held = stack.enter_context(contextlib.ExitStack())  # until the text ends, read or not
            text = await self._begin(first, context, held)
            self._texts.add(text)
            stack.callback(self._texts.discard, text)
            tasks = [asyncio.create_task(each) for each in (_write(text, held), _read(requests, text))]
            stack.push_async_callback(_stop, tasks)
            while not isinstance(item := await text.outbox.get(), End):
                yield framing.frame(item)
        if item.error is not None:
            raise item.error

    def drain(self, grace: float) -> None:
        """Ask every device to go elsewhere within `grace` seconds."""
        for text in self._texts:
            text.outbox.put_nowait(Drain(round(1e6 * grace)))

    async def _begin(self, request: Open, context: IncomingCall, held: contextlib.ExitStack) -> RelayedText:
        own = self._vocabulary.fingerprint
        if request.fingerprint != own:
            raise UserError(
                f"tokenizer mismatch: the edge's fingerprint is {request.fingerprint.hex()}, the relay's "
                f"{own.hex()}; use models with the target's tokenizer",
                Code.FAILED_PRECONDITION,
            )
        seat = await self._seat(request)
        if seat is not None:
            held.callback(seat.release)
        padded = Privacy.PADDED in (request.privacy, self._settings.privacy)
        config = config_of(
            request,
            own,
            has_drafter=seat is not None,
            num_read=0 if seat is None else seat.num_kept(request.prompt + request.committed),
            vocab_size=self._vocabulary.size,
            prior=self._beliefs.before(request.sampling),
            privacy=Privacy.PADDED if padded else Privacy.OFF,
        )
        session = RelaySession(request, config, make_policy("adaptive"), self._drafts.pace)
        held.callback(lambda: self._beliefs.learn(request.sampling, session.edge.calibration))
        return RelayedText(session, CallerStreams(self._channel, self._entries(context)), seat)

    async def _seat(self, request: Open) -> DraftSeat | None:
        """Return a seat at the middle model; None if there is none for this text, which the device alone
        drafts then."""
        try:
            if request.sampling.grammar:
                await self._drafts.prepare(request.sampling.grammar)
            return await self._drafts.acquire(request.prompt)
        except ForerunError as error:
            logger.warning("x %s is relayed without drafts: %s", request.session_id, error)
            return None

    def _entries(self, context: IncomingCall) -> Metadata:
        """Return the caller's token, if it is to be passed on."""
        if not self._settings.forwards_tokens:
            return ()
        entries = context.invocation_metadata() or ()
        return tuple((key, value) for key, value in entries if key == IDENTITY and isinstance(value, str))


def _message(request: pb.SessionRequest) -> Open | Propose | Close:
    check_padding(request)
    return decode_request(request)


async def _write(text: RelayedText, held: contextlib.ExitStack) -> None:
    """Run the text, and then give back what it has held."""
    with held:
        await text.run()


async def _read(requests: AsyncIterator[pb.SessionRequest], text: RelayedText) -> None:
    """Pass the device's messages on. An end without `Close` is a disconnect."""
    pace = Pace(asyncio.get_running_loop().time())
    try:
        async for request in requests:
            if wait := pace.take(asyncio.get_running_loop().time()):
                await asyncio.sleep(wait)
            message = _message(request)
            if isinstance(message, Open):
                raise PeerError("a second Open came on this stream", Code.FAILED_PRECONDITION)
            text.take(message)
    except ForerunError as error:
        text.outbox.put_nowait(End(0, error))
    except Exception:  # outermost frame of this task: the device learns of a defect, without its details
        logger.exception("! a message could not be taken")
        text.outbox.put_nowait(End(0, LocalError("a defect of the relay; its log has more")))
    else:
        text.outbox.put_nowait(End(0, UnavailableError(HALF_CLOSED)))


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class RelayServer:
    """Serves a relay on `address` (HOST:PORT; port 0 picks one). An async context manager. Raises `UserError`
    if it cannot listen there, or a file of `tls` cannot be used."""

    def __init__(self, service: RelayService, address: str, tls: ServerTls | None = None) -> None:
        self._service, self._address = service, address
        self._tls = None if tls is None else LiveServerTls(tls)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> RelayServer:
        checks = {SESSION: lambda data: check_request(data, MOST_POSITIONS)}
        options = server_options(message_bytes=MAX_MESSAGE_BYTES)
        server = self._server = grpc.aio.server(options=options, interceptors=(Guard(checks),))
        pb_grpc.add_VerifierServiceServicer_to_server(self._service, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        credentials = None if self._tls is None else self._tls.credentials()
        self.port = listen(server, self._address, credentials)
        await server.start()
        for name in ("", SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "entered before"
        await self._server.stop(grace=0.0)

    async def drain(self, grace: float) -> None:
        """Take no new stream, ask every device to leave, and end the remaining streams after `grace`
        seconds."""
        assert self._server is not None, "entered before"
        self._service.drain(grace)
        await self._server.stop(grace)
