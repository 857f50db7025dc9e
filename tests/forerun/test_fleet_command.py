"""`forerun fleet` against a real broker and a real device: every action, and its sentences when it fails."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.ports import refusing
from forerun.cli import main
from tests.edge_client.fleet.broker import RULES, broker

if TYPE_CHECKING:
    from edge_client.fleet.fleet import Fleet
    from tests.edge_client.fleet.world import World

pytestmark = pytest.mark.broker


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    from tests.edge_client.fleet.world import World

    with broker(tmp_path) as found:
        monkeypatch.setenv("FORERUN_FLEET_BROKER", f"127.0.0.1:{found.port}")
        monkeypatch.setenv("FORERUN_FLEET_TENANT", "acme")
        monkeypatch.setenv("FORERUN_FLEET_TLS", "0")
        monkeypatch.setenv("FORERUN_FLEET_KEY", str(tmp_path / "key"))
        yield World(tmp_path, found)


@pytest.fixture
def device(world: World) -> Iterator[World]:
    """A device in a thread of its own, connected until the test ends: the command line has its own loop."""
    from tests.edge_client.fleet.world import until

    ready, loop = threading.Event(), asyncio.new_event_loop()
    done = asyncio.Event()

    async def live() -> None:
        async with world.device() as fleet:
            found: Fleet = fleet
            await until(lambda: found.status().connected)
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


def test_a_device_is_listed_steered_and_commanded(device: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "list", "--json", "--wait", "0.3"]) == 0
    (found,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (found["device"], found["state"], found["draft"], found["mode"]) == (
        "pi-1",
        "online",
        "demo",
        "idle",
    )
    assert main(["fleet", "set", "draft.depth=4", "draft.name=demo", "--device", "pi-1"]) == 0
    assert "pi-1 has taken revision" in capsys.readouterr().out
    assert main(["fleet", "set", "api.key=x", "--device", "pi-1"]) == 2
    assert "api.key: forbidden_key); what it had before stands" in capsys.readouterr().err
    assert main(["fleet", "command", "ping", "--device", "pi-1"]) == 0
    assert "pi-1 has done ping" in capsys.readouterr().out
    assert main(["fleet", "command", "shell", "--device", "pi-1"]) == 2
    assert "pi-1 answered unknown to shell" in capsys.readouterr().err
    assert main(["fleet", "kill", "halt", "--expires", "1h"]) == 0
    assert main(["fleet", "set", "draft.depth=4", "--all"]) == 0
    assert main(["fleet", "list", "--wait", "0.3"]) == 0
    assert "pi-1" in capsys.readouterr().out


def test_a_device_that_is_away_is_not_waited_for_without_end(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", "set", "draft.depth=4", "--device", "pi-9", "--wait", "0.2"]) == 1
    assert "is published and waits at the broker" in capsys.readouterr().err
    assert main(["fleet", "list", "--wait", "0.1"]) == 0
    assert "no device has been born here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["set", "depth", "--all"], "write KEY=VALUE"),
        (["set", "draft.depth=[1]", "--all"], "true, false, numbers and texts only"),
        (["set", "draft.depth=1", "--all", "--expires", "soon"], "write 90s, 10m, 12h or 30d"),
        (["kill", "halt", "--expires", "900d"], "within 400 days"),
        (["command", "ping", "--device", "a/b"], "the device is"),
        (["set", "Draft=1", "--all"], "no device would take this"),
        (["list", "--broker", "nowhere"], "HOST:PORT"),
        (["announce", "--endpoint", "x", "--name", "v"], "--endpoint is 'x'"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    world: World, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", *arguments]) != 0
    assert words in capsys.readouterr().err


def test_keys_are_made_once(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(world.folder / "new.key")
    assert main(["fleet", "keygen", path]) == 0
    assert "keep it away from devices" in capsys.readouterr().out
    assert main(["fleet", "keygen", path]) == 2
    assert "is there already" in capsys.readouterr().err


def test_without_a_broker_the_option_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORERUN_FLEET_BROKER", raising=False)
    assert main(["fleet", "list"]) == 2
    assert "give --broker, or set FORERUN_FLEET_BROKER" in capsys.readouterr().err


@pytest.mark.grpc
def test_a_verifier_that_does_not_answer_is_offered_as_offline(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with refusing() as dead:
        assert main(["fleet", "announce", "--endpoint", dead, "--name", "v1", "--once"]) == 0
    assert "is offline" in capsys.readouterr().out
    assert main(["fleet", "verifiers", "--json", "--wait", "0.3", "--public-key", world.public.hex()]) == 0
    (found,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (found["verifier"], found["state"], found["signed"]) == ("v1", "offline", True)


@pytest.mark.grpc
async def test_a_verifier_that_asks_who_one_is_is_offered_by_who_can_say_it(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.drivers.town import DOMAIN, Town

    (tmp_path / "town").mkdir()
    town = Town(tmp_path / "town")
    own = town.of("acme")
    known = ("--tls-ca", str(own.ca), "--tls-cert", str(own.cert), "--tls-key", str(own.key))
    async with town.by_certificate(DOMAIN) as system:
        offer = ["fleet", "announce", "--endpoint", system.address, "--name", "v1", "--once"]
        for more, state in (((), "offline"), (("--tls-ca", str(own.ca)), "offline"), (known, "online")):
            assert await asyncio.to_thread(main, [*offer, *more]) == 0
            assert f"is {state}" in capsys.readouterr().out
    async with town.by_token() as system:
        offer = [*offer[:3], system.address, *offer[4:], "--tls-ca", str(own.ca)]
        bearer = ("--token-file", str(town.bearer(town.token()).token_file))
        for more, state in (((), "offline"), (bearer, "online")):
            assert await asyncio.to_thread(main, [*offer, *more]) == 0
            assert f"is {state}" in capsys.readouterr().out


def test_what_may_be_changed_on_the_way_is_signed_only_if_that_is_allowed(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    offer = ["fleet", "announce", "--endpoint", "192.0.2.1:50051", "--name", "v1", "--once"]
    assert main(offer) == 2
    assert "is on another machine, and without TLS" in capsys.readouterr().err


async def test_the_doctor_tells_what_a_broker_lets_a_device_do(world: World, tmp_path: Path) -> None:
    from dataclasses import replace

    from edge_client.fleet.check import check_broker

    findings = await check_broker(world.settings)
    told = "\n".join(one.words for one in findings)
    assert [one.ok for one in findings] == [True, None, True, None, None, None, True]
    assert "the broker lets this device write to another device's status" in told
    assert "probe comes back" in told
    with broker(tmp_path / "strict", rules=RULES.format(device="pi-1")) as strict:
        address = replace(world.address, port=strict.port)
        findings = await check_broker(replace(world.settings, broker=address))
        assert [one.ok for one in findings] == [True, None, True, True, True, True, True]
    with broker(tmp_path / "deaf", rules="topic write forerun/v1/acme/pi-1/probe\n") as deaf:
        address = replace(world.address, port=deaf.port, timeout=2.0)
        findings = await check_broker(replace(world.settings, broker=address))
        assert "the broker takes it and delivers nothing" in findings[2].words
    findings = await check_broker(replace(world.settings, broker=address))
    assert [one.ok for one in findings] == [False]
