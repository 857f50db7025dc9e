"""The gRPC face of a verifier: a coroutine a stream passes messages between the wire and the worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cloud_verifier.call import Call
from cloud_verifier.core.admission import check_count
from cloud_verifier.core.effects import End
from cloud_verifier.core.target import Chat, TargetInfo
from cloud_verifier.denied import NOBODY as NOBODY_DENIED
from cloud_verifier.denied import Denied
from cloud_verifier.guard import Guard
from cloud_verifier.heart import FLUSH_TIME, NO_FILES, Heart
from cloud_verifier.identity import EVERYBODY, NOBODY, Identity, Who
from cloud_verifier.line import Line, PrivacySettings
from cloud_verifier.outbox import Outbox
from cloud_verifier.rich_status import with_retry_info
from cloud_verifier.telemetry.trust import DENIED
from cloud_verifier.tls import LiveTls, ServerTls
from cloud_verifier.worker import Worker
from common.errors import (
    CapacityError,
    Code,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
    UserError,
)
from common.messages import ClientMessage, Open
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc as pb_grpc
from common.rpc.codec import decode_request
from common.rpc.describe import Description, Load, TokenTable, encode_description, table_bytes
from common.rpc.frames import member
from common.rpc.live_files import LiveFiles
from common.rpc.options import server_options
from common.rpc.status import Status, StatusDetail, to_status

logger = logging.getLogger(__name__)

RETRY_AFTER = 1.0
"""Seconds that an edge is told to wait where nobody knows better: about as long as one short text takes."""

MOST_TABLES = 8
"""Token tables on their way at once. One has some 2 MB, and who asks need not read; honest edges ask when
their own is another, for the first difference."""

NO_CHAT = Chat("")

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["VerifierService"].full_name

SESSION = f"/{SERVICE_NAME}/Session"


class Here(NamedTuple):
    """An open stream."""

    who: Who
    line: Line


class VerifierService(pb_grpc.VerifierServiceServicer):
    """Session streams and `Describe` of one worker. `identity` says whose a call is; `privacy`, what the
    verifier insists on; `denied`, who is let in no more."""

    def __init__(
        self,
        worker: Worker,
        info: TargetInfo,
        table: TokenTable,
        identity: Identity,
        privacy: PrivacySettings = PrivacySettings(),  # noqa: B008 - frozen
        denied: LiveFiles[Denied] | None = None,
    ) -> None:
        self._privacy = privacy
        self._denied = denied
        self._known_denied = NOBODY_DENIED  # to those who are here
        self._here: dict[int, Here] = {}  # by stream
        self._num_tables = 0  # on their way
        self._worker = worker
        self._info = info
        self._table = table
        self._identity = identity

    async def Describe(self, request: pb.DescribeRequest, context: Call) -> pb.DescribeResponse | bytes:
        self._who(context)
        answer = self._description(request)
        if not request.include_vocabulary:
            return answer
        self._take_table_place(context)
        return answer.SerializeToString() + self._table_bytes

    def _description(self, request: pb.DescribeRequest) -> pb.DescribeResponse:
        """Without the token table."""
        info = self._info
        chat = info.chat if info.chat is not None and request.include_chat_template else NO_CHAT
        return encode_description(
            Description(
                model=info.name,
                vocab_size=info.vocab_size,
                max_positions=info.max_positions,
                fingerprint=info.fingerprint,
                eos_token_ids=info.eos_token_ids,
                acceptance_rules=self._worker.scheduler.config.rules,
                version=self._worker.version,
                load=self._load(),
                chat_template=chat.template,
                bos_token=chat.bos_token,
                eos_token=chat.eos_token,
                grammars=info.grammars,
            )
        )

    async def Session(
        self, requests: AsyncIterator[pb.SessionRequest], context: Call
    ) -> AsyncGenerator[pb.SessionResponse, None]:
        who, refused = self._caller(context)
        key, outbox = self._worker.connect(who.tenant, context.time_remaining())
        line = Line(self._privacy, self._worker.turn_time)
        self._here[key] = Here(who, line)
        reader: asyncio.Task[None] | None = None
        if refused is None:
            reader = asyncio.create_task(self._read(key, requests, outbox, line))
        else:  # not a message of it is read
            self._worker.violate(key, refused)
        try:
            while frames := await line.leaving(outbox):
                for frame in frames:
                    self._worker.monitor.note_sent(key, member(frame), frame.ByteSize())
                    yield frame
        finally:
            if reader is not None:
                reader.cancel()
            del self._here[key]
            self._worker.disconnect(key)
        if line.end is not None and line.end.error is not None:
            await context.abort(*self._status(line.end.error))

    def hurry(self) -> None:
        """No stream goes on only to hide when its text ended."""
        for each in self._here.values():
            each.line.hurry()

    @cached_property
    def _table_bytes(self) -> bytes:
        return table_bytes(self._table)

    def _take_table_place(self, context: Call) -> None:
        """Until the call is over: all of it has left, or nobody is there any more. Raises `CapacityError`."""
        if self._num_tables >= MOST_TABLES:
            raise CapacityError(
                f"{MOST_TABLES} edges are being told the token table; ask again", None, RETRY_AFTER
            )
        self._num_tables += 1

        def over(_: object) -> None:
            self._num_tables -= 1

        context.add_done_callback(over)

    def _load(self) -> Load:
        scheduler = self._worker.scheduler
        return Load(len(scheduler.sessions), scheduler.config.max_sessions, scheduler.draining)

    def turn_away(self) -> None:
        """End the streams of those whom the list of denied callers names by now."""
        if self._denied is None or self._denied.value is self._known_denied:
            return
        self._known_denied = self._denied.value
        for key, here in [*self._here.items()]:
            if (error := self._known_denied.why(here.who)) is not None:
                self._worker.violate(key, error)

    def _who(self, context: Call) -> Who:
        """Whose a call is. Raises `UserError` if it is nobody's, or of one who is let in no more."""
        who = self._identity.who(context)
        if self._denied is not None:
            self._denied.refresh()
            self.turn_away()
            if (error := self._known_denied.why(who)) is not None:
                raise error
        return who

    def _caller(self, context: Call) -> tuple[Who, ForerunError | None]:
        """Whose a stream is, or why it is nobody's. It is decided once, but for the list of denied callers:
        a session may outlive its token."""
        try:
            return self._who(context), None
        except ForerunError as error:
            return NOBODY, error

    def _status(self, error: ForerunError) -> Status:
        """What a person is told, and what a program needs beside the sentence."""
        own = self._info.fingerprint if error.code is Code.FAILED_PRECONDITION else b""
        if not isinstance(error, CapacityError):
            return to_status(error, StatusDetail(server_fingerprint=own))
        retry_after = error.retry_after or RETRY_AFTER
        detail = StatusDetail(retry_after_us=round(retry_after * 1e6), server_fingerprint=own)
        return with_retry_info(to_status(error, detail), retry_after)

    async def _read(
        self, key: int, requests: AsyncIterator[pb.SessionRequest], outbox: Outbox, line: Line
    ) -> None:
        """Hand the worker what comes. Its end is a disconnect: a goodbye would have been `Close`."""
        opened = False
        try:
            async for frame in requests:
                self._worker.monitor.note_received(key, member(frame), frame.ByteSize())
                for request in line.received(frame):
                    asked = request.open  # of another message it is an empty one
                    check_count(len(asked.prompt), len(asked.committed), self._info.max_positions)
                    await self._take(key, decode_request(request), opened, line)
                    opened = True
        except ForerunError as error:
            self._worker.violate(key, error)
        except Exception:  # outermost frame of this task: the edge must learn of a defect, and not which
            logger.exception("! stream %d: a message could not be taken", key)
            self._worker.violate(key, LocalError("a defect of the verifier; its log has more"))
        else:
            outbox.put_nowait(End(key, UnavailableError("the stream was half-closed without a Close")))

    async def _take(self, key: int, message: ClientMessage, opened: bool, line: Line) -> None:
        if opened == isinstance(message, Open):
            words = "a second Open came on this stream" if opened else "a stream begins with Open"
            raise PeerError(words, Code.FAILED_PRECONDITION)
        if isinstance(message, Open):
            line.asked(message)
            await self._worker.check(key, message)
        self._worker.receive(key, message)


class Server:
    """A verifier listening on `address` (HOST:PORT; port 0 picks one). An async context manager.

    `identity` says whose calls are; `files` are those that are looked after beside those of `tls`. Raises
    `UserError` when the address cannot be listened on, or a file of `tls` cannot be used.
    """

    def __init__(
        self,
        worker: Worker,
        info: TargetInfo,
        table: TokenTable,
        address: str,
        identity: Identity = EVERYBODY,
        tls: ServerTls | None = None,
        files: Mapping[str, LiveFiles[Any]] = NO_FILES,
        privacy: PrivacySettings = PrivacySettings(),  # noqa: B008 - frozen
    ) -> None:
        self._worker = worker
        self._tls = None if tls is None else LiveTls(tls)
        self._service = VerifierService(worker, info, table, identity, privacy, files.get(DENIED))
        self._heart = Heart(worker, self._service, self._tls, files)
        self.upkeep = self._heart.upkeep
        self._address = address
        self._over_at: float | None = None  # on the loop's clock; None cuts off whoever is there
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self.port = 0

    async def __aenter__(self) -> Server:
        server = self._server = grpc.aio.server(
            options=server_options(), interceptors=(Guard(own={SESSION}),)
        )
        pb_grpc.add_VerifierServiceServicer_to_server(self._service, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        try:
            if self._tls is None:
                self.port = server.add_insecure_port(self._address)
            else:
                self.port = server.add_secure_port(self._address, self._tls.credentials())
        except RuntimeError as error:
            raise UserError(
                f"cannot listen on {self._address}: it is in use or not an address of this machine; "
                "choose another HOST:PORT"
            ) from error
        await server.start()
        await self._heart.__aenter__()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "entered before"
        await self._server.stop(grace=self._time_left())
        await self._heart.__aexit__()

    async def run_until(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises what broke the heartbeat, if anything does: no step would run."""
        await self._heart.until(stop.wait())

    async def drain(self, grace: float) -> None:
        """Stop admitting, tell every session to go, and wait until they have. After `grace` seconds those
        that are still here are ended with a status that says so, and strict streams as soon as all is said.
        What was committed gets away first, for `FLUSH_TIME`. Raises as `run_until`."""
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._over_at = asyncio.get_running_loop().time() + grace + FLUSH_TIME
        await self._heart.drain(grace)

    def _time_left(self) -> float | None:
        """Seconds for what is on its way, once nobody needs to be waited for but that."""
        if self._over_at is None:
            return None
        return min(max(self._over_at - asyncio.get_running_loop().time(), 0.0), FLUSH_TIME)

    async def _set_health(self, status: int) -> None:
        for name in ("", SERVICE_NAME):
            await self._health.set(name, status)
