"""The port to the broker tells what aiomqtt hides, in words, and holds whatever a broker sends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ports import refusing
from common.errors import LocalError, UserError
from edge_client.fleet.settings import BrokerSettings
from edge_client.fleet.words import BrokerError, DeniedError
from tests.edge_client.fleet.broker import Listener, broker
from tests.edge_client.fleet.flood import packet, read, text

pytestmark = pytest.mark.broker

CONNACK = packet(0x20, b"\0\0\0")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def settings(port: int, **more: Any) -> BrokerSettings:
    return BrokerSettings("127.0.0.1", port, **({"tls": False, "timeout": 5.0} | more))


async def failure(address: BrokerSettings) -> str:
    """Why no connection can be made."""
    from edge_client.fleet.mqtt import Connection

    with pytest.raises(BrokerError) as found:
        async with Connection(address, "pi-1", lambda *_: None, address.context()):
            pass
    return str(found.value)


@contextlib.asynccontextmanager
async def hostile(serve: Serve) -> AsyncIterator[int]:
    """A server that says what it likes once somebody has said hello; its port."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.write(CONNACK)
        await serve(reader, writer)

    async with serving(greet) as port:
        yield port


@contextlib.asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    """A server; its port. All its connections are over at the end."""
    ended = list[asyncio.Event]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(asyncio.Event())
        over = ended[-1]
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        over.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    for over in ended:
        await over.wait()


async def test_a_denied_publish_is_an_error_and_the_connection_goes_on(tmp_path: Path) -> None:
    from edge_client.fleet.mqtt import Connection

    with broker(tmp_path, rules="topic readwrite mine\n") as found:
        ear = Listener()
        async with Connection(settings(found.port), "pi-1", ear.on_message, None) as connection:
            with pytest.raises(
                DeniedError, match=r"does not let this client publish to yours .*Not authorized"
            ):
                await connection.publish("yours", b"x")
            assert await connection.subscribe("mine")
            await connection.publish("mine", b"x")
            await ear.until(lambda: ear.heard == [("mine", b"x")])


async def test_what_is_too_large_does_not_leave(tmp_path: Path) -> None:
    from edge_client.fleet.mqtt import Connection

    with broker(tmp_path) as found:
        async with Connection(settings(found.port), "pi-1", lambda *_: None, None) as connection:
            with pytest.raises(LocalError, match="8192 is the most"):
                await connection.publish("mine", bytes(8193))


async def test_certificates_are_asked_for_and_given(tmp_path: Path) -> None:
    from edge_client.fleet.mqtt import Connection
    from tests.edge_client.fleet.world import certificates

    pems = tmp_path / "pems"
    certificates(pems, "pi-1")
    certificates(tmp_path / "others")
    with broker(tmp_path / "broker", certificates=pems) as found:
        bare = settings(found.port, tls=True, ca=pems / "ca.pem")
        assert "certificate required" in await failure(bare)
        assert "its certificate is not trusted" in await failure(
            replace(bare, ca=tmp_path / "others" / "ca.pem")
        )
        full = replace(bare, certificate=pems / "pi-1.pem", key=pems / "pi-1.key")
        ear = Listener()
        async with Connection(full, "pi-1", ear.on_message, full.context()) as connection:
            assert await connection.subscribe("mine")
            for number in range(50):  # more than one TLS record holds
                await connection.publish("mine", bytes([number]) * 2000)
            await ear.until(lambda: len(ear.heard) == 50)
        with pytest.raises(UserError, match="cannot be used"):
            replace(full, key=pems / "server.key").context()


async def test_a_broker_without_tls_and_one_with_it_are_told_apart(tmp_path: Path) -> None:
    with broker(tmp_path) as found:
        assert "is TLS on at both ends" in await failure(settings(found.port, tls=True))


async def test_nothing_there_and_no_such_host_have_words() -> None:
    with refusing() as address:
        assert "nothing listens there" in await failure(settings(int(address.rpartition(":")[2])))
    assert "there is no host" in await failure(BrokerSettings("host.invalid", 1, tls=False))


def wanting_to_write() -> tuple[Any, socket.socket, socket.socket]:
    """paho, its socket, which the event loop is to watch from its next turn on, and the other end of that."""
    from edge_client.fleet.mqtt import Connection

    client = Connection(settings(1), "pi-1", lambda *_: None, None)._client
    here, there = socket.socketpair()
    client._paho._sock, client._paho._registered_write = here, True
    client._on_socket_register_write(None, None, here)
    return client._paho, here, there


async def test_a_socket_that_closed_before_it_was_watched_leaves_its_number_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another file has it by then."""
    _, here, there = wanting_to_write()
    number = here.fileno()
    here.close()
    with there:
        os.dup2(there.fileno(), number)
        try:
            await asyncio.sleep(0)
            assert not asyncio.get_running_loop().remove_writer(number)
        finally:
            os.close(number)
    assert not caplog.records


async def test_a_socket_that_has_written_all_is_not_watched() -> None:
    """It wanted to, and was done before its turn came: it would be called at every turn of the loop."""
    paho, here, there = wanting_to_write()
    with here, there:
        paho.loop_write()
        await asyncio.sleep(0)
        assert not asyncio.get_running_loop().remove_writer(here.fileno())


async def test_a_socket_that_wrote_all_while_it_began_to_be_watched_is_not_for_long() -> None:
    """paho connects in a thread of its own, and may have written between a look and what follows from it."""
    paho, here, there = wanting_to_write()
    with here, there:
        await asyncio.sleep(0)
        paho._registered_write = False
        for _ in range(3):
            await asyncio.sleep(0)
        assert not asyncio.get_running_loop().remove_writer(here.fileno())


async def test_silence_is_an_end_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        assert "no answer within 0.2 s" in await failure(settings(port, timeout=0.2))


async def test_a_broker_that_refuses_says_why() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.write(packet(0x20, bytes([0, 0x87, 0])))

    async with serving(serve) as port:
        words = await failure(settings(port))
    assert "not authorized" in words


async def lost(port: int, **more: Any) -> BrokerError:
    """Why a connection that was made has ended."""
    from edge_client.fleet.mqtt import Connection

    async with (
        asyncio.timeout(30),
        Connection(settings(port, **more), "pi-1", lambda *_: None, None) as connection,
    ):
        return await connection.lost()


async def test_a_packet_without_end_is_cut_and_not_kept() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x30\xff\xff\xff\x7f")  # 256 MB follow
        while True:
            writer.write(bytes(65536))
            await writer.drain()

    async with hostile(endless) as port:
        assert "larger than this client allows" in str(await lost(port))


async def test_messages_that_are_begun_and_never_finished_do_not_pile_up() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(1, 65535):
            writer.write(packet(0x34, text("mine") + number.to_bytes(2, "big") + b"\0" + bytes(1000)))
            await writer.drain()

    async with hostile(half) as port:
        assert "does not finish them" in str(await lost(port))


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 100, b"\x00" * 100, packet(0x32, b"\xff\xff"), packet(0x90, b""),
     packet(0x40, b"\0\1\xff\xff"),
     packet(0x32, b"\0\4\xff\xfe\xfd\xfc\0\1\0x"), packet(0xE0, b"\x8b\0")],
)  # fmt: skip
async def test_garbage_ends_the_connection_or_is_passed_over_and_raises_nothing(garbage: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(garbage)
        await writer.drain()

    async with hostile(serve) as port:
        assert isinstance(await lost(port), BrokerError)


async def test_a_disconnect_with_a_reason_is_told_in_words() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(packet(0xE0, b"\x8e\0"))
        await writer.drain()
        await reader.read()

    async with hostile(serve) as port:
        error = await lost(port)
    assert error.taken_over
    assert "another process connected with this device's name" in str(error)


async def test_an_acknowledgement_that_never_comes_ends_the_connection() -> None:
    from edge_client.fleet.mqtt import Connection

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with hostile(mute) as port:
        address = settings(port, timeout=1.0)  # it must do for the greeting, on a busy machine, too
        async with Connection(address, "pi-1", lambda *_: None, None) as connection:
            with pytest.raises(BrokerError, match="did not answer in time"):
                await connection.publish("mine", b"x")
            with pytest.raises(BrokerError):
                await connection.publish("mine", b"x")


def test_a_flood_is_read_at_its_rate_after_the_burst() -> None:
    from edge_client.fleet.mqtt import Throttle

    it = Throttle(rate=100.0, burst=3)
    assert [it.on_message(10.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert it.on_message(10.0) == 0.05  # one too many, 10 ms; not worth less than 50
    pauses = [it.on_message(10.0) for _ in range(9)]
    assert pauses[-1] == pytest.approx(0.1)
    assert it.num_pauses == 10
    assert it.on_message(20.0) == 0.0
