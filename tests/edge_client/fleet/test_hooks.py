"""Whatever the daemon's hooks raise or return, the fleet goes on and nothing wrong leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from common.errors import UserError
from edge_client.core.fleet.payloads import (
    CommandName,
    HostTelemetry,
    LinkTelemetry,
    Outcome,
    SpecTelemetry,
    Telemetry,
)
from edge_client.core.fleet.standing import FleetOrders
from edge_client.fleet.hooks import MAX_COMMANDS_AT_ONCE, Errands, Hooks


def broken(*_: object) -> Any:
    raise RuntimeError("the daemon's own")


async def test_a_hook_that_breaks_ends_nothing() -> None:
    ran = list[tuple[str, Outcome]]()
    errands = Errands(Hooks(broken, broken, broken, broken, broken), {}, lambda *one: ran.append(one))
    errands.orders(FleetOrders())
    errands.offers(())
    assert errands.telemetry() == {}
    assert errands.apply({}) == ["it could not be applied; the daemon's log says why"]
    errands.run("a1", CommandName.LOAD_DRAFT)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ran == [("a1", Outcome.FAILED)]


async def test_commands_have_outcomes_and_only_so_many_run_at_once() -> None:
    ran, gate = list[tuple[str, Outcome]](), asyncio.Event()

    async def act(name: CommandName) -> None:
        await gate.wait()
        if name is CommandName.UNLOAD_DRAFT:
            raise UserError("there is none")

    def apply(values: Mapping[str, Any]) -> list[str]:
        return []

    telemetry = Telemetry(SpecTelemetry(), LinkTelemetry(), HostTelemetry())
    hooks = Hooks(lambda: telemetry, lambda orders: None, apply, act)
    errands = Errands(hooks, {CommandName.PING: lambda: None}, lambda *one: ran.append(one))
    names = [CommandName.LOAD_DRAFT] * (MAX_COMMANDS_AT_ONCE - 1) + [CommandName.UNLOAD_DRAFT]
    for number, name in enumerate(names):
        errands.run(f"c{number}", name)
    errands.run("more", CommandName.PING)
    assert ran == [("more", Outcome.FAILED)]
    gate.set()
    async with asyncio.timeout(10):
        while len(ran) <= MAX_COMMANDS_AT_ONCE:  # noqa: ASYNC110  # a list announces nothing
            await asyncio.sleep(0)
    assert ran[1:] == [
        (f"c{number}", Outcome.FAILED if name is CommandName.UNLOAD_DRAFT else Outcome.DONE)
        for number, name in enumerate(names)
    ]
    assert set(errands.telemetry()) == {"spec", "link", "host"}
