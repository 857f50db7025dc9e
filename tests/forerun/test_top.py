"""`forerun top` against a real admin listener: once, as JSON, drawn anew, and when nobody is there."""

from __future__ import annotations

import argparse
import asyncio
import io
import json

import pytest

from cloud_verifier.admin import AdminServer
from forerun import top
from forerun.cli import main
from forerun.top import BACK, HOME, OTHER_SCREEN, AdminChannel
from tests.cloud_verifier.telemetry.desk import ask, begin, make
from tests.drivers.tiny import running

pytestmark = pytest.mark.grpc

NOBODY = "127.0.0.1:1"


def worker_with(*session_ids: str) -> AdminServer:
    worker = make()
    for session_id in session_ids:
        begin(worker, ask(session_id=session_id), tenant="acme")
    return AdminServer(worker.snapshot, "127.0.0.1:0")


async def command(*words: str) -> int:
    """`forerun top`, in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(main, ["top", *words])


async def test_once_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    async with worker_with("one", "two") as server:
        assert await command("--admin", server.address, "--once") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny   forerun")
    assert "sessions 2/64 (2 prefill)" in lines[0]
    assert [line.split()[:4] for line in lines[5:]] == [
        ["1", "one", "acme", "prefill"],
        ["2", "two", "acme", "prefill"],
    ]


async def test_once_as_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    async with worker_with("one") as server:
        assert await command("--admin", server.address, "--once", "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    document = json.loads(line)
    assert document["model"] == "tiny"
    assert [each["session_id"] for each in document["sessions"]] == ["one"]
    assert document["figures"]["kv_used_share"] == 0.0


async def test_nobody_there_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert await command("--admin", NOBODY, "--once") == 1
    error = capsys.readouterr().err
    assert f"no verifier's admin listener can be reached at {NOBODY}" in error
    assert "started with --admin?" in error


async def test_the_port_of_edges_does_not_answer_operators(capsys: pytest.CaptureFixture[str]) -> None:
    """Live sessions are on no listener that was not asked for."""
    async with running() as system:
        assert await command("--admin", system.address, "--once") == 2
    assert f"{system.address} is no admin listener" in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf"])
def test_a_nonsense_interval_is_named(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--admin", NOBODY, "--interval", interval]) == 2
    assert "--interval is" in capsys.readouterr().err


class Terminal(io.StringIO):
    """Counts what is drawn."""

    encoding = "ascii"

    def __init__(self) -> None:
        super().__init__()
        self.drawn = asyncio.Event()

    def flush(self) -> None:
        self.drawn.set()

    async def frame(self) -> str:
        """The next one, and none before it."""
        self.drawn.clear()
        self.seek(0)
        self.truncate()
        await asyncio.wait_for(self.drawn.wait(), 20)
        return self.getvalue()


OPTIONS = argparse.Namespace(interval=0.1, json=False, sort="pace")


async def test_each_look_takes_the_place_of_the_one_before() -> None:
    out = Terminal()
    async with worker_with("one", "日本") as server, AdminChannel(server.address) as channel:
        drawing = asyncio.create_task(top._redraw(channel, OPTIONS, out))
        await asyncio.wait_for(out.drawn.wait(), 20)
        assert out.getvalue().startswith(OTHER_SCREEN + HOME)
        frame = await out.frame()
        drawing.cancel()
        await asyncio.gather(drawing, return_exceptions=True)
    assert frame.startswith(HOME)
    assert frame.count("one") == 1
    assert "??" in frame, "what this terminal cannot show"
    assert out.getvalue().endswith(BACK)


async def test_a_verifier_that_goes_may_come_back() -> None:
    out = Terminal()
    async with worker_with("one") as first, AdminChannel(first.address) as channel:
        drawing = asyncio.create_task(top._redraw(channel, OPTIONS, out))
        assert "one" in await out.frame()
        await first.__aexit__()
        while "STREAM" in (frame := await out.frame()):
            pass
        assert f"no verifier's admin listener can be reached at {first.address}" in frame
        worker = make()
        begin(worker, ask(session_id="two"))
        async with AdminServer(worker.snapshot, first.address):
            while "STREAM" not in (frame := await out.frame()):
                pass
        drawing.cancel()
        await asyncio.gather(drawing, return_exceptions=True)
    assert "two" in frame
