"""Law: the two sides' options fit each other, and errors cross a real connection that uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from common.errors import CapacityError, Code, PeerError, UserError
from common.messages import Commit, Open, Propose
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc as pb_grpc
from common.rpc.codec import decode_request, decode_response, encode_request, encode_response
from common.rpc.options import channel_options, server_options, session_bytes
from common.rpc.status import StatusDetail, to_detail, to_error, to_status
from common.sampling import SamplingParams

OPEN = Open((1, 2, 3), SamplingParams(), bytes(32))


def test_the_server_puts_up_with_the_clients_pings() -> None:
    client, server = dict(channel_options()), dict(server_options())
    interval = "grpc.http2.min_ping_interval_without_data_ms"
    assert server[interval] < client["grpc.keepalive_time_ms"]
    for key in ("grpc.keepalive_permit_without_calls", "grpc.http2.max_pings_without_data"):
        assert client[key] == server[key]


def test_what_one_side_sends_the_other_takes() -> None:
    server = dict(server_options(message_bytes=session_bytes(10_000_000)))
    client, receive, send = (
        dict(channel_options()),
        "grpc.max_receive_message_length",
        "grpc.max_send_message_length",
    )
    assert (client[receive], server[receive]) == (server[send], client[send])
    algorithms = "grpc.compression_enabled_algorithms_bitset"
    assert client[algorithms] == server[algorithms] == 1, (
        "compressed messages cost the receiver more than they have"
    )


def test_a_port_is_shared_only_if_asked() -> None:
    assert dict(server_options())["grpc.so_reuseport"] == 0
    assert dict(server_options(reuse_port=True))["grpc.so_reuseport"] == 1


def test_no_option_is_set_twice() -> None:
    for options in (channel_options(), server_options()):
        assert len(dict(options)) == len(options)


class Echo(pb_grpc.VerifierServiceServicer):
    """Commits the tokens of each Propose; a Propose without tokens finds no room."""

    async def Session(
        self, requests: AsyncIterator[pb.SessionRequest], context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[pb.SessionResponse]:
        try:
            async for request in requests:
                message = decode_request(request)
                if isinstance(message, Propose):
                    if not message.tokens:
                        raise CapacityError("all slots are taken; try later")
                    yield encode_response(Commit(3, message.tokens))
        except (PeerError, UserError) as error:
            await context.abort(*to_status(error))
        except CapacityError as error:
            await context.abort(*to_status(error, StatusDetail(retry_after_us=250_000)))


async def converse(*requests: pb.SessionRequest) -> tuple[list[object], grpc.aio.AioRpcError | None]:
    """Send everything over a loopback connection; what came back, or the error that ended it."""
    server = grpc.aio.server(options=server_options())
    pb_grpc.add_VerifierServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel:
            call = pb_grpc.VerifierServiceStub(channel).Session(iter(requests))
            return [decode_response(response) async for response in call], None
    except grpc.aio.AioRpcError as error:
        return [], error
    finally:
        await server.stop(None)


@pytest.mark.grpc
async def test_messages_cross_a_connection() -> None:
    propose = Propose((7, 8), b"\0\0", anchor=2)
    answers, error = await converse(encode_request(OPEN), encode_request(propose))
    assert error is None
    assert answers == [Commit(3, (7, 8))]


@pytest.mark.grpc
async def test_an_error_and_its_detail_cross_a_connection() -> None:
    _, error = await converse(encode_request(OPEN), encode_request(Propose()))
    assert error is not None
    full = to_error(error)
    assert isinstance(full, CapacityError)
    assert (str(full), full.retry_after) == ("all slots are taken; try later", 0.25)
    assert to_detail(error) == StatusDetail(retry_after_us=250_000)


@pytest.mark.grpc
async def test_a_bad_temperature_arrives_as_the_users_error() -> None:
    bad = pb.SessionRequest(open=pb.Open(prompt=[1], sampling=pb.Sampling(temperature=-1)))
    _, error = await converse(bad)
    assert error is not None
    arrived = to_error(error)
    assert type(arrived) is UserError
    assert arrived.code is Code.INVALID_ARGUMENT
    assert str(arrived) == "temperature is -1.0; it must lie in [0.0, 100.0]"
