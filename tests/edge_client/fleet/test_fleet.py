"""A device in its fleet, by a real broker: it is seen, steered and left alone as docs/fleet.md says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edge_client.core.fleet.orders import Order, OrderKind, seal
from edge_client.core.fleet.payloads import (
    Ack,
    CommandName,
    EventKind,
    Kill,
    LinkTelemetry,
    Outcome,
    Presence,
    Reported,
    SpecTelemetry,
    State,
    Telemetry,
)
from edge_client.core.fleet.presence import Roster
from edge_client.core.fleet.record import decode, encode
from tests.edge_client.fleet.broker import broker
from tests.edge_client.fleet.flood import flood

if TYPE_CHECKING:
    from edge_client.fleet.fleet import Fleet
    from tests.edge_client.fleet.world import World

pytestmark = pytest.mark.broker

ROOT = Path(__file__).resolve().parents[3]
DAY = 86400.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    from tests.edge_client.fleet.world import World

    with broker(tmp_path, more="max_queued_messages 0\nmax_inflight_messages 0") as found:
        yield World(tmp_path, found)


def judged(fleet: Fleet) -> tuple[int, dict[str, int]]:
    """How many orders were refused, and which were taken."""
    status = fleet.status()
    return sum(status.refused.values()), status.revs


def statuses(heard: list[bytes]) -> list[tuple[State, int]]:
    return [(found.state, found.epoch) for found in (decode(Presence, one) for one in heard)]


async def test_a_device_is_born_and_says_goodbye_when_it_stops(world: World) -> None:
    async with world.ear(world.topics.status) as (ear, _):
        async with world.device():
            await ear.until(lambda: len(ear.heard) == 1)
        await ear.until(lambda: len(ear.heard) == 2)
        (born, epoch), (died, last) = statuses(ear.of(world.topics.status))
        assert (born, died, epoch) == (State.ONLINE, State.OFFLINE, last)
        first = decode(Presence, ear.heard[0][1])
        assert (first.version, first.draft, first.verifier) == ("0.1", "demo", "gpu-1")


async def test_a_device_that_is_killed_is_told_dead_by_its_will(world: World) -> None:
    program = str(ROOT / "tests/edge_client/fleet/child.py")
    child = subprocess.Popen(  # noqa: ASYNC220  # starting it is quick; its output is read in a thread
        [sys.executable, program, str(world.broker.port), str(world.folder / "state"), world.public.hex()],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    with child.stdout:
        try:
            async with world.ear(world.topics.status) as (ear, _):
                assert await asyncio.to_thread(child.stdout.readline) == "connected\n"
                await ear.until(lambda: len(ear.heard) == 1)
                child.send_signal(signal.SIGKILL)
                await ear.until(lambda: len(ear.heard) == 2)
                (born, epoch), (died, last) = statuses(ear.of(world.topics.status))
                assert (born, died, epoch) == (State.ONLINE, State.OFFLINE, last)
        finally:
            child.kill()
            child.wait()


async def test_a_late_will_hides_a_newer_birth_from_nobody(world: World) -> None:
    from edge_client.fleet.mqtt import Connection

    late = encode(Presence(state=State.OFFLINE, epoch=1, at=0.0))
    roster = Roster()
    async with (
        world.ear(world.topics.status) as (ear, _),
        Connection(world.address, "stalled", lambda *_: None, None, (world.topics.status, late)) as stalled,
        world.device() as fleet,
    ):
        await ear.until(lambda: len(ear.heard) == 1)
        stalled.cut()  # the broker publishes its will now, over the birth
        await ear.until(lambda: len(ear.heard) == 3)
        states = statuses(ear.of(world.topics.status))
        assert [state for state, _ in states] == [State.ONLINE, State.OFFLINE, State.ONLINE]
        for _, payload in ear.heard[:2]:
            roster.on_presence("pi-1", decode(Presence, payload))
        assert dict(roster)["pi-1"].state is State.ONLINE
        assert fleet.status().connected
    async with world.ear(world.topics.status) as (again, _):
        await again.until(lambda: len(again.heard) == 1)


async def test_signed_orders_are_applied_reported_and_kept_over_a_restart(world: World) -> None:
    from tests.edge_client.fleet.world import Daemon, until

    daemon = Daemon()
    rev, payload = world.signer.config("pi-1", {"draft.depth": 4}, DAY)
    async with world.ear(world.topics.reported) as (ear, mouth):
        await mouth.publish(world.topics.desired, payload, retain=True)
        async with world.device(daemon):
            await ear.until(lambda: any(decode(Reported, one).rev == rev for _, one in ear.heard))
            assert daemon.orders[-1].values == {"draft.depth": 4}
    world.broker.kill()
    again = Daemon()
    async with world.device(again):
        await until(lambda: bool(again.orders))
        assert again.orders[-1].values == {"draft.depth": 4}


async def test_orders_that_are_replayed_expired_moved_or_signed_by_another_change_nothing(
    world: World,
) -> None:
    from edge_client.fleet.keys import generate, read_private, signer
    from tests.edge_client.fleet.world import Daemon, until

    daemon = Daemon()
    generate(world.folder / "thief")
    thief = replace(world.signer, sign=signer(read_private(world.folder / "thief")))
    long_ago = replace(world.signer, wall=lambda: time.time() - 10 * DAY)
    _, first = world.signer.config("pi-1", {"draft.depth": 1}, DAY)
    rev, second = replace(world.signer, wall=lambda: time.time() + 1).config("pi-1", {"draft.depth": 2}, DAY)
    bad = (
        first,  # replayed
        thief.config("pi-1", {"draft.depth": 3}, DAY)[1],
        replace(world.signer, wall=lambda: time.time() + 2).config("pi-2", {"draft.depth": 4}, DAY)[1],
        replace(world.signer, tenant="other", wall=lambda: time.time() + 3).config("pi-1", {}, DAY)[1],
        long_ago.config("pi-1", {"draft.depth": 5}, DAY)[1],
    )
    expired = Order(
        kind=OrderKind.CONFIG, tenant="acme", device="pi-1", rev=2**50, values={"draft.depth": 6},
        at=time.time() - 2 * DAY, not_after=time.time() - DAY,
    )  # fmt: skip
    async with world.ear(world.topics.reported) as (ear, mouth), world.device(daemon) as fleet:
        await ear.until(lambda: bool(ear.heard))
        for payload in (first, second, *bad):
            before = judged(fleet)
            await mouth.publish(world.topics.desired, payload)
            await until(lambda before=before: judged(fleet) != before)  # type: ignore[misc]
        await mouth.publish(world.topics.desired, seal(expired, world.sign))
        await ear.until(lambda: decode(Reported, ear.heard[-1][1]).refused_rev == 2**50)
        found = decode(Reported, ear.heard[-1][1])
        assert (found.rev, found.ok, [one.fault.value for one in found.errors]) == (rev, False, ["expired"])
        assert [one.values["draft.depth"] for one in daemon.orders][-1] == 2
        assert fleet.status().last_refusal.startswith("an order was refused: it expired")


async def test_the_kill_switch_reaches_the_daemon_and_lets_go_again(world: World) -> None:
    from tests.edge_client.fleet.world import Daemon, until

    daemon = Daemon()
    async with world.ear(world.topics.reported) as (ear, mouth), world.device(daemon):
        await ear.until(lambda: bool(ear.heard))
        for later, mode in enumerate((Kill.HALT, Kill.NONE)):
            signer = replace(world.signer, wall=lambda later=later: time.time() + later)  # type: ignore[misc]
            await mouth.publish(world.topics.shared.kill, signer.kill(mode, DAY)[1], retain=True)
            await until(lambda later=later: len(daemon.orders) > later)  # type: ignore[misc]
        assert [one.kill for one in daemon.orders] == [Kill.HALT, Kill.NONE]
        await ear.until(lambda: decode(Reported, ear.heard[-1][1]).kill_rev > 0)


async def test_a_command_is_carried_out_once_and_acknowledged_each_time(world: World) -> None:
    from tests.edge_client.fleet.world import Daemon

    daemon, topics = Daemon(), world.topics
    async with world.ear() as (ear, mouth), world.device(daemon):
        await ear.until(lambda: bool(ear.of(topics.status)))
        payload = world.signer.command("pi-1", "a1", "load_draft", 60.0)
        for count in (1, 2):
            await mouth.publish(topics.command("a1"), payload)
            await ear.until(lambda count=count: len(ear.of(topics.ack("a1"))) == count)  # type: ignore[misc]
        await mouth.publish(topics.command("a2"), world.signer.command("pi-1", "a2", "shell", 60.0))
        await ear.until(lambda: bool(ear.of(topics.ack("a2"))))
        await mouth.publish(topics.command("a3"), world.signer.command("pi-1", "a3", "report", 60.0))
        await ear.until(lambda: bool(ear.of(topics.telemetry("spec"))) and bool(ear.of(topics.ack("a3"))))
        outcomes = [decode(Ack, one).outcome for name in ("a1", "a2") for one in ear.of(topics.ack(name))]
        assert outcomes == [Outcome.DONE, Outcome.DONE, Outcome.UNKNOWN]
        assert daemon.acts == [CommandName.LOAD_DRAFT]


async def test_events_wait_for_the_broker_and_telemetry_has_its_beat(world: World) -> None:
    topics = world.topics
    async with world.ear() as (ear, _), world.device(telemetry_interval=1.0) as fleet:
        fleet.event(EventKind.FALLBACK, 2.5)  # before there is a connection
        await ear.until(lambda: bool(ear.of(topics.event)))
        await ear.until(lambda: len(ear.of(topics.telemetry("spec"))) == 2)
        assert json.loads(ear.of(topics.event)[0])["kind"] == "fallback"
        assert json.loads(ear.of(topics.telemetry("spec"))[0])["tokens"] == 7
        assert len(ear.of(topics.telemetry("host"))) >= 1


async def test_a_broker_that_denies_is_noticed(tmp_path: Path) -> None:
    from tests.edge_client.fleet.world import World, until

    rules = "topic readwrite forerun/v1/acme/pi-1/status\ntopic read forerun/v1/acme/fleet/+\n"
    with broker(tmp_path, rules=rules) as found:
        world = World(tmp_path, found)
        async with world.device() as fleet:
            fleet.event(EventKind.STARTED)
            denied = {world.topics.event, world.topics.reported}  # the broker answers in any order
            await until(lambda: denied <= set(fleet.status().denied_topics))
            assert fleet.status().connected


async def test_a_broker_that_dies_and_comes_back_finds_its_device_again(world: World) -> None:
    from tests.edge_client.fleet.world import until

    async with world.device() as fleet:
        await until(lambda: fleet.status().connected)
        world.broker.kill()
        await until(lambda: not fleet.status().connected and "refused" in fleet.status().error)
        assert "nothing listens there" in fleet.status().error
        world.broker.start()
        await until(lambda: fleet.status().connected)
        assert fleet.status().error == ""
        async with world.ear(world.topics.status) as (ear, _):
            await ear.until(lambda: bool(ear.heard))
            assert statuses(ear.of(world.topics.status))[-1][0] is State.ONLINE


async def test_a_broker_in_a_black_hole_holds_nothing_up(world: World) -> None:
    from link.proxy import Link
    from link.toxics import Timeout
    from tests.edge_client.fleet.world import ABOUT, until

    async with Link.to(f"127.0.0.1:{world.broker.port}") as link:
        host, port = link.address.host, link.address.port
        address = replace(world.address, host=host, port=port, timeout=0.3)
        async with world.device(broker=address) as fleet:
            await until(lambda: fleet.status().connected)
            link.set_toxic(Timeout(0, stream="upstream"), Timeout(0))  # type: ignore[arg-type]
            fleet.event(EventKind.STARTED)  # returns at once, as does all that the daemon calls
            fleet.tell(replace(ABOUT, draft="other"))
            assert fleet.status().connected
            ticks = 0
            while fleet.status().connected or not fleet.status().error:
                ticks += 1
                await asyncio.sleep(0.001)
            assert ticks > 10  # the event loop lived all the while
            assert "answer" in fleet.status().error  # it "did not answer", or gives a new attempt "no answer"
            link.remove_toxic("timeout_upstream")
            link.remove_toxic("timeout_downstream")
            await until(lambda: fleet.status().connected and not fleet.status().events_waiting)


async def test_two_processes_with_one_name_do_not_fight(world: World) -> None:
    from tests.edge_client.fleet.world import until

    other_state = world.folder / "other"
    async with (
        world.ear(world.topics.event) as (ear, _),
        world.device(max_backoff=60.0) as one,
        world.device(max_backoff=60.0, state_dir=other_state) as two,
    ):
        words = "another process connected with this device's name"
        await until(lambda: any(words in fleet.status().error for fleet in (one, two)))
        away, stays = (one, two) if words in one.status().error else (two, one)
        await until(lambda: stays.status().connected)
        await asyncio.sleep(0.2)  # in which a device that fights would have come back many times
        assert stays.status().connected
        assert not away.status().connected

        def waits() -> bool:
            return any(each.event.kind is EventKind.TAKEN_OVER for each in away._machine.events._waiting)

        # The one that stays tells it, if it heard the other; the one that is away will when it comes again.
        await until(lambda: waits() or any(b'"taken_over"' in event for event in ear.of(world.topics.event)))


async def test_a_flood_of_hostile_messages_is_bounded_and_the_device_still_answers(world: World) -> None:
    from tests.edge_client.fleet.world import Daemon, until

    topics, daemon = world.topics, Daemon()
    await flood(world.broker.port, retained_flood(topics.shared.verifier), retain=True)
    ticks = 0
    async with world.ear(topics.ack("real"), topics.reported) as (ear, mouth):
        rev, payload = world.signer.config("pi-1", {"draft.depth": 4}, DAY)
        await mouth.publish(topics.desired, payload, retain=True)
        async with world.device(daemon, discover=True, messages_per_second=20_000.0) as fleet:
            await until(lambda: fleet.status().connected)
            live = asyncio.ensure_future(flood(world.broker.port, live_flood(topics)))
            await mouth.publish(topics.command("real"), world.signer.command("pi-1", "real", "ping", 600.0))
            async with asyncio.timeout(60):
                while not ear.of(topics.ack("real")) or not live.done():
                    ticks += 1
                    await asyncio.sleep(0.001)
            await live
            await until(lambda: fleet.status().received >= 15_000)
            status = fleet.status()
            assert fleet.orders.values == {"draft.depth": 4}
            assert status.connected
            assert fleet.offers == ()
            assert status.events_waiting <= 64
            assert daemon.acts == []
            assert ticks > 50
            assert rev == status.revs["device"]


def retained_flood(verifier: Any) -> list[tuple[str, bytes]]:
    """10,000 offers of verifiers that nobody signed, and what is no offer."""
    offer = b'{"state":"online","epoch":9,"at":1,"endpoint":"evil.example:1"}'
    kinds = (offer, b"[" * 4000, b"\xff" * 300, b'{"order":"{}","signature":"' + b"0" * 128 + b'"}')
    return [(verifier(f"v{number}"), kinds[number % len(kinds)]) for number in range(10_000)]


def live_flood(topics: Any) -> list[tuple[str, bytes]]:
    """10,000 messages at the device's own topics: false orders, false commands, and some that are huge."""
    false = b'{"order":"' + b"x" * 500 + b'","signature":"' + b"0" * 128 + b'"}'
    own = (topics.desired, topics.shared.kill, topics.shared.fleet_config, topics.status)
    found = [(own[number % len(own)], false) for number in range(5_000)]
    found += [(topics.command(f"c{number}"), false) for number in range(4_990)]
    return found + [(topics.desired, bytes(1_000_000))] * 10


CANARY = "Dear diary, SECRET-7f3a is my key"
TOKEN = "sk-live-7f3a5511"


@pytest.mark.parametrize("canary", [CANARY, TOKEN])
async def test_a_secret_that_is_fed_everywhere_leaves_nowhere(world: World, canary: str) -> None:
    from common.errors import UserError
    from edge_client.fleet.fleet import Fleet
    from tests.edge_client.fleet.broker import running
    from tests.edge_client.fleet.world import ABOUT, Daemon, until

    daemon, topics = Daemon(), world.topics
    daemon.errors = [canary, f"draft.depth is {canary}"]

    async def act(name: CommandName) -> None:
        raise UserError(canary)

    poisoned: Any = replace(daemon.hooks, act=act)
    about: Any = replace(ABOUT, draft=CANARY, verifier=CANARY, version=CANARY)
    fleet = Fleet(replace(world.settings, telemetry_interval=1.0), about, poisoned)
    spoilt: Any = canary
    async with world.ear() as (ear, mouth), running(asyncio.create_task(fleet.run())):
        await until(lambda: fleet.status().connected)
        await mouth.publish(topics.desired, world.signer.config("pi-1", {"draft.depth": 1}, DAY)[1])
        await mouth.publish(topics.shared.verifier(TOKEN), canary.encode())
        await mouth.publish(topics.command("a1"), world.signer.command("pi-1", "a1", "load_draft", 60.0))
        await ear.until(lambda: bool(ear.of(topics.ack("a1"))))
        with contextlib.suppress(Exception):
            fleet.event(spoilt, spoilt)
        for telemetry in (
            Telemetry(SpecTelemetry(tokens=spoilt), LinkTelemetry(), spoilt),
            Telemetry(SpecTelemetry(), LinkTelemetry(state=spoilt), spoilt),
            spoilt,
        ):
            daemon.telemetry = telemetry
        await mouth.publish(topics.command("a2"), world.signer.command("pi-1", "a2", "report", 60.0))
        await ear.until(lambda: bool(ear.of(topics.ack("a2"))))
        daemon.telemetry = Telemetry(SpecTelemetry(), LinkTelemetry(), Daemon().telemetry.host)
        await ear.until(lambda: bool(ear.of(topics.telemetry("host"))))
        ours = [one for topic, one in ear.heard if topic.startswith(topics.base)]
        assert len(ours) > 5
        assert not [one for one in ours if canary.encode() in one or b"7f3a" in one]
