"""Laws of the link over real sockets on loopback. Times are lower bounds only; waits end by events."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.proxy import Bandwidth, Hold, Link, Toxic
from simulator.proxy.connection import Address
from simulator.proxy.toxics import Latency, SettingsError
from tests.support.listener import listening
from tests.support.ports import refusing
from tests.support.waiting import until

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that sends back what it gets, and its end after the client's."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def linked(*toxics: Toxic, handler: Handler = echo, seed: int = 0) -> AsyncIterator[Link]:
    """A link to a server of its own; fails instead of hanging."""
    async with asyncio.timeout(60):
        async with listening(handler) as address, Link.to(address, *toxics, seed=seed) as link:
            yield link


@asynccontextmanager
async def connected(link: Link) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection(link.address.host, link.address.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ask(peer: Peer, data: bytes) -> bytes:
    reader, writer = peer
    writer.write(data)
    return await reader.readexactly(len(data))


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What still came; a reset counts as an end."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def until_idle(link: Link) -> None:
    """Waits for all connections to close."""
    await until(lambda: link.counters.num_open == 0)


async def test_a_round_trip_takes_at_least_the_latency_of_both_ways() -> None:
    async with linked() as link, connected(link) as peer:
        await ask(peer, b"warm")
        link.rtt(40)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        assert await ask(peer, b"ping") == b"ping"
        assert loop.time() - began_at >= 0.04


@settings(max_examples=10, deadline=None)
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=30_000), min_size=1, max_size=8),
    jitter=st.floats(0, 3),
    rate=st.floats(1e4, 1e6),
)
async def test_bytes_arrive_unchanged_in_order_and_the_end_after_them(
    chunks: list[bytes], jitter: float, rate: float
) -> None:
    async with (
        linked(Latency(1, jitter=jitter), Bandwidth(rate)) as link,
        connected(link) as (reader, writer),
    ):
        for chunk in chunks:
            writer.write(chunk)
            await asyncio.sleep(0)
        writer.write_eof()
        assert await reader.read() == b"".join(chunks)
        await until_idle(link)


async def test_a_held_direction_goes_on_where_it_stopped() -> None:
    async with linked() as link, connected(link) as peer:
        await ask(peer, b"before")
        link.add_toxic(Hold(name="tunnel"))
        answer = asyncio.create_task(ask(peer, b"inside"))
        await until(lambda: link.counters.downstream.num_bytes == len(b"beforeinside"))
        assert not answer.done()
        link.remove_toxic("tunnel")
        assert await answer == b"inside"


@pytest.mark.parametrize("reset", [True, False])
async def test_cut_ends_every_connection_and_new_ones_work(reset: bool) -> None:
    async with linked() as link, connected(link) as first, connected(link) as second:
        await ask(first, b"a")
        await ask(second, b"b")
        assert link.cut(reset=reset) == 2
        for reader, _ in (first, second):
            if reset:
                with pytest.raises(ConnectionResetError):
                    await reader.read()
            else:
                assert await reader.read() == b""
        await until_idle(link)
        async with connected(link) as third:
            assert await ask(third, b"c") == b"c"


async def test_a_disabled_link_refuses_keeps_what_is_open_and_comes_back_at_its_address() -> None:
    async with linked() as link, connected(link) as peer:
        await ask(peer, b"before")
        address = link.address
        for _ in range(2):
            await link.disable()
            assert not link.enabled
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(address.host, address.port)
            assert await ask(peer, b"still") == b"still"
            await link.enable()
            assert link.address == address
            async with connected(link) as another:
                assert await ask(another, b"back") == b"back"


def test_an_unreachable_server_closes_the_client_and_is_logged_in_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(gone: str) -> None:
        async with asyncio.timeout(60), Link.to(gone) as link:
            async with connected(link) as (reader, _):
                assert await ended(reader) == b""
            await until_idle(link)

    with refusing() as gone, caplog.at_level(logging.ERROR):
        asyncio.run(scene(gone))
    assert f"the server at {gone} cannot be reached" in caplog.text


# Addresses and settings


@pytest.mark.parametrize(
    "text", ["", "80", ":80", "host", "host:", "host:http", "host:-1", "host:65536", "::1:80"]
)
def test_an_address_that_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"address"):
        Address.parse(text)
