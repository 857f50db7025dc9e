"""What the fleet calls in the daemon, and that none of it can end the fleet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import ForerunError
from edge_client.core.fleet.discovery import Offer
from edge_client.core.fleet.names import PARTS
from edge_client.core.fleet.payloads import MAX_TELEMETRY, CommandName, Outcome, Telemetry
from edge_client.core.fleet.record import SchemaError, encode
from edge_client.core.fleet.standing import Apply, FleetOrders

logger = logging.getLogger(__name__)

Act = Callable[[CommandName], Awaitable[None]]
"""Carries out reload_config, load_draft or unload_draft. Raises `ForerunError` if it cannot."""

MAX_COMMANDS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Hooks:
    """Called on the event loop; none of it may block."""

    telemetry: Callable[[], Telemetry]
    on_orders: Callable[[FleetOrders], None]  # when they change, and after a restart
    apply: Apply  # the fleet's values -> errors in sentences; local settings beat them
    act: Act
    on_offers: Callable[[tuple[Offer, ...]], None] = lambda offers: None  # verifiers that may be used


class Errands:
    """Calls them. `own` are the commands that need nothing of the daemon; `on_ran` is told how each ended."""

    def __init__(
        self,
        hooks: Hooks,
        own: Mapping[CommandName, Callable[[], None]],
        on_ran: Callable[[str, Outcome], None],
    ) -> None:
        self._hooks, self._own, self._on_ran = hooks, own, on_ran
        self._running = set[asyncio.Task[None]]()

    def run(self, command_id: str, name: CommandName) -> None:
        """Carry a command out in a task of its own: loading a model takes seconds."""
        if len(self._running) >= MAX_COMMANDS_AT_ONCE:
            self._on_ran(command_id, Outcome.FAILED)
            return
        task = asyncio.create_task(self._carry_out(command_id, name))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def cancel(self) -> None:
        """The daemon stops."""
        for task in self._running:
            task.cancel()

    def apply(self, values: Mapping[str, Any]) -> list[str]:
        """An order that breaks the daemon's `apply` is one that cannot be applied."""
        try:
            return self._hooks.apply(values)
        except Exception:
            logger.exception("! the fleet's configuration could not be applied")
            return ["it could not be applied; the daemon's log says why"]

    def orders(self, orders: FleetOrders) -> None:
        """They changed."""
        self._guarded(lambda: self._hooks.on_orders(orders))

    def offers(self, offers: tuple[Offer, ...]) -> None:
        """They changed."""
        self._guarded(lambda: self._hooks.on_offers(offers))

    def telemetry(self) -> dict[str, bytes]:
        """The payload of each part; none if the daemon gave what may not leave."""
        try:
            telemetry = self._hooks.telemetry()
            return {part: encode(getattr(telemetry, part), MAX_TELEMETRY) for part in PARTS}
        except SchemaError as error:
            logger.error("! telemetry was not sent: %s", error)
        except Exception:
            logger.exception("! telemetry was not sent")
        return {}

    async def _carry_out(self, command_id: str, name: CommandName) -> None:
        outcome = Outcome.FAILED
        try:
            own = self._own.get(name)
            if own is None:
                await self._hooks.act(name)
            else:
                own()
            outcome = Outcome.DONE
        except ForerunError as error:
            logger.warning("! the fleet's command %s failed: %s", name.value, error)
        except Exception:  # outermost frame of this task
            logger.exception("! the fleet's command %s failed", name.value)
        self._on_ran(command_id, outcome)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            logger.exception("! the daemon did not take what the fleet wants")
