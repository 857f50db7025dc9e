"""What must hold after every case, whatever was sent."""

import logging
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import grpc
from google.protobuf.message import DecodeError

from cloud_verifier.core.scheduler import VerifyScheduler
from common.errors import ForerunError
from common.messages import Opened, ServerMessage
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy
from common.wire.codec import decode_response
from common.wire.padding import DOWN_BYTES
from common.wire.status import DETAIL_KEY, MAX_MESSAGE_CHARS, Status

Code = grpc.StatusCode

ANSWERS = (
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.FAILED_PRECONDITION,
    Code.OUT_OF_RANGE,
    Code.RESOURCE_EXHAUSTED,
    Code.DEADLINE_EXCEEDED,
    Code.UNAVAILABLE,
)
"""Rule 14 of docs/protocol.md without INTERNAL: a client can send nothing that is our defect."""

INSIDES = re.compile(
    r"Traceback|\w+(Error|Exception)\b|\.py\b|object at 0x|<class|<function|site-packages"
    r"|/(work|home|usr|opt|tmp|root)\b|\b(cloud_verifier|edge_client|grpc\.aio|numpy|torch|NoneType)\b"
    r"|\b__\w+__\b"
)
"""What no sentence for a stranger has: classes, modules, files, addresses."""

NEIGHBOUR = "neighbour-whom-nobody-may-see"
"""Session id and tenant of the honest session beside."""


class Broken(AssertionError):
    """A law does not hold."""


def check_status(status: Status, more: Collection[grpc.StatusCode] = ()) -> None:
    """An answer of ours: a documented status, and a sentence for a stranger. Or one of `more`, which gRPC and
    its own services give; theirs may be without words, as that of a health check for an unknown service."""
    code, details, trailers = status
    if code not in ANSWERS and code not in more:
        raise Broken(f"the answer was {code.name}: {details}")
    if details or code not in more:
        check_sentence(details)
    for key, value in trailers:
        if key == DETAIL_KEY and pb.ErrorDetail.FromString(value).fault == pb.FAULT_SERVER:
            raise Broken(f"a client's message was told to be the verifier's fault: {details}")
        _check_discreet(value.decode("ascii", "ignore"))


def check_sentence(details: str) -> None:
    """Some words, none of them of our insides or of somebody else."""
    if not details.strip() or len(details) > MAX_MESSAGE_CHARS:
        raise Broken(f"an answer has {len(details)} characters")
    _check_discreet(details)


def _check_discreet(words: str) -> None:
    if (inside := INSIDES.search(words)) is not None:
        raise Broken(f"an answer tells of our insides ({inside.group()!r}): {words}")
    if NEIGHBOUR in words:
        raise Broken(f"an answer tells of somebody else: {words}")


def check_all_returned(scheduler: VerifyScheduler) -> None:
    """Nobody is here: no session, no tenant, no timer, and every slot is free or cached."""
    scheduler.check_integrity()
    memory = scheduler.memory
    left = (
        f"{len(scheduler.sessions)} sessions",
        f"{len(scheduler.tenants)} tenants",
        f"{memory.num_reserved} slots reserved",
        f"{memory.cache.num_locked} cached slots locked",
        f"{memory.num_slots - memory.pool.num_free - memory.cache.num_slots} slots lost",
        f"{scheduler.next_timer_at is not None:d} timers",
    )
    wrong = [each for each in left if not each.startswith("0 ")]
    if wrong:
        raise Broken(f"after the last stream there are still {', '.join(wrong)}")


class Complaints(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(self.format(record))


@contextmanager
def no_complaint() -> Iterator[None]:
    """Nothing is logged as an error meanwhile: a client's doing is no error of ours."""
    complaints, root = Complaints(), logging.getLogger()
    root.addHandler(complaints)
    try:
        yield
    finally:
        root.removeHandler(complaints)
    if complaints.told:
        raise Broken(f"logged as an error: {complaints.told[0]}")


class Ear:
    """Of one stream. `hear` takes what comes, in order."""

    def __init__(self) -> None:
        self._grain = 1  # bytes, of which every message has a multiple

    def hear(self, data: bytes) -> ServerMessage:
        """Raises `Broken` for what no verifier should send."""
        try:
            message = decode_response(pb.SessionResponse.FromString(data))
        except (DecodeError, ForerunError) as error:
            raise Broken(f"what the verifier sent cannot be read: {error}") from error
        if isinstance(message, Opened):
            self._grain = {Privacy.PADDED: len(data), None: DOWN_BYTES}.get(message.privacy, 1)
        if len(data) % self._grain:
            raise Broken(f"a message has {len(data)} bytes, which is no multiple of {self._grain}")
        return message
