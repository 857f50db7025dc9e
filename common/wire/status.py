"""Convert errors to gRPC statuses and back (rule 14 of docs/protocol.md).

A status has a code, a sentence and, in the trailing metadata key `forerun-error-bin`, an `ErrorDetail`: whose
fault it was, and what a program needs to act on it. Faults change sides on the way: what the verifier
raises as `PeerError` ("the client broke a rule") arrives at the edge as `LocalError`, and the reverse.
"""

from __future__ import annotations

from typing import NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from common.errors import (
    CapacityError,
    Code,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
    UserError,
)
from common.pb import verifier_pb2 as pb
from common.wire.codec import MAX_US

DETAIL_KEY = "forerun-error-bin"
"""The suffix -bin is gRPC's mark of a value that is bytes."""

MAX_MESSAGE_CHARS = 1024
"""The sentence travels in a header block, which peers limit to 8 KiB and fill with percent-encoding."""

_FAULT_OF: dict[type[ForerunError], pb.Fault] = {
    UserError: pb.FAULT_USER,
    PeerError: pb.FAULT_CLIENT,
    LocalError: pb.FAULT_SERVER,
    CapacityError: pb.FAULT_CAPACITY,
    UnavailableError: pb.FAULT_UNAVAILABLE,
}
"""The fault in a status, by the verifier's error."""

_ERROR_OF: dict[int, type[ForerunError]] = {
    pb.FAULT_USER: UserError,
    pb.FAULT_CLIENT: LocalError,
    pb.FAULT_SERVER: PeerError,
    pb.FAULT_CAPACITY: CapacityError,
    pb.FAULT_UNAVAILABLE: UnavailableError,
}
"""The edge's error, by the fault in a status."""

_WITHOUT_DETAIL: dict[grpc.StatusCode, tuple[type[ForerunError], Code]] = {
    grpc.StatusCode.INVALID_ARGUMENT: (UserError, Code.INVALID_ARGUMENT),
    grpc.StatusCode.NOT_FOUND: (UserError, Code.NOT_FOUND),
    grpc.StatusCode.FAILED_PRECONDITION: (UserError, Code.FAILED_PRECONDITION),
    grpc.StatusCode.OUT_OF_RANGE: (UserError, Code.OUT_OF_RANGE),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (CapacityError, Code.RESOURCE_EXHAUSTED),
    grpc.StatusCode.DEADLINE_EXCEEDED: (UnavailableError, Code.DEADLINE_EXCEEDED),
    grpc.StatusCode.UNAVAILABLE: (UnavailableError, Code.UNAVAILABLE),
    grpc.StatusCode.UNAUTHENTICATED: (UserError, Code.UNAUTHENTICATED),
    grpc.StatusCode.PERMISSION_DENIED: (UserError, Code.PERMISSION_DENIED),
    # Without our detail these come from the transport: gRPC's core says INTERNAL when a
    # connection is reset under a write, proxies turn RST_STREAM into INTERNAL or UNKNOWN.
    grpc.StatusCode.INTERNAL: (UnavailableError, Code.INTERNAL),
    grpc.StatusCode.UNKNOWN: (UnavailableError, Code.INTERNAL),
    # Statuses that Forerun never sends; proxies, gRPC itself and other servers do.
    grpc.StatusCode.CANCELLED: (UnavailableError, Code.UNAVAILABLE),
    grpc.StatusCode.ABORTED: (UnavailableError, Code.UNAVAILABLE),
    grpc.StatusCode.DATA_LOSS: (UnavailableError, Code.UNAVAILABLE),
    grpc.StatusCode.UNIMPLEMENTED: (UserError, Code.FAILED_PRECONDITION),
    grpc.StatusCode.ALREADY_EXISTS: (PeerError, Code.INTERNAL),
}


class Status(NamedTuple):
    """The fields are the arguments of `ServicerContext.abort`, in its order."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def to_status(
    error: ForerunError, retry_after_us: int | None = None, server_fingerprint: bytes = b""
) -> Status:
    """Return how the verifier ends a stream because of `error`. Another try is not worth it before
    `retry_after_us` have passed. With a fingerprint mismatch `server_fingerprint` is the verifier's own."""
    message = pb.ErrorDetail(
        fault=_fault_of(error),
        retry_after_us=None if retry_after_us is None else min(retry_after_us, MAX_US),
        server_fingerprint=server_fingerprint,
    )
    metadata = ((DETAIL_KEY, message.SerializeToString()),)
    return Status(grpc.StatusCode[error.code.value], str(error)[:MAX_MESSAGE_CHARS], metadata)


def to_error(error: grpc.aio.AioRpcError) -> ForerunError:
    """Return the error that the edge raises for a failed call; a broken detail counts as none."""
    kind, code = _WITHOUT_DETAIL.get(error.code(), (PeerError, Code.INTERNAL))
    detail = _read(error)
    kind = _ERROR_OF.get(detail.fault, kind)
    words = _plain((error.details() or error.code().name)[:MAX_MESSAGE_CHARS])
    if kind is CapacityError:
        advice = detail.retry_after_us * 1e-6 if detail.HasField("retry_after_us") else None
        return CapacityError(words, code, advice)
    return kind(words, code)


def _plain(words: str) -> str:
    """Replace characters that are not printable. In a log a line break would forge a line, and terminals obey
    control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in words)


def fault_word(error: ForerunError) -> str:
    """Return whose fault an error is: `user`, `client`, `server`, `capacity` or `unavailable`."""
    return pb.Fault.Name(_fault_of(error)).removeprefix("FAULT_").lower()


def _fault_of(error: ForerunError) -> pb.Fault:
    kinds = (_FAULT_OF[kind] for kind in type(error).__mro__ if kind in _FAULT_OF)
    return next(kinds, pb.FAULT_SERVER)


def _read(error: grpc.aio.AioRpcError) -> pb.ErrorDetail:
    detail = next((value for key, value in error.trailing_metadata() if key == DETAIL_KEY), b"")
    try:
        return pb.ErrorDetail.FromString(detail if isinstance(detail, bytes) else b"")
    except DecodeError:
        return pb.ErrorDetail()
