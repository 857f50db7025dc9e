"""The API on real sockets: a port, a unix socket for its owner alone, streams that outlive connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.ports import free_port
from common.errors import UserError
from tests.edge_client.api.served import TOKEN, Served, served
from tests.edge_client.api.world import alone, events_of

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
    from edge_client.api.listening import Listening

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
        with pytest.raises(UserError, match="cannot listen"):
            async with Listening(app, listening.address, before=before):
                pass
    assert calls == ["before"]


async def test_a_stale_socket_makes_way_and_a_live_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "edge.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    async with served(f"unix:{path}"):
        with pytest.raises(UserError, match="another daemon serves"):
            async with served(f"unix:{path}"):
                pass
    path.write_text("a file")
    with pytest.raises(UserError, match="is no socket"):
        async with served(f"unix:{path}"):
            pass


async def test_a_port_in_use_is_the_users_error() -> None:
    async with served() as found:
        with pytest.raises(UserError, match="cannot listen on"):
            async with served(found.address):
                pass


@pytest.mark.parametrize("listen", ["127.0.0.1", "nowhere:80:80", "127.0.0.1:99999"])
async def test_an_address_that_is_none_is_the_users_error(listen: str) -> None:
    with pytest.raises(UserError):
        async with served(listen):
            pass


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
        state = await client.post(
            "/v1/streams/lookup", json={"conversation_ids": ["talk::tiny/model", "none"]}
        )
    assert read + rest.content == whole.content
    text = "".join(
        event["choices"][0]["delta"].get("content", "") for event in events_of(whole.text) if event["choices"]
    )
    assert text == alone(max_tokens=60, ignore_eos=True)
    (known,) = state.json()
    assert known["is_done"] is True
    assert known["total_bytes"] == len(whole.content)


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
        state = await client.post("/v1/streams/lookup", json={"conversation_ids": [name]})
        other = await client.post("/v1/chat/completions", json=LONG, headers={b"x-conversation-id": b"\xe9"})
    assert again.content == whole.content
    assert [each["conversation_id"] for each in state.json()] == [name]
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
            assert list(found.world.device.live)
            deleted = await client.delete("/v1/stream", params={"conv_id": "talk"})
            assert not found.world.device.live
        gone = await client.get("/v1/stream", params={"conv_id": "talk"})
        again = await client.delete("/v1/stream", params={"conv_id": "talk"})
    assert [deleted.status_code, gone.status_code, again.status_code] == [204, 404, 204]


async def test_a_name_in_use_is_a_conflict() -> None:
    name = {"x-conversation-id": "talk"}
    async with served(step_time=0.01) as found, asking(found) as client:
        async with client.stream(
            "POST", "/v1/chat/completions", json={**LONG, "max_tokens": 500}, headers=name
        ) as answer:
            await anext(answer.aiter_raw())
            second = await client.post("/v1/chat/completions", json=LONG, headers=name)
        await client.delete("/v1/stream", params={"conv_id": "talk"})
    assert second.status_code == 409


@pytest.mark.parametrize("query", ["from=-1", "from=x", "from=99999999", "from=1.5"])
async def test_a_place_that_is_none_is_refused(query: str) -> None:
    async with served() as found, asking(found) as client:
        await client.post(
            "/v1/chat/completions", json={**LONG, "max_tokens": 3}, headers={"x-conversation-id": "talk"}
        )
        answer = await client.get(f"/v1/stream?conv_id=talk&{query}")
    assert answer.status_code == 400


async def test_while_a_text_waits_its_connection_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_client.api.telling.KEEP_ALIVE_TIME", 0.01)
    async with served() as found, asking(found) as client, contextlib.AsyncExitStack() as stack:
        admission = found.world.device.admission
        for _ in range(admission.seats):
            await stack.enter_async_context(admission.place("somebody"))
        async with client.stream("POST", "/v1/chat/completions", json={**LONG, "max_tokens": 3}) as answer:
            seen = b""
            async for chunk in answer.aiter_raw():
                seen += chunk
                if b": waiting\n\n" in seen:
                    await stack.aclose()
    assert seen.endswith(b"data: [DONE]\n\n")


async def test_a_connection_that_sends_nothing_holds_nothing_up() -> None:
    async with served() as found, asking(found) as client:
        host, port = found.address.split(":")
        silent = socket.create_connection((host, int(port)))
        answer = await client.get("/healthz")
        silent.close()
    assert answer.status_code == 200


async def test_a_head_without_end_is_cut() -> None:
    async with served() as found:
        host, port = found.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"x" * 200_000)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
        writer.close()
    assert not answer or answer.startswith(b"HTTP/1.1 4")
