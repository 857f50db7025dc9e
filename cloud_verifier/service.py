"""The calls of a verifier: a coroutine a stream passes messages between the wire and the worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from functools import cached_property
from typing import NamedTuple

from cloud_verifier.call import Call
from cloud_verifier.connections import Connections, Peer, peer_of
from cloud_verifier.core.admission import check_count, longest_session
from cloud_verifier.core.effects import End
from cloud_verifier.core.target import Chat, TargetInfo
from cloud_verifier.denied import NOBODY as NOBODY_DENIED
from cloud_verifier.denied import Denied
from cloud_verifier.guard import Questions
from cloud_verifier.identity import NOBODY, Identity, Who
from cloud_verifier.line import Line, Pace, PrivacySettings
from cloud_verifier.outbox import Outbox
from cloud_verifier.rich_status import with_retry_info
from cloud_verifier.worker import Worker
from common.errors import (
    CapacityError,
    Code,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
)
from common.messages import ClientMessage, Open
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc as pb_grpc
from common.rpc.codec import decode_request
from common.rpc.describe import Description, Load, TokenTable, encode_description, table_bytes
from common.rpc.frames import member
from common.rpc.live_files import LiveFiles
from common.rpc.status import Status, StatusDetail, to_status
from common.rpc.wire_fields import check_padding

logger = logging.getLogger(__name__)

RETRY_AFTER = 1.0
"""Seconds that an edge is told to wait where nobody knows better: about as long as one short text takes."""

MOST_AT_ONCE = 64
"""Messages of one frame that are taken before others have their turn: a frame of 4 KiB may hold 1,365."""

MOST_TABLES = 8
"""Token tables on their way at once. One has some 2 MB, and who asks need not read; honest edges ask when
their own is another, for the first difference."""

MOST_TABLES_OF_ONE = 4
"""Token tables on their way to one address at once, so that other addresses find places."""

TABLE_TIME = 10.0
"""Seconds that a token table has to leave. If it takes longer, and another edge finds no place, its
connection is closed."""

NO_CHAT = Chat("")

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["VerifierService"].full_name

SESSION, DESCRIBE = f"/{SERVICE_NAME}/Session", f"/{SERVICE_NAME}/Describe"


class Here(NamedTuple):
    """An open stream."""

    who: Who
    line: Line


class Leaving(NamedTuple):
    """A token table on its way."""

    peer: Peer | None
    began: float  # seconds, on the loop's clock


class VerifierService(pb_grpc.VerifierServiceServicer):
    """Session streams and `Describe` of one worker. `identity` says whose a call is; `privacy`, what the
    verifier insists on; `denied`, who is let in no more. `connections` are those of its port,
    `questions` paces what they ask."""

    def __init__(
        self,
        worker: Worker,
        info: TargetInfo,
        table: TokenTable,
        identity: Identity,
        privacy: PrivacySettings = PrivacySettings(),  # noqa: B008 - frozen
        denied: LiveFiles[Denied] | None = None,
        connections: Connections | None = None,
        questions: Questions | None = None,
    ) -> None:
        self._connections = connections or Connections()
        self._questions = questions or Questions()
        self._privacy = privacy
        self._denied = denied
        self._known_denied = NOBODY_DENIED  # to those who are here
        self._here: dict[int, Here] = {}  # by stream
        self._tables: dict[int, Leaving] = {}  # by their numbers
        self._next_table = 0
        self._floods: dict[str, set[Pace]] = {}  # by tenant: as `Pace` has it
        self._worker = worker
        self._info = info
        self._table = table
        self._identity = identity

    async def Describe(self, request: pb.DescribeRequest, context: Call) -> pb.DescribeResponse | bytes:
        answer = self._description(request, self._who(context).tenant)
        if not request.include_vocabulary:
            return answer
        self._take_table_place(context)
        return answer.SerializeToString() + self._table_bytes

    def _description(self, request: pb.DescribeRequest, tenant: str) -> pb.DescribeResponse:
        """Without the token table."""
        info, scheduler = self._info, self._worker.scheduler
        chat = info.chat if info.chat is not None and request.include_chat_template else NO_CHAT
        return encode_description(
            Description(
                model=info.name,
                vocab_size=info.vocab_size,
                max_positions=info.max_positions,
                fingerprint=info.fingerprint,
                eos_token_ids=info.eos_token_ids,
                acceptance_rules=scheduler.config.rules,
                version=self._worker.version,
                load=self._load(),
                chat_template=chat.template,
                bos_token=chat.bos_token,
                eos_token=chat.eos_token,
                grammars=info.grammars,
                max_session_positions=longest_session(
                    info.max_positions, scheduler.memory.num_slots, scheduler.config
                )
                or None,
                sampling_defaults=info.sampling_defaults,
                max_text_tokens=scheduler.rationing.longest_text(tenant),
            )
        )

    async def Session(
        self, requests: AsyncIterator[pb.SessionRequest], context: Call
    ) -> AsyncGenerator[pb.SessionResponse, None]:
        who, refused = self._caller(context)
        connection = context.peer()
        key, outbox = self._worker.connect(who.tenant, context.time_remaining(), connection)
        line = Line(
            self._privacy, self._worker.turn_time, flooding=self._floods.setdefault(who.tenant, set())
        )
        self._here[key] = Here(who, line)
        reader: asyncio.Task[None] | None = None
        if refused is None:
            peer = peer_of(connection)
            reader = asyncio.create_task(self._read(key, requests, outbox, line, peer))
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
            line.pace.end()
            if not any(each.who.tenant == who.tenant for each in self._here.values()):
                self._floods.pop(who.tenant, None)
        if line.end is not None and line.end.error is not None:
            if not isinstance(line.end.error, CapacityError | UnavailableError):
                await self._questions.turn(context)
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
        peer, now = peer_of(context.peer()), asyncio.get_running_loop().time()
        source = None if peer is None else peer.source
        of_one = [each for each in self._tables.values() if each.peer and each.peer.source == source]
        if len(of_one) >= MOST_TABLES_OF_ONE or len(self._tables) >= MOST_TABLES:
            asked = of_one if len(of_one) >= MOST_TABLES_OF_ONE else [*self._tables.values()]
            late = {each.peer for each in asked if each.peer and now >= each.began + TABLE_TIME}
            if late:
                self._connections.cut(late)
            whose = " of this address" if asked is of_one else ""
            raise CapacityError(
                f"{len(asked)} edges{whose} are being told the token table; ask again", None, RETRY_AFTER
            )
        self._next_table = number = self._next_table + 1
        self._tables[number] = Leaving(peer, now)

        def over(_: object) -> None:
            del self._tables[number]

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

    def check_caller(self, context: Call) -> None:
        """Raise `UserError` for a call of which nothing is to be read: it is nobody's, or of somebody who is
        denied."""
        self._who(context)

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
        self,
        key: int,
        requests: AsyncIterator[pb.SessionRequest],
        outbox: Outbox,
        line: Line,
        peer: Peer | None,
    ) -> None:
        """Hand the worker what comes. Its end is a disconnect: a goodbye would have been `Close`."""
        opened = False
        try:
            self._worker.charge_stream(key)
            with contextlib.ExitStack() as stack:
                async for frame in requests:
                    was_open, opened = opened, await self._take_frame(key, frame, opened, line)
                    del frame  # nothing keeps it while the next one is waited for
                    if opened and not was_open:
                        stack.enter_context(self._connections.in_use(peer))
        except ForerunError as error:
            self._worker.violate(key, error)
        except Exception:  # outermost frame of this task: the edge must learn of a defect, and not which
            logger.exception("! stream %d: a message could not be taken", key)
            self._worker.violate(key, LocalError("a defect of the verifier; its log has more"))
        else:
            outbox.put_nowait(End(key, UnavailableError("the stream was half-closed without a Close")))

    async def _take_frame(self, key: int, frame: pb.SessionRequest, opened: bool, line: Line) -> bool:
        """Whether the stream has had its `Open` by now."""
        check_padding(frame)
        self._worker.monitor.note_received(key, member(frame), frame.ByteSize())
        for number, request in enumerate(line.received(frame), 1):
            wait = line.pace.take(asyncio.get_running_loop().time())
            if wait or not number % MOST_AT_ONCE:
                await asyncio.sleep(wait)
            asked = request.open  # of another message it is an empty one
            check_count(len(asked.prompt), len(asked.committed), self._info.max_positions)
            await self._take(key, decode_request(request), opened, line)
            opened = True
        return opened

    async def _take(self, key: int, message: ClientMessage, opened: bool, line: Line) -> None:
        if opened == isinstance(message, Open):
            words = "a second Open came on this stream" if opened else "a stream begins with Open"
            raise PeerError(words, Code.FAILED_PRECONDITION)
        if isinstance(message, Open):
            line.asked(message)
            await self._worker.check(key, message)
        self._worker.receive(key, message)
