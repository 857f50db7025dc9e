"""A daemon in its fleet: what orders change, what is told, and that the broker is on no token's path."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from edge_client.api.endpoints import TextEndpoints
from edge_client.core.effects import Fallback
from edge_client.fleet.document import Kill, report
from edge_client.settings import FLEET_MAY_SET, load_config
from simulator.proxy import Hold, Link
from tests.edge_client.api.world import World, alone, world
from tests.edge_client.fleet.broker import broker
from tests.support.waiting import until

if TYPE_CHECKING:
    from edge_client.fleet.follower import FleetFollower

pytestmark = [pytest.mark.api, pytest.mark.grpc, pytest.mark.broker, pytest.mark.llama]

CANARY = "fedcbafedcbafedcba"


@contextlib.asynccontextmanager
async def linked(**flags: object) -> AsyncIterator[tuple[World, FleetFollower]]:
    """A daemon whose owner has set these flags, and what its fleet sees of it."""
    from edge_client.api.daemon_status import PairStatus
    from edge_client.fleet.follower import FleetFollower
    from edge_client.network.verifiers import Verifiers
    from edge_client.pair import Pair

    async with world() as found, Verifiers((found.system.address,)) as verifiers:
        await verifiers.heard(10)
        status = PairStatus(found.texts, Fallback.WAIT, dict, list, lambda: True)
        yield (
            found,
            FleetFollower(
                pairs=(Pair(found.api.pairs.first, None, verifiers, status),),
                mode=lambda: "ahead",
                reconfigure=lambda values: load_config(flags, {}, (), values).config,
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
        link.obey(kill)
        body = await found.chat(max_tokens=10, ignore_eos=True, forerun={"policy": "tree"})
    assert body["forerun"]["mode"] == mode
    if kill is not Kill.REMOTE_OFF:
        assert body["choices"][0]["message"]["content"] == alone(max_tokens=10, ignore_eos=True)


async def test_settings_of_the_fleet_hold_unless_the_owner_has_set_them() -> None:
    async with linked(**{"draft.policy": "chain"}) as (found, link):
        assert link.apply({"draft.recall": False, "draft.policy": "tree", "verifier.fallback": "draft"}) == ""
        defaults = found.api.pairs.first.defaults
        assert (defaults.recall, defaults.policy, defaults.fallback) == (False, "chain", Fallback.DRAFT)
        assert link.apply({}) == ""
        assert found.api.pairs.first.defaults.recall is True


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"draft.power_steps_per_second": 20.0, "draft.policy": "chain"}, "chain"),
        ({"draft.keep_alive": "long"}, "draft.keep_alive"),
        ({"draft.nothing": 1}, "draft.nothing"),
        ({"draft.seats": 3}, "draft.seats"),
        ({"api.listen": "0.0.0.0:80"}, "api.listen"),
        ({"draft.policy": "wild"}, "draft.policy"),
    ],
)
async def test_settings_that_do_not_fit_are_named_and_change_nothing(
    values: dict[str, Any], words: str
) -> None:
    async with linked() as (found, link):
        before = found.api.pairs.first.defaults
        error = link.apply(values)
        assert found.api.pairs.first.defaults == before
    assert words in error


async def test_all_that_a_fleet_may_set_changes_the_daemon_at_once() -> None:
    """What is acknowledged happens."""
    values = {
        "verifier.fallback": "draft",
        "draft.keep_alive": 5.0,
        "draft.recall": False,
        "draft.policy": "adaptive",
        "draft.power_steps_per_second": 9.0,
        "draft.update": "newer.gguf",
    }
    assert values.keys() == FLEET_MAY_SET
    kept = SimpleNamespace(keep_alive=0.0, wanted="", current=SimpleNamespace(file="/drafts/newer.gguf"))
    drafts: Any = kept
    async with linked() as (found, link):
        follower = replace(link, pairs=(replace(link.pairs[0], drafts=drafts),))
        assert follower.apply(values) == ""
        assert follower.about()["draft"] == "newer"
        defaults = found.api.pairs.first.defaults
        assert defaults.policy == "adaptive:max_steps_per_second=9"
        assert (defaults.recall, defaults.fallback, kept.keep_alive) == (False, Fallback.DRAFT, 5.0)
        assert kept.wanted == "newer.gguf"


PAIRS = """\
[pairs.one]
[pairs.two.draft]
recall = true
"""


async def test_each_pair_follows_where_it_has_no_setting_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text(PAIRS)
    async with linked() as (found, link):
        usual = link.pairs[0]
        pairs = [
            replace(usual, service=TextEndpoints(found.texts, usual.service.defaults, pair=name))
            for name in ("one", "two", "of an older file")
        ]
        several = replace(
            link, pairs=pairs, reconfigure=lambda values: load_config({}, {}, [file], values).config
        )
        assert several.apply({"draft.recall": False, "verifier.fallback": "fail"}) == ""
        recalls = [each.service.defaults.recall for each in pairs]
        assert recalls == [False, True, usual.service.defaults.recall]
        assert [each.service.defaults.fallback for each in pairs[:2]] == 2 * [Fallback.FAIL]
        assert several.about()["draft"] == "tiny-draft"


async def test_telemetry_has_what_the_device_counted_and_no_text() -> None:
    async with linked() as (found, link):
        bodies = [await found.chat(CANARY, max_tokens=12, user=CANARY) for _ in range(3)]
        telemetry, about = link.telemetry(), link.about()
    payload = report({}, telemetry)
    assert len(payload) < 1024
    assert CANARY.encode() not in payload
    assert telemetry["generations"] == 3
    assert telemetry["tokens"] == sum(body["forerun"]["tokens"] for body in bodies)
    assert telemetry["accepted"] == sum(body["forerun"]["accepted"] for body in bodies)
    assert telemetry["rtt_ms"] is not None
    assert (about["version"], about["draft"], about["mode"]) == ("1.2.3", "tiny-draft", "ahead")


@pytest.mark.parametrize("trouble", ["dies", "swallows everything", "was never there"])
async def test_whatever_the_broker_does_texts_are_written(tmp_path: Path, trouble: str) -> None:
    from edge_client.fleet.fleet_task import Fleet
    from tests.edge_client.fleet.world import World as FleetWorld
    from tests.edge_client.fleet.world import running

    with broker(tmp_path / "broker") as found_broker:
        fleets = FleetWorld(tmp_path, found_broker)
        async with linked() as (found, link), Link.to(f"127.0.0.1:{found_broker.port}") as way:
            if trouble == "was never there":
                await way.disable()
            settings = replace(fleets.settings, broker=f"mqtt://127.0.0.1:{way.address.port}")
            fleet = Fleet(settings, tmp_path, link)
            async with running(fleet):
                if trouble != "was never there":
                    await until(lambda: fleet.status()["connected"])
                if trouble == "dies":
                    found_broker.kill()
                elif trouble == "swallows everything":
                    way.add_toxic(Hold(name="black hole"))
                for seed in range(4):
                    body = await found.chat(max_tokens=30, ignore_eos=True, temperature=1.0, seed=seed)
                    expected = alone(max_tokens=30, ignore_eos=True, temperature=1.0, seed=seed)
                    assert body["choices"][0]["message"]["content"] == expected
