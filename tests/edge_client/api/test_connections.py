"""Connections without a request hold nobody up: each has a time, and all together have fewer places than the
process has descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from edge_client.api.connections import (
    MOST_CONNECTIONS,
    SELDOM,
    Patience,
    Seldom,
    most_connections,
)
from edge_client.api.listening import Listening
from tests.edge_client.api.small_daemon import app

pytestmark = pytest.mark.api

DESCRIPTORS = 64
HALF = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"
WHOLE = HALF + b"connection: close\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n{"
SHORT = Patience(head=0.2, body=0.2)
LONG = 3600.0


async def reading(scope: Any, receive: Any, send: Any) -> None:
    """An application that wants the whole body."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.request":
        await app(scope, receive, send)


async def connected(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.split(":")
    return await asyncio.open_connection(host, int(port))


async def answer(address: str, request: bytes) -> bytes:
    """All that comes until the connection is closed by the other side."""
    reader, writer = await connected(address)
    writer.write(request)
    found = b""
    with contextlib.suppress(ConnectionError):
        found = await reader.read()
    writer.close()
    return found


@pytest.mark.parametrize(
    ("patience", "request_"),
    [
        (Patience(head=0.02, body=LONG), b""),
        (Patience(head=0.02, body=LONG), HALF),
        (Patience(head=LONG, body=0.02), POST),
    ],
)
async def test_a_request_that_does_not_come_to_its_end_is_cut(patience: Patience, request_: bytes) -> None:
    async with Listening(reading, "127.0.0.1:0", patience=patience) as listening:
        assert await answer(listening.address, request_) == b""


async def test_a_second_request_of_a_connection_has_a_time_of_its_own() -> None:
    async with Listening(reading, "127.0.0.1:0", patience=SHORT) as listening:
        found = await answer(listening.address, HALF + b"\r\n" + HALF)
    assert found.count(b"200 OK") == 1


async def test_a_response_takes_as_long_as_it_takes() -> None:
    """And its connection rests after it for longer than a head may take. All timers are of one loop."""

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1.5 * SHORT.head)
        await reading(scope, receive, send)

    async with Listening(slow, "127.0.0.1:0", patience=SHORT) as listening:
        reader, writer = await connected(listening.address)
        for _ in range(2):
            writer.write(HALF + b"\r\n")
            assert await reader.readuntil(b"ok\n")
            await asyncio.sleep(1.5 * SHORT.head)
        writer.close()


async def test_a_handshake_that_does_not_come_to_its_end_is_cut(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    both = str(tmp_path / "both.pem")
    async with Listening(app, "127.0.0.1:0", cert=both, key=both, patience=SHORT) as listening:
        assert await answer(listening.address, b"\x16\x03\x01") == b""


async def test_few_descriptors_are_not_used_up_and_newcomers_are_served() -> None:
    """The log stays short, too."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.edge_client.api.small_daemon",
        str(DESCRIPTORS),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    silent = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
    for number in range(3 * DESCRIPTORS):
        silent.append(await connected(address))
        silent[-1][1].write((HALF, POST, b"")[number % 3])
    for _ in range(3):
        assert b"200 OK" in await answer(address, WHOLE)
    cut = silent[: 2 * DESCRIPTORS]
    for reader, _ in cut:
        with contextlib.suppress(ConnectionError):
            assert b"\r\n\r\n" in (await reader.read()) + b"\r\n\r\n"
    for _, writer in silent:
        writer.close()
    process.stdin.close()
    _, log = await process.communicate()
    assert process.returncode == 0
    assert len(log.splitlines()) < 10, log.decode()


async def test_connections_that_do_not_read_their_responses_make_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token is needed to ask again and again and to read nothing."""

    async def large(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/healthz":
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(512):
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})

    monkeypatch.setattr("edge_client.api.listening.most_connections", lambda: 3)
    async with Listening(large, "127.0.0.1:0") as listening, asyncio.timeout(10):
        deaf = [await connected(listening.address) for _ in range(3)]
        for _, writer in deaf:
            writer.write(b"GET /large HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        while b"200 OK" not in await answer(listening.address, WHOLE):
            pass
        for _, writer in deaf:
            writer.transport.abort()


def test_connections_get_half_of_the_descriptors_at_most() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for soft, most in ((200, 100), (min(before[1], 10_000), min(before[1] // 2, MOST_CONNECTIONS))):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
            assert most_connections() == most
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_same_warning_comes_seldom_and_errors_always() -> None:
    now = [0.0]
    seldom = Seldom(lambda: now[0])

    def passes(level: int, message: str) -> bool:
        return seldom.filter(logging.LogRecord("x", level, "", 0, message, (), None))

    assert [passes(logging.WARNING, "a") for _ in range(3)] == [True, False, False]
    assert passes(logging.WARNING, "b")
    assert all(passes(logging.ERROR, "c") for _ in range(2))
    now[0] = SELDOM
    assert passes(logging.WARNING, "a")
