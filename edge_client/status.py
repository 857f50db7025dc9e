"""What /v1/status tells: one look at everything the daemon has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edge_client.core.config import Fallback
from edge_client.core.policies.governor import Mode
from edge_client.daemon.device import Device, Orders


@dataclass(frozen=True, slots=True)
class StatusPage:
    """Where the page's parts come from. Each part is a callable, asked anew for every page."""

    device: Device
    fallback: Fallback
    about: Mapping[str, Any]  # of the process: version, pid, when it began
    draft: Callable[[], dict[str, Any]]
    verifiers: Callable[[], list[dict[str, Any]]]
    fleet: Callable[[], dict[str, Any]]
    uptime: Callable[[], float]  # seconds

    def __call__(self) -> dict[str, Any]:
        device = self.device
        verifiers = self.verifiers()
        return {
            **self.about,
            "uptime_s": round(self.uptime(), 1),
            "mode": self.mode(any(each["reachable"] for each in verifiers)),
            "orders": device.orders.value,
            "draft": self.draft(),
            "verifiers": verifiers,
            "texts": {
                "running": device.admission.num_active,
                "waiting": device.admission.num_waiting,
                "refused": device.admission.num_refused,
                "ended": dict(device.totals.ended),
            },
            "totals": {name: round(value, 3) for name, value in device.totals.sums.items()},
            "fleet": self.fleet(),
        }

    def mode(self, is_reachable: bool) -> str:
        """Who would write a text that began now."""
        orders, can_draft = self.device.orders, self.device.can_draft
        if orders is Orders.HALT:
            return orders.value
        if is_reachable and orders is not Orders.REMOTE_OFF:
            drafts = can_draft and orders is not Orders.DRAFT_OFF
            return (Mode.AHEAD if drafts else Mode.SERVER_ONLY).value
        if orders is Orders.REMOTE_OFF or (can_draft and self.fallback is Fallback.DRAFT):
            return Mode.DEVICE_ONLY.value
        return Mode.WAITING.value

    def why_not_ready(self) -> str:
        """Why a request could not be answered now; empty if it can."""
        mode = self.mode(any(each["reachable"] for each in self.verifiers()))
        if mode == Orders.HALT.value:
            return "this device's fleet has halted it"
        return "no verifier answers" if mode == Mode.WAITING.value else ""
