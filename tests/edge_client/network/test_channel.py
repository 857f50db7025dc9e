"""A connection that is given up ends the questions on it, and not the tasks that asked them. What cannot be
read is the verifier's fault."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from common.errors import PeerError, UnavailableError
from edge_client.network.channel import VerifierChannel, shares_machine
from tests import wording
from tests.edge_client.odd_verifier import odd_verifier
from tests.support.listener import listening
from tests.support.tiny import running

pytestmark = pytest.mark.grpc


@contextlib.asynccontextmanager
async def silent() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Where somebody accepts connections and says nothing; set when the first has come."""
    came = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await asyncio.Future()

    async with listening(accept) as address:
        yield address, came


async def test_questions_on_a_connection_that_is_given_up_have_no_answer() -> None:
    """gRPC raises `CancelledError` there, which would end whoever asks a verifier again and again."""
    async with asyncio.timeout(60), silent() as (address, came), VerifierChannel(address) as channel:
        described = asyncio.create_task(channel.describe(patience=50))
        answered = asyncio.create_task(channel._connection.answers(50))
        await came.wait()
        channel.renew()
        with wording.raises(UnavailableError):
            await described
        assert await answered is False


async def test_a_task_that_is_cancelled_while_it_asks_ends() -> None:
    async with asyncio.timeout(60), silent() as (address, came), VerifierChannel(address) as channel:
        questions = (channel.describe(patience=50), channel._connection.answers(50))
        tasks = [asyncio.create_task(each) for each in questions]
        await came.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)


@pytest.mark.parametrize(
    ("address", "rtt", "expected"),
    [
        ("127.0.0.1:50051", None, True),  # not measured yet
        ("127.0.0.1:50051", 0.0005, True),
        ("127.0.0.1:50051", 0.020, False),  # a tunnel, or an emulated link
        ("localhost:50051", 0.001, True),
        ("dns:///localhost:50051", 0.001, True),
        ("[::1]:50051", 0.001, True),
        ("10.0.0.7:50051", 0.0005, False),
        ("gpu.example.org:50051", None, False),
    ],
)
def test_a_near_verifier_at_a_loopback_address_shares_the_machine(
    address: str, rtt: float | None, expected: bool
) -> None:
    assert shares_machine(address, rtt) is expected


async def test_a_round_trip_is_measured_from_the_second_answer_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first takes a handshake, too."""
    async with running() as system, VerifierChannel(system.address) as channel:
        measured = list[float | None]()
        for _ in range(2):
            assert channel.shares_machine, "nothing is measured yet"
            await channel.describe()
            measured.append(channel.rtt)
        for limit in (60.0, 0.0):
            monkeypatch.setattr("edge_client.network.channel.SAME_MACHINE", limit)
            assert channel.shares_machine is (limit > 0)
        channel.renew()
        await channel.describe()
        measured.append(channel.rtt)
    first, second, third = measured
    assert first is None
    assert second is not None
    assert third == second, "the new connection's handshake was measured"


async def test_bytes_that_are_no_message_are_the_verifiers_fault() -> None:
    lost = asyncio.get_running_loop().create_future()
    async with odd_verifier(said=b"\xff" * 40) as (_, address), VerifierChannel(address) as channel:
        stream = channel.open(lambda message: None, lost.set_result)
        error = await lost
        await stream.finish()
    assert isinstance(error, PeerError)
    async with odd_verifier(b"\xff" * 40) as (_, address), VerifierChannel(address) as channel:
        with wording.raises(PeerError):
            await channel.describe()
