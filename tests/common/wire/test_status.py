"""Law: an error arrives as the same status, sentence and detail, and blamed on the right side (rule 14)."""

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from common.wire.grpc_options import channel_options, server_options
from common.wire.status import DETAIL_KEY, MAX_MESSAGE_CHARS, Status, fault_word, to_error, to_status
from tests.support.details import to_detail

AT_THE_EDGE: dict[type[ForerunError], type[ForerunError]] = {
    UserError: UserError,
    PeerError: LocalError,
    LocalError: PeerError,
    CapacityError: CapacityError,
    UnavailableError: UnavailableError,
}
KINDS = list(AT_THE_EDGE)


def received(status: Status) -> grpc.aio.AioRpcError:
    """What gRPC raises at the client for a status, without a network between."""
    metadata = grpc.aio.Metadata(*status.trailing_metadata)
    return grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), metadata, status.details)


def bare(
    code: grpc.StatusCode, detail: bytes | None = None, words: str | None = "words"
) -> grpc.aio.AioRpcError:
    """A status as a proxy sends it, or with `detail` for bytes."""
    entries = () if detail is None else ((DETAIL_KEY, detail),)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*entries), words)


def test_a_fault_has_a_word_for_each_side() -> None:
    class OfTheClient(PeerError):
        """A kind of its own is its parent's fault."""

    words = [fault_word(kind("words")) for kind in (*KINDS, OfTheClient)]
    assert words == ["user", "client", "server", "capacity", "unavailable", "client"]


@pytest.mark.parametrize("status", grpc.StatusCode)
def test_every_grpc_status_becomes_an_error(status: grpc.StatusCode) -> None:
    error = to_error(bare(status))
    assert isinstance(error, ForerunError)
    assert error.code.value == status.name or status.name not in {code.value for code in Code}


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("kind", KINDS)
def test_errors_arrive_with_code_sentence_and_fault(kind: type[ForerunError], code: Code) -> None:
    error = to_error(received(to_status(kind("what to do about it", code))))
    assert type(error) is AT_THE_EDGE[kind]
    assert (str(error), error.code) == ("what to do about it", code)


def test_details_come_back_as_they_were() -> None:
    status = received(to_status(CapacityError("full"), 0, b"own"))
    assert to_detail(status) == pb.ErrorDetail(
        fault=pb.FAULT_CAPACITY, retry_after_us=0, server_fingerprint=b"own"
    )
    error = to_error(received(to_status(CapacityError("full"), 1_500_000)))
    assert isinstance(error, CapacityError)
    assert error.retry_after == 1.5


@given(st.sampled_from(list(grpc.StatusCode)), st.binary(max_size=60))
def test_a_broken_detail_hides_no_error(code: grpc.StatusCode, wire: bytes) -> None:
    error = bare(code, wire)
    assert to_error(error).code is to_error(bare(code)).code


def test_a_status_without_words_is_named() -> None:
    assert str(to_error(bare(grpc.StatusCode.UNAVAILABLE, words=None))) == "UNAVAILABLE"


def test_a_retry_delay_survives_above_the_wires_range() -> None:
    status = to_status(CapacityError("full"), 2**40)
    assert to_detail(received(status)).retry_after_us == 2**32 - 1


def test_sentences_are_cut_to_fit_a_header() -> None:
    assert len(to_status(UserError("x" * 5000)).details) == MAX_MESSAGE_CHARS


def test_a_peers_sentence_is_one_line_that_no_terminal_obeys() -> None:
    forged = "no room\n2026-01-01T00:00:00.000Z I all is well\x1b]0;title\x07\r\u202e\x9b2J"
    error = to_error(bare(grpc.StatusCode.UNAVAILABLE, words=forged))
    assert str(error).isprintable()
    assert str(error).startswith("no room 2026-01-01T")


def test_the_server_puts_up_with_the_clients_pings() -> None:
    client, server = dict(channel_options()), dict(server_options())
    interval = "grpc.http2.min_ping_interval_without_data_ms"
    assert server[interval] < client["grpc.keepalive_time_ms"]
    for key in ("grpc.keepalive_permit_without_calls", "grpc.http2.max_pings_without_data"):
        assert client[key] == server[key]
