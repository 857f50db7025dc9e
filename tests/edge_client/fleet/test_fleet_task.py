"""A device in its fleet, by a real broker: it is seen, steered and left alone as docs/fleet.md says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from common.errors import UserError
from edge_client.fleet.document import Kill
from tests.edge_client.fleet.broker import Daemon, broker
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.edge_client.fleet.world import World

pytestmark = pytest.mark.broker

ROOT = Path(__file__).resolve().parents[3]
CHAIN = {"draft.policy": "chain"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    from edge_client.fleet import fleet_task as device
    from edge_client.fleet import mqtt
    from tests.edge_client.fleet.world import World

    monkeypatch.setattr(mqtt, "TIMEOUT", 3.0)
    monkeypatch.setattr(device, "FIRST_BACKOFF", 0.01)
    monkeypatch.setattr(device, "MAX_BACKOFF", 0.05)
    with broker(tmp_path, more=("max_queued_messages 0", "max_inflight_messages 0")) as running:
        yield World(tmp_path, running)


async def test_a_device_is_born_changes_and_says_goodbye_when_it_stops(world: World) -> None:
    daemon = Daemon()
    async with world.operator() as operator:
        async with world.device(daemon) as fleet:
            await operator.until(1)
            daemon.state = daemon.state | {"mode": "server-only", "draft": "/home/ann/love letters.gguf"}
            fleet.wake()
            await operator.until(2)
        await operator.until(3)
        born, changed, died = operator.presences
    assert [each["state"] for each in (born, changed, died)] == ["online", "online", "offline"]
    facts = {"version": "0.1", "draft": "demo", "verifier": "gpu-1", "mode": "ahead", "kill": "none"}
    assert born == {"state": "online", "at": born["at"], "tokens": 7, **facts}
    assert (changed["mode"], changed["draft"][:1]) == ("server-only", "#")  # a sentence leaves as a hash


CHILD = """\
import asyncio, sys
from pathlib import Path
from tests.edge_client.fleet.broker import Broker
from tests.edge_client.fleet.world import World

async def main():
    async with World(Path(sys.argv[2]), Broker(Path(), int(sys.argv[1]))).device():
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_device_that_is_killed_is_reported_offline_by_its_will(world: World) -> None:
    folder = world.folder / "child"
    folder.mkdir()
    child = subprocess.Popen(  # noqa: ASYNC220  # starting it is quick
        [sys.executable, "-c", CHILD, str(world.broker.port), str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        async with world.operator() as operator:
            await operator.until(1)
            child.send_signal(signal.SIGKILL)
            await operator.until(2)
        async with world.operator() as late:  # it is retained
            await late.until(1)
        states = [each["state"] for each in operator.presences + late.presences]
        assert states == ["online", "offline", "offline"]
    finally:
        child.kill()
        child.wait()


async def test_figures_have_their_beat(world: World) -> None:
    async with world.operator() as operator, world.device(telemetry_interval=1.0):
        await operator.until(3)
    assert [each["tokens"] for each in operator.presences[:3]] == [7, 7, 7]


async def test_a_signed_document_is_applied_reported_and_kept_over_a_restart(world: World) -> None:
    daemon, again = Daemon(), Daemon()
    async with world.operator() as operator:
        await operator.publish(world.document(settings=CHAIN, kill=Kill.HALT))
        async with world.device(daemon):
            await until(lambda: any(each.get("applied") == 1 for each in operator.presences))
            assert (daemon.settings, daemon.kills) == (CHAIN, [Kill.HALT])
            await operator.publish(world.document(settings=CHAIN))
            await until(lambda: daemon.kills == [Kill.HALT, Kill.NONE])
    state = world.folder / "state" / "fleet.json"
    assert state.stat().st_mode & 0o777 == 0o600
    world.broker.kill()
    async with world.device(again) as fleet:
        await until(lambda: again.settings == CHAIN)
        assert fleet.status()["applied"] == 2
    state.write_text('{"format": "forerun fleet state"')
    with pytest.raises(UserError):  # a damaged file is not taken for an empty one
        await fleet.run()


@pytest.mark.parametrize("key", ["none", "key"])
def test_a_key_that_cannot_be_read_is_refused(world: World, key: str) -> None:
    from edge_client.fleet.fleet_task import Fleet

    daemon: Any = Daemon()
    with pytest.raises(UserError):
        Fleet(replace(world.settings, public_key=str(world.folder / key)), world.folder, daemon)


async def test_a_broker_that_dies_and_comes_back_finds_its_device_again(world: World) -> None:
    async with world.device() as fleet:
        await until(lambda: fleet.status()["connected"])
        world.broker.kill()
        await until(lambda: not fleet.status()["connected"] and fleet.status()["error"])
        world.broker.start()
        await until(lambda: fleet.status()["connected"])
        assert fleet.status()["error"] == ""
        async with world.operator() as operator:
            await operator.until(1)
            assert operator.presences[-1]["state"] == "online"


async def test_a_broker_in_a_black_hole_holds_nothing_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edge_client.fleet import mqtt
    from simulator.proxy.fault_link import Link
    from simulator.proxy.toxics import Hold, both_ways

    monkeypatch.setattr(mqtt, "TIMEOUT", 0.3)
    daemon = Daemon()
    async with (
        Link.to(f"127.0.0.1:{world.broker.port}") as link,
        world.device(daemon, broker=f"mqtt://127.0.0.1:{link.address.port}") as fleet,
    ):
        await until(lambda: fleet.status()["connected"])
        link.set_toxic(*both_ways(Hold()))
        daemon.state = daemon.state | {"draft": "other"}
        fleet.wake()
        await until(lambda: fleet.status()["error"])  # the event loop lives all the while
        link.remove_toxic("hold_upstream")
        link.remove_toxic("hold_downstream")
        await until(lambda: fleet.status()["connected"])


CANARY = "Dear diary, SECRET-7f3a is my key"


@pytest.mark.parametrize("canary", [CANARY, "sk-live-7f3a5511"])
async def test_a_secret_that_is_fed_everywhere_leaves_nowhere(world: World, canary: str) -> None:
    daemon, spoilt = Daemon(), cast(Any, canary)
    daemon.error = f"draft.policy is {canary}"
    daemon.state = dict.fromkeys(daemon.state, CANARY)
    figures = iter([{"tokens": spoilt}])
    daemon.telemetry = lambda: next(figures, {"tokens": 7})  # type: ignore[method-assign]
    async with (
        world.operator("forerun/v1/acme/pi-1/+") as operator,
        world.device(daemon, telemetry_interval=1.0) as fleet,
    ):
        await until(lambda: fleet.status()["connected"])
        await operator.publish(world.document(settings=CHAIN))
        await until(lambda: any("refused" in each for each in operator.presences))
    assert not [payload for _, payload in operator.heard if b"7f3a" in payload]


@pytest.mark.parametrize("outcome", ["returns", "fails"])
async def test_a_cancellation_that_a_publish_swallows_still_ends_the_device(
    world: World, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """As `asyncio.wait_for` of Python 3.11 does when both come at once: the daemon hung at its end."""
    import aiomqtt

    publishing = asyncio.Event()

    async def swallow(*_: Any, **__: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            if not publishing.is_set():
                publishing.set()
                await asyncio.Event().wait()
        if outcome == "fails":
            raise aiomqtt.MqttError("lost")

    monkeypatch.setattr(aiomqtt.Client, "publish", swallow)
    async with world.device():
        await publishing.wait()


def test_waits_double_up_to_the_most_and_lie_in_their_upper_half() -> None:
    from edge_client.fleet.fleet_task import backoff

    waits = [[backoff(failures, chance) for failures in (1, 2, 3, 7, 8, 5000)] for chance in (0.0, 1.0)]
    assert waits == [[0.5, 1.0, 2.0, 32.0, 60.0, 60.0], [1.0, 2.0, 4.0, 64.0, 120.0, 120.0]]
