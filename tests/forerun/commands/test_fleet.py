"""`forerun fleet` against a real broker and a real device."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edge_client.process import run_file as daemon_file
from edge_client.process.run_file import this_process
from forerun.cli import main
from tests.edge_client.fleet.broker import broker
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.edge_client.fleet.world import World

pytestmark = pytest.mark.broker


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    from tests.edge_client.fleet.world import World

    with broker(tmp_path) as found:
        monkeypatch.setenv("FORERUN_EDGE_FLEET_BROKER", f"mqtt://127.0.0.1:{found.port}")
        monkeypatch.setenv("FORERUN_EDGE_FLEET_TENANT", "acme")
        monkeypatch.setenv("FORERUN_EDGE_FLEET_DEVICE", "operator")
        yield World(tmp_path, found)


@pytest.fixture
def device(world: World) -> Iterator[World]:
    """A device in a thread of its own, connected until the test ends: the command line has its own loop."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    done = asyncio.Event()

    async def live() -> None:
        async with world.device() as fleet:
            await until(lambda: fleet.status()["connected"])
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()))
    thread.start()
    assert ready.wait(30)
    yield world
    loop.call_soon_threadsafe(done.set)
    thread.join()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def shown(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return what `status --json` prints."""
    capsys.readouterr()
    assert main(["fleet", "status", "--json", "--wait", "0.3"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_device_is_shown_and_steered(device: World, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = {}
    while not found:
        found = next(iter(shown(capsys)), {})
    assert [found[name] for name in ("device", "state", "draft", "mode")] == [
        "pi-1",
        "online",
        "demo",
        "ahead",
    ]
    order = ["draft.policy=chain", "--kill", "draft_off", "--days", "1", "--key", str(device.folder / "key")]
    assert main(["fleet", "publish", *order]) == 0
    while "applied" not in found:
        (found,) = shown(capsys)
    assert found["kill"] == "draft_off"
    assert main(["fleet", "status", "--wait", "0.3"]) == 0
    titles, row = capsys.readouterr().out.splitlines()
    cells = dict(zip(titles.split(), row.split(), strict=True))
    assert (cells["DEVICE"], cells["KILL"], cells["APPLIED"]) == ("pi-1", "draft_off", str(found["applied"]))


def test_without_a_device_the_table_is_a_sentence(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "status", "--wait", "0.1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["depth"], "depth"),
        (["draft.policy=[1]"], "draft.policy"),
        (["draft.policy=null"], "draft.policy"),
        (["draft.policy=wild"], "draft.policy"),
        (["api.listen=0.0.0.0:80"], "api.listen"),
        (["--key", "none"], "none"),
    ],
)
def test_what_no_device_takes_is_not_published(
    world: World, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", "publish", "--key", str(world.folder / "key"), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_without_a_broker_the_setting_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.toml").write_text("")
    assert main(["fleet", "status", "--config", str(tmp_path / "empty.toml")]) == 2
    assert "fleet.broker" in capsys.readouterr().err


def test_what_strangers_write_neither_breaks_nor_reaches_the_terminal() -> None:
    from forerun.commands.fleet import Roster

    roster, online = Roster(), b'{"state":"online","at":1}'
    for place, payload in (
        ("forerun/v1/acme/pi-1/status", online),
        ("forerun/v1/acme/pi-3/status", b'{"drafted":"x","rtt_ms":"y","accepted":[1]}'),
        ("forerun/v1/acme/pi-2/status", b'{"state":"\\u001b[2J","at":"long ago"}'),
        ("forerun/v1/acme/\x1b[2J/status", online),
        ("forerun/v1/acme/other/status", b"{"),
    ):
        roster.on_message(place, payload)
    rows = [roster.row(device) for device in roster.reports]
    assert [row[:2] for row in rows] == [["pi-1", "online"], ["pi-3", "-"], ["pi-2", "-"]]
    assert "\x1b" not in str([*rows, *map(roster.as_json, roster.reports)])


def test_the_running_daemons_broker_is_used(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if only its command line names one; nobody listens there."""
    assert main(["fleet", "status"]) == 2
    flags = {"fleet.broker": "mqtt://127.0.0.1:1", "fleet.tenant": "acme", "fleet.device": "one"}
    told = json.dumps({"flags": flags, "config": None})
    record = this_process(started_at=0.0, listen="127.0.0.1:1", version="1.2.3", flags=told)
    daemon_file.write(state / "edge.pid", record)
    assert main(["fleet", "status"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
