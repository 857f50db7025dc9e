"""The API on real sockets: streams outlive connections, and connections without a request hold nobody up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.errors import UserError
from edge_client.api.listening import Listening
from tests import wording
from tests.edge_client.api.served import TOKEN, Served, served
from tests.edge_client.api.small_daemon import app
from tests.edge_client.api.world import alone, events_of
from tests.support.ports import free_port

pytestmark = [pytest.mark.api, pytest.mark.grpc]

AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}
LONG = {
    "messages": [{"role": "user", "content": "abc"}],
    "stream": True,
    "temperature": 0,
    "ignore_eos": True,
}


def asking(found: Served, **more: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{found.address}", headers=AUTHORIZED, timeout=60, **more)


async def test_a_unix_socket_is_its_owners_alone_and_needs_no_token(tmp_path: Path) -> None:
    path = tmp_path / "edge.sock"
    async with served(f"unix:{path}"):
        mode = path.stat().st_mode
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://edge") as client:
            answer = await client.get("/v1/models")
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) & 0o077 == 0
    assert answer.status_code == 200
    assert not path.exists()


async def test_nobody_is_let_in_before_what_must_be_there_is(tmp_path: Path) -> None:
    """And it is not begun by a daemon that cannot have the address."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nobody asks")

    def before() -> None:
        with socket.socket() as early, pytest.raises(ConnectionRefusedError):
            early.connect(("127.0.0.1", port))
        calls.append("before")

    port = free_port()
    calls = list[str]()
    async with Listening(app, f"127.0.0.1:{port}", before=before) as listening:
        assert calls == ["before"]
        with wording.raises(UserError):
            async with Listening(app, listening.address, before=before):
                pass
    assert calls == ["before"]
    for listen in ("127.0.0.1", "nowhere:80:80", "127.0.0.1:99999"):
        with pytest.raises(UserError):
            async with Listening(app, listen):
                pass


async def test_a_stale_socket_makes_way_and_a_live_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "edge.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    async with served(f"unix:{path}"):
        with wording.raises(UserError):
            async with served(f"unix:{path}"):
                pass
    path.write_text("a file")
    with wording.raises(UserError):
        async with served(f"unix:{path}"):
            pass


async def test_a_defect_is_answered_without_its_words_and_ends_no_other_request() -> None:
    def broken() -> str:
        raise ZeroDivisionError("its own words")

    async with served() as found, asking(found) as client:
        found.world.api._ready = broken
        answer = await client.get("/readyz")
        other = await client.get("/healthz")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "words" not in answer.text
    assert other.status_code == 200


async def test_a_named_stream_goes_on_without_its_reader_and_is_read_again_from_any_byte() -> None:
    name = {"x-conversation-id": "talk::tiny/model"}
    async with served(step_time=0.003) as found, asking(found) as client:
        read = b""
        async with client.stream(
            "POST", "/v1/chat/completions", json={**LONG, "max_tokens": 60}, headers=name
        ) as answer:
            async for chunk in answer.aiter_raw():
                read += chunk
                if len(read) > 600:
                    break
        where = {"conv_id": "talk::tiny/model", "from": str(len(read))}
        rest = await client.get("/v1/stream", params=where)
        whole = await client.get("/v1/stream", params={**where, "from": "0"})
    assert read + rest.content == whole.content
    text = "".join(
        event["choices"][0]["delta"].get("content", "") for event in events_of(whole.text) if event["choices"]
    )
    assert text == alone(max_tokens=60, ignore_eos=True)


async def test_a_repeated_request_goes_on_after_the_last_event_it_has_seen() -> None:
    name = {"x-conversation-id": "talk"}
    body = {**LONG, "max_tokens": 30}
    async with served() as found, asking(found) as client:
        whole = (await client.post("/v1/chat/completions", json=body, headers=name)).content
        events = whole.split(b"\n\n")[:-1]
        again = await client.post("/v1/chat/completions", json=body, headers={**name, "last-event-id": "5"})
        by_get = await client.get("/v1/stream", params={"conv_id": "talk"}, headers={"last-event-id": "5"})
    assert again.content == by_get.content == b"\n\n".join(events[5:]) + b"\n\n"


async def test_a_name_is_utf_8_wherever_it_stands() -> None:
    name = "gespräch é 对话"
    async with served() as found, asking(found) as client:
        whole = await client.post(
            "/v1/chat/completions",
            json={**LONG, "max_tokens": 3},
            headers={b"x-conversation-id": name.encode()},
        )
        again = await client.get("/v1/stream", params={"conv_id": name})
        other = await client.post("/v1/chat/completions", json=LONG, headers={b"x-conversation-id": b"\xe9"})
    assert again.content == whole.content
    assert other.status_code == 400


async def test_deleting_a_stream_ends_its_text() -> None:
    name = {"x-conversation-id": "talk"}
    async with served(step_time=0.01) as found, asking(found) as client:
        async with client.stream(
            "POST", "/v1/chat/completions", json={**LONG, "max_tokens": 500}, headers=name
        ) as answer:
            async for chunk in answer.aiter_raw():
                if b'"mode"' in chunk:  # the text has begun
                    break
            assert list(found.world.texts.live)
            second = await client.post("/v1/chat/completions", json=LONG, headers=name)
            deleted = await client.delete("/v1/stream", params={"conv_id": "talk"})
            assert not found.world.texts.live
        gone = await client.get("/v1/stream", params={"conv_id": "talk"})
        again = await client.delete("/v1/stream", params={"conv_id": "talk"})
    assert second.status_code == 409
    assert [deleted.status_code, gone.status_code, again.status_code] == [204, 404, 204]


async def test_a_place_that_is_none_is_refused() -> None:
    async with served() as found, asking(found) as client:
        await client.post(
            "/v1/chat/completions", json={**LONG, "max_tokens": 3}, headers={"x-conversation-id": "talk"}
        )
        for place in ("-1", "x", "99999999", "1.5"):
            answer = await client.get("/v1/stream", params={"conv_id": "talk", "from": place})
            assert answer.status_code == 400, place


async def test_while_a_text_waits_its_connection_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_client.api.text_streams.KEEP_ALIVE_TIME", 0.01)
    async with served() as found, asking(found) as client, contextlib.AsyncExitStack() as stack:
        admission = found.world.texts.admission
        for _ in range(admission.seats):
            await stack.enter_async_context(admission.place("somebody"))
        async with client.stream("POST", "/v1/chat/completions", json={**LONG, "max_tokens": 3}) as answer:
            seen = b""
            async for chunk in answer.aiter_raw():
                seen += chunk
                if b": waiting\n" in seen:
                    await stack.aclose()
    assert seen.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("headers", [{}, {"x-conversation-id": "talk"}])
async def test_who_reads_a_text_when_the_daemon_stops_is_told(headers: dict[str, str]) -> None:
    async with served(step_time=0.005) as found, asking(found) as client:
        whole = asyncio.create_task(client.post("/v1/chat/completions", json={**LONG, "stream": False}))
        async with client.stream("POST", "/v1/chat/completions", json=LONG, headers=headers) as answer:
            seen = b""
            async for chunk in answer.aiter_raw():
                if not seen:
                    found.world.api.stop()
                seen += chunk
        refused = await whole
    last = json.loads(seen.split(b"\n\n")[-2].partition(b"data: ")[2])
    assert last["error"]["code"] == "daemon_stopping"
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "daemon_stopping")


# Connections ------------------------------------------------------------------------------------------------

DESCRIPTORS = 512  # the kernel hands over up to 128 connections at once
HALF = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"
WHOLE = HALF + b"connection: close\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n{"
SHORT = 0.2


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


@pytest.mark.parametrize("request_", [b"", HALF, HALF + b"x: " + b"x" * 200_000, POST])
async def test_a_request_that_does_not_come_to_its_end_is_cut(request_: bytes) -> None:
    async with Listening(reading, "127.0.0.1:0", request_time=0.02) as listening:
        told, _, _ = (await answer(listening.address, request_)).partition(b"\r\n")
    assert told in (b"", b"HTTP/1.1 400 Bad Request")


async def test_a_second_request_of_a_connection_has_a_time_of_its_own() -> None:
    async with Listening(reading, "127.0.0.1:0", request_time=SHORT) as listening:
        reader, writer = await connected(listening.address)
        writer.write(HALF + b"\r\n")
        assert await reader.readuntil(b"ok\n")
        writer.write(HALF)
        assert await reader.read() == b""
        writer.close()


async def test_a_response_takes_as_long_as_it_takes() -> None:
    """And its connection rests after it for longer than a head may take. All timers are of one loop."""

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1.5 * SHORT)
        await reading(scope, receive, send)

    async with Listening(slow, "127.0.0.1:0", request_time=SHORT) as listening:
        reader, writer = await connected(listening.address)
        for _ in range(2):
            writer.write(HALF + b"\r\n")
            assert await reader.readuntil(b"ok\n")
            await asyncio.sleep(1.5 * SHORT)
        writer.close()


async def test_silent_connections_use_up_neither_descriptors_nor_the_log() -> None:
    """Newcomers are served as soon as silent ones are cut."""
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
    silent = [await connected(address) for _ in range(DESCRIPTORS)]
    for number, (_, writer) in enumerate(silent):
        writer.write((HALF, POST, b"")[number % 3])
    for _ in range(100):
        if b"200 OK" in await answer(address, WHOLE):
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("newcomers are not served")
    for reader, writer in silent:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
    process.stdin.close()
    _, log = await process.communicate()
    assert process.returncode == 0
    assert len(log.splitlines()) < 10, log.decode()
