"""A daemon in its fleet: what orders change, what is told, and that the broker is on no token's path."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edge_client.config import EdgeConfig, Overlay, load_config
from edge_client.core.config import Fallback
from edge_client.core.fleet.payloads import CommandName, Kill, State, VerifierStatus
from edge_client.core.fleet.record import encode
from edge_client.core.fleet.standing import FleetOrders
from edge_client.verifiers.status import Health
from link import Link, Timeout
from tests.edge_client.api.world import World, alone, world

if TYPE_CHECKING:
    from edge_client.fleet_link import FleetLink

pytestmark = [pytest.mark.api, pytest.mark.grpc, pytest.mark.broker, pytest.mark.llama]

CANARY = "fedcbafedcbafedcba"


def below(flags: Mapping[str, object], values: Mapping[str, Any]) -> EdgeConfig:
    """The configuration of these flags over a fleet's values, as the command line makes it."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    return load_config(flags, {}, (), Overlay("the fleet", sections)).config


@contextlib.asynccontextmanager
async def linked(**flags: object) -> AsyncIterator[tuple[World, FleetLink]]:
    """A daemon whose owner has set these flags, and what its fleet sees of it."""
    from edge_client.fleet_link import FleetLink
    from edge_client.verifiers import Verifiers

    async with world() as found, Verifiers((found.system.address,)) as verifiers:
        await verifiers.ready(10)
        yield (
            found,
            FleetLink(
                device=found.device,
                service=found.api.service,
                drafts=None,
                verifiers=verifiers,
                mode=lambda: "ahead",
                reconfigure=lambda values: below(flags, values),
                version="1.2.3",
                began_at=time.monotonic(),
            ),
        )


@pytest.mark.parametrize(
    ("kill", "mode"),
    [(Kill.NONE, "ahead"), (Kill.DRAFT_OFF, "server-only"), (Kill.REMOTE_OFF, "device-only")],
)
async def test_the_kill_switch_says_who_writes(kill: Kill, mode: str) -> None:
    async with linked() as (found, link):
        link.on_orders(FleetOrders(kill))
        body = await found.chat(max_tokens=10, ignore_eos=True, forerun={"policy": "tree"})
    assert body["forerun"]["mode"] == mode
    if kill is not Kill.REMOTE_OFF:
        assert body["choices"][0]["message"]["content"] == alone(max_tokens=10, ignore_eos=True)


async def test_a_halted_device_writes_nothing_and_says_why() -> None:
    async with linked() as (found, link):
        link.on_orders(FleetOrders(Kill.HALT))
        refused = await found.post_chat()
        link.on_orders(FleetOrders(Kill.NONE))
        again = await found.post_chat()
    assert refused.status_code == 503
    assert "this device's fleet has ordered halt" in refused.text
    assert again.status_code == 200


async def test_settings_of_the_fleet_hold_unless_the_owner_has_set_them() -> None:
    async with linked(**{"draft.policy": "chain"}) as (found, link):
        assert link.apply({"draft.recall": False, "draft.policy": "tree", "verifier.fallback": "draft"}) == []
        defaults = found.api.service.defaults
        assert (defaults.recall, defaults.policy, defaults.fallback) == (False, "chain", Fallback.DRAFT)
        assert link.apply({}) == []
        assert found.api.service.defaults.recall is True


async def test_a_policy_from_afar_is_held_to_the_power_budget() -> None:
    async with linked() as (found, link):
        assert link.apply({"draft.power_steps_per_second": 20.0}) == []
        assert found.api.service.defaults.policy == "adaptive:max_steps_per_second=20"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"draft.power_steps_per_second": 20.0, "draft.policy": "chain"}, "chain"),
        ({"draft.seats": "many"}, "draft.seats"),
        ({"draft.nothing": 1}, "nothing"),
        ({"api.listen": "0.0.0.0:80"}, "can be set on the device only"),
        ({"draft.policy": "wild"}, "wild"),
    ],
)
async def test_settings_that_do_not_fit_are_told_and_change_nothing(
    values: dict[str, Any], words: str
) -> None:
    async with linked() as (found, link):
        before = found.api.service.defaults
        (error,) = link.apply(values)
        assert found.api.service.defaults == before
    assert words in error


async def test_telemetry_tells_what_the_device_counted_and_no_text() -> None:
    from edge_client.core.fleet.record import encode

    async with linked() as (found, link):
        bodies = [await found.chat(CANARY, max_tokens=12, user=CANARY) for _ in range(3)]
        telemetry = link.telemetry()
        about = link.about()
    told = b"".join(encode(part, 1023) for part in (telemetry.spec, telemetry.link, telemetry.host))
    assert CANARY.encode() not in told
    assert telemetry.spec.generations == 3
    assert telemetry.spec.tokens == sum(body["forerun"]["tokens"] for body in bodies)
    assert telemetry.spec.accepted == sum(body["forerun"]["accepted"] for body in bodies)
    assert telemetry.link.rtt_ms is not None
    assert telemetry.host.rss_mb is not None
    assert (about.version, about.draft) == ("1.2.3", "tiny-draft")


async def test_reading_the_configuration_again_keeps_what_the_fleet_has_set() -> None:
    async with linked() as (found, link):
        assert link.apply({"draft.policy": "tree"}) == []
        await link.act(CommandName.RELOAD_CONFIG)
        assert found.api.service.defaults.policy == "tree"


async def test_commands_about_a_draft_that_is_not_there_fail_in_words() -> None:
    from common.errors import LocalError

    async with linked() as (_, link):
        await link.act(CommandName.RELOAD_CONFIG)
        with pytest.raises(LocalError, match="no draft model is configured"):
            await link.act(CommandName.LOAD_DRAFT)


async def test_an_order_over_a_real_broker_stops_new_texts(tmp_path: Path) -> None:
    from tests.edge_client.fleet.broker import broker, running
    from tests.edge_client.fleet.world import World as FleetWorld
    from tests.edge_client.fleet.world import until

    with broker(tmp_path / "broker") as running_broker:
        fleets = FleetWorld(tmp_path, running_broker)
        async with linked() as (found, link), fleets.ear(fleets.topics.reported) as (_, mouth):
            fleet = link.fleet(fleets.settings)
            async with running(asyncio.create_task(fleet.run())):
                assert (await found.post_chat()).status_code == 200
                await mouth.publish(
                    fleets.topics.shared.kill, fleets.signer.kill(Kill.HALT, 3600.0)[1], retain=True
                )
                await until(lambda: found.device.orders.value == "halt")
                assert (await found.post_chat()).status_code == 503


async def test_a_signed_offer_over_a_real_broker_is_used_and_another_is_not(tmp_path: Path) -> None:
    from tests.drivers.tiny import running as verifier
    from tests.edge_client.fleet.broker import broker, running
    from tests.edge_client.fleet.world import World as FleetWorld
    from tests.edge_client.fleet.world import until

    async with verifier() as offered, linked() as (_, link):
        with broker(tmp_path / "broker") as running_broker:
            fleets = FleetWorld(tmp_path, running_broker)
            settings = replace(fleets.settings, keys=(), verifier_keys=(fleets.public,), discover=True)
            async with fleets.ear() as (_, mouth), running(asyncio.create_task(link.fleet(settings).run())):
                for name, endpoint in (("evil", "127.0.0.1:2"), ("good", offered.address)):
                    status = VerifierStatus(state=State.ONLINE, epoch=1, at=time.time(), endpoint=endpoint)
                    payload = fleets.signer.offer(name, status, 60.0) if name == "good" else encode(status)
                    await mouth.publish(fleets.topics.shared.verifier(name), payload, retain=True)
                await until(lambda: len(link.verifiers.snapshot()) == 2)
                await until(lambda: link.verifiers.snapshot()[1].health is Health.READY)
                assert link.verifiers.snapshot()[1].address == offered.address


@pytest.mark.parametrize("trouble", ["dies", "swallows everything", "was never there"])
async def test_whatever_the_broker_does_texts_are_written(tmp_path: Path, trouble: str) -> None:
    from tests.edge_client.fleet.broker import broker, running
    from tests.edge_client.fleet.world import World as FleetWorld
    from tests.edge_client.fleet.world import until

    with broker(tmp_path / "broker") as running_broker:
        fleets = FleetWorld(tmp_path, running_broker)
        async with linked() as (found, link), Link.to(f"127.0.0.1:{running_broker.port}") as way:
            if trouble == "was never there":
                await way.disable()
            address = replace(fleets.address, port=way.address.port)
            fleet = link.fleet(replace(fleets.settings, broker=address))
            async with running(asyncio.create_task(fleet.run())):
                if trouble != "was never there":
                    await until(lambda: fleet.status().connected)
                if trouble == "dies":
                    running_broker.kill()
                elif trouble == "swallows everything":
                    way.add_toxic(Timeout(0, name="black hole"))
                for seed in range(4):
                    body = await found.chat(max_tokens=30, ignore_eos=True, temperature=1.0, seed=seed)
                    expected = alone(max_tokens=30, ignore_eos=True, temperature=1.0, seed=seed)
                    assert body["choices"][0]["message"]["content"] == expected
