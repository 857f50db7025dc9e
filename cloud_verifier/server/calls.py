"""Serve the calls of a verifier: one coroutine a stream passes messages between the wire and the worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from functools import cached_property

from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status as RichStatus

from cloud_verifier.core.admission import check_count, longest_session
from cloud_verifier.core.effects import End
from cloud_verifier.core.engine_protocol import Chat, TargetInfo
from cloud_verifier.identity.caller_files import Denied
from cloud_verifier.identity.identity import NOBODY, Identity, IncomingCall, Who
from cloud_verifier.server.outbox import Outbox, Pace
from cloud_verifier.server.worker import Worker
from common.config.live_files import LiveFiles
from common.errors import (
    CapacityError,
    Code,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
)
from common.messages import Open, Opened, ServerMessage
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy
from common.wire.codec import decode_request, encode_response
from common.wire.describe import Description, TokenTable, VerifierLoad, encode_description, table_bytes
from common.wire.padding import down_grain, pad
from common.wire.status import Status, to_status

logger = logging.getLogger(__name__)

RETRY_AFTER = 1.0
"""Default retry time in seconds: about the duration of one short text."""

MOST_TABLES = 8
"""Token tables in transit at once. Each has some 2 MB, and a client may not read it. Honest edges request a
table only after a mismatch, to find the first difference."""

RICH_DETAILS_KEY = "grpc-status-details-bin"
"""Key of Google's richer error model (https://google.aip.dev/193), for clients that do not know the detail of
`common.wire.status`."""

NO_CHAT = Chat("")


class Framing:
    """Pads the messages of one stream from `Opened` on, if either side wants privacy (rule 21)."""

    def __init__(self, least: Privacy) -> None:
        self._least = least
        self._open: Open | None = None
        self._grain = 0  # bytes; 0: nothing is padded

    def asked(self, request: Open) -> None:
        self._open = request

    def frame(self, message: ServerMessage) -> pb.SessionResponse:
        """Encode the message, padded as the stream needs it."""
        if isinstance(message, Opened):
            message = self._agree(message)
        response = encode_response(message)
        return pad(response, self._grain) if self._grain else response

    def _agree(self, opened: Opened) -> Opened:
        """Add the effective level to `Opened` if the edge's `Open` names one."""
        assert self._open is not None, "no session opens without"
        asked = self._open.privacy
        level = Privacy.PADDED if Privacy.PADDED in (asked, self._least) else Privacy.OFF
        self._grain = 0 if level is Privacy.OFF else down_grain(self._open)
        return opened if asked is None else replace(opened, privacy=level)


class VerifierService:
    """Serves session streams and `Describe` of one worker. `identity` identifies callers, `privacy` is the
    least level, and `denied` is the deny list."""

    def __init__(
        self,
        worker: Worker,
        info: TargetInfo,
        table: TokenTable,
        identity: Identity,
        privacy: Privacy = Privacy.PADDED,
        denied: LiveFiles[Denied] | None = None,
    ) -> None:
        self._privacy = privacy
        self._denied = denied
        self._known_denied = Denied()  # the list that open streams were checked against
        self._here: dict[int, Who] = {}  # by stream
        self._num_tables = 0  # in transit
        self._worker = worker
        self._info = info
        self._table = table
        self._identity = identity

    async def Describe(self, request: pb.DescribeRequest, context: IncomingCall) -> pb.DescribeResponse:
        answer = self._description(request, self.who(context).tenant)
        if request.include_vocabulary:
            self._take_table_place(context)
            answer.MergeFromString(self._table_bytes)
        return answer

    def _description(self, request: pb.DescribeRequest, tenant: str) -> pb.DescribeResponse:
        """Describe the verifier without its token table."""
        info, scheduler = self._info, self._worker.scheduler
        chat = info.chat if info.chat is not None and request.include_chat_template else NO_CHAT
        config = scheduler.config
        longest = longest_session(info.max_positions, info.num_slots, config)
        load = VerifierLoad(
            len(scheduler.sessions),
            config.max_sessions,
            scheduler.draining,
            round(1e6 * (scheduler.turn or 0.0)),
        )
        return encode_description(
            Description(
                model=info.name,
                vocab_size=info.vocab_size,
                max_positions=info.max_positions,
                fingerprint=info.fingerprint,
                eos_token_ids=info.eos_token_ids,
                acceptance_rules=config.rules,
                version=self._worker.version,
                load=load,
                chat_template=chat.template,
                bos_token=chat.bos_token,
                eos_token=chat.eos_token,
                grammars=info.grammars,
                max_session_positions=longest or None,
                sampling_defaults=info.sampling_defaults,
                max_text_tokens=scheduler.tenants.longest_text(tenant),
                repeats=info.repeats,
                step_times=tuple((rows, max(1, round(1e6 * time))) for rows, time in info.row_times),
            )
        )

    async def Session(
        self, requests: AsyncIterator[pb.SessionRequest], context: IncomingCall
    ) -> AsyncGenerator[pb.SessionResponse, None]:
        who, refused = NOBODY, None
        try:  # once: a session may outlive its token, and only the deny list is checked again
            who = self.who(context)
        except ForerunError as error:
            refused = error
        key, outbox = self._worker.connect(who.tenant, context.time_remaining(), context.peer())
        framing = Framing(self._privacy)
        self._here[key] = who
        reader: asyncio.Task[None] | None = None
        if refused is None:
            reader = asyncio.create_task(self._read(key, requests, outbox, framing))
        else:  # none of its messages is read
            self._worker.violate(key, refused)
        try:
            while not isinstance(item := await outbox.get(), End):
                frame = framing.frame(item)
                self._worker.monitor.note_sent(key, item, frame.ByteSize())
                yield frame
        finally:
            if reader is not None:
                reader.cancel()
            del self._here[key]
            self._worker.disconnect(key)
        if item.error is not None:
            await context.abort(*self._status(item.error))

    @cached_property
    def _table_bytes(self) -> bytes:
        return table_bytes(self._table)

    def _take_table_place(self, context: IncomingCall) -> None:
        """Take a place for sending the token table until the call is over. Raises `CapacityError`."""
        if self._num_tables >= MOST_TABLES:
            words = f"{self._num_tables} edges are being told the token table; ask again"
            raise CapacityError(words, None, RETRY_AFTER)
        self._num_tables += 1
        context.add_done_callback(lambda _: self._give_table_place_back())

    def _give_table_place_back(self) -> None:
        self._num_tables -= 1

    def turn_away(self) -> None:
        """End the streams of callers that the current deny list names."""
        if self._denied is None or self._denied.value is self._known_denied:
            return
        self._known_denied = self._denied.value
        for key, who in [*self._here.items()]:
            if (error := self._known_denied.why(who)) is not None:
                self._worker.violate(key, error)

    def who(self, context: IncomingCall) -> Who:
        """Return the caller. Raises `UserError` for an unknown or denied caller."""
        who = self._identity.who(context)
        if self._denied is not None:
            self._denied.refresh()
            self.turn_away()
            if (error := self._known_denied.why(who)) is not None:
                raise error
        return who

    def _status(self, error: ForerunError) -> Status:
        own = self._info.fingerprint if error.code is Code.FAILED_PRECONDITION else b""
        if not isinstance(error, CapacityError):
            return to_status(error, server_fingerprint=own)
        retry_after = error.retry_after or RETRY_AFTER
        status, delay = to_status(error, round(retry_after * 1e6), own), Duration()
        delay.FromNanoseconds(round(retry_after * 1e9))
        rich = RichStatus(code=status.code.value[0], message=status.details)
        rich.details.add().Pack(RetryInfo(retry_delay=delay))
        details = (RICH_DETAILS_KEY, rich.SerializeToString())
        return status._replace(trailing_metadata=(*status.trailing_metadata, details))

    async def _read(
        self, key: int, requests: AsyncIterator[pb.SessionRequest], outbox: Outbox, framing: Framing
    ) -> None:
        """Pass the stream's messages to the worker. An end without `Close` is a disconnect."""
        opened, pace = False, Pace(asyncio.get_running_loop().time())
        try:
            self._worker.charge_stream(key)
            async for request in requests:
                kind = request.WhichOneof("message")
                body = None if kind is None else getattr(request, kind)
                self._worker.monitor.note_received(key, body, request.ByteSize())
                if wait := pace.take(asyncio.get_running_loop().time()):
                    await asyncio.sleep(wait)
                if kind == "open":  # before its tokens are read
                    num_prompt, num_committed = len(request.open.prompt), len(request.open.committed)
                    check_count(num_prompt, num_committed, self._info.max_positions)
                message = decode_request(request)
                if opened == isinstance(message, Open):
                    words = "a second Open came on this stream" if opened else "a stream begins with Open"
                    raise PeerError(words, Code.FAILED_PRECONDITION)
                if isinstance(message, Open):
                    framing.asked(message)
                    await self._worker.check(key, message)
                self._worker.receive(key, message)
                opened = True
                del request, body, message  # free them while waiting for the next ones
        except ForerunError as error:
            self._worker.violate(key, error)
        except Exception:  # outermost frame of this task: the edge learns of a defect, without its details
            logger.exception("! stream %d: a message could not be taken", key)
            self._worker.violate(key, LocalError("a defect of the verifier; its log has more"))
        else:
            outbox.put_nowait(End(key, UnavailableError("the stream was half-closed without a Close")))
