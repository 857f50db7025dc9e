"""`forerun top` against a verifier's port and a real daemon: once, as JSON, and when nobody is there."""

import asyncio
import json
from pathlib import Path

import pytest

from cloud_verifier.telemetry.http_server import HttpServer
from edge_client.process.client import LocalClient
from forerun.cli import main
from tests import wording
from tests.cloud_verifier.telemetry.desk import ask, begin, make
from tests.edge_client.api.served import TOKEN
from tests.forerun import beside
from tests.support.listener import listening
from tests.support.tiny import running

pytestmark = pytest.mark.grpc

NOBODY = "127.0.0.1:1"


def worker_with(*session_ids: str) -> HttpServer:
    worker = make()
    for session_id in session_ids:
        begin(worker, ask(session_id=session_id), tenant="acme")
    return HttpServer(worker.snapshot, worker.scheduler.why_not_ready, "127.0.0.1", 0)


async def command(*words: str) -> int:
    """`forerun top`, in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(main, ["top", *words])


async def test_once_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    async with worker_with("one", "two") as server:
        assert await command("--http", f"127.0.0.1:{server.port}", "--once") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny   forerun")
    assert "sessions 2/64 (2 prefill)" in lines[0]
    assert [line.split()[:4] for line in lines[5:]] == [
        ["1", "one", "acme", "prefill"],
        ["2", "two", "acme", "prefill"],
    ]


async def test_once_as_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    async with worker_with("one") as server:
        assert await command("--http", f"127.0.0.1:{server.port}", "--once", "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    document = json.loads(line)
    assert document["model"] == "tiny"
    assert [each["session_id"] for each in document["sessions"]] == ["one"]
    assert document["figures"]["kv_used_share"] == 0.0


async def test_nobody_there_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert await command("--http", NOBODY, "--once") == 1
    wording.keep(capsys.readouterr().err)


async def test_the_port_of_edges_does_not_answer_operators(capsys: pytest.CaptureFixture[str]) -> None:
    """Live sessions are on no listener that was not asked for."""
    async with running() as system:
        assert await command("--http", system.address, "--once") == 1
    wording.keep(capsys.readouterr().err)


@pytest.mark.parametrize("told", ["[]", "{}", '"text"', '{"sessions": [{}], "totals": {}, "slots": {}}'])
async def test_an_answer_of_another_form_is_a_sentence(told: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(told)}\r\n\r\n"
        writer.write(head.encode() + told.encode())

    async with listening(answer) as address:
        assert await command("--http", address, "--once") == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


BODY = {"prompt": "abc", "max_tokens": 200, "ignore_eos": True, "stream": True, "user": "me"}


@pytest.mark.api
async def test_a_daemons_texts_are_shown_while_they_are_written(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await beside.command("top", "--once") == 1
    assert "no edge daemon is running" in capsys.readouterr().err
    async with beside.daemon(state, step_time=0.2) as served:
        assert await beside.command("top", "--once", "--json") == 0
        document = json.loads(capsys.readouterr().out)
        assert document == {"status": {"mode": "ahead"}, "texts": [], "waiting": 0}
        events = LocalClient(served.address, TOKEN).events("/v1/completions", BODY)
        await asyncio.to_thread(next, events)
        (name,) = served.world.texts.live
        assert await beside.command("top", "--once") == 0
        mode, count, _, titles, line = capsys.readouterr().out.splitlines()
        await asyncio.to_thread(events.close)  # type: ignore[attr-defined]  # a generator
    assert (mode, count) == ("mode: ahead", "texts: 1 under way, 0 waiting")
    assert titles.startswith("ID")
    assert line.split()[:3] == [name[:27] + "…" if len(name) > 28 else name, "me", "ahead"]
