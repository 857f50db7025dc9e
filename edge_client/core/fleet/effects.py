"""What the machine asks of its driver, in order."""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.core.fleet.discovery import Offer
from edge_client.core.fleet.memory import Memory
from edge_client.core.fleet.payloads import CommandName
from edge_client.core.fleet.standing import FleetOrders


@dataclass(frozen=True, slots=True)
class Publish:
    """Send this."""

    topic: str
    payload: bytes
    retain: bool = False
    expiry: int | None = None  # seconds


@dataclass(frozen=True, slots=True)
class Save:
    """Write this to the state file before the next effect."""

    memory: Memory


@dataclass(frozen=True, slots=True)
class Changed:
    """The daemon is to do this from now on."""

    orders: FleetOrders


@dataclass(frozen=True, slots=True)
class Run:
    """Carry a command out, then call `on_ran`."""

    id: str
    name: CommandName


@dataclass(frozen=True, slots=True)
class Offered:
    """These verifiers may be used."""

    offers: tuple[Offer, ...]


Effect = Publish | Save | Changed | Run | Offered
