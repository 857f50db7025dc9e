"""What /v1/status tells: one look at everything the daemon has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edge_client.core.config import Fallback
from edge_client.core.policies.governor import Mode
from edge_client.daemon.device import Device, Orders
from edge_client.generation import Generation
from edge_client.verifiers.status import Health, VerifierStatus


def verifier_status(found: VerifierStatus) -> dict[str, Any]:
    """One verifier, as the page tells it."""
    return {
        "address": found.address,
        "health": found.health.value,
        "reachable": found.health in (Health.READY, Health.FULL, Health.DRAINING),
        "why": found.why,
        "for_s": round(found.lasts, 1),
        "rtt_ms": _ms(found.latest_rtt),
        "min_rtt_ms": _ms(found.min_rtt),
        "smoothed_rtt_ms": _ms(found.smoothed_rtt),
        "model": found.model,
        "version": found.version,
        "fits": found.fits,
        "sessions": found.num_sessions,
        "max_sessions": found.max_sessions,
        "streams": found.num_streams,
        "last_error": found.last_error,
        "privacy": None if found.held is None else found.held.as_json(),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 2)


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
        device, verifiers = self.device, self.verifiers()
        return {
            **self.about,
            "uptime_s": round(self.uptime(), 1),
            "mode": _word(self._mode_among(verifiers)),
            "orders": device.orders.value,
            "privacy": device.settings.privacy.title,
            "draft": self.draft(),
            "verifiers": verifiers,
            "streams": [*self._streams()],
            "texts": {
                "running": device.admission.num_active,
                "waiting": device.admission.num_waiting,
                "refused": device.admission.num_refused,
                "ended": dict(device.totals.ended),
            },
            "totals": {name: round(value, 3) for name, value in device.totals.sums.items()},
            "fleet": self.fleet(),
        }

    def _streams(self) -> Iterator[dict[str, Any]]:
        """Of the texts under way: which privacy holds on each, whatever was asked for."""
        for name, live in self.device.live.items():
            run = live.answer.run
            if isinstance(run, Generation) and run.held is not None:
                yield {"id": name, "verifier": run.verifier, **run.held.as_json()}

    def mode(self, is_reachable: bool) -> Mode | None:
        """Who would write a text that began now; None: nobody may."""
        orders, can_draft = self.device.orders, self.device.can_draft
        if orders is Orders.HALT:
            return None
        if is_reachable and orders is not Orders.REMOTE_OFF:
            return Mode.AHEAD if can_draft and orders is not Orders.DRAFT_OFF else Mode.SERVER_ONLY
        alone = orders is Orders.REMOTE_OFF or (can_draft and self.fallback is Fallback.DRAFT)
        return Mode.DEVICE_ONLY if alone else Mode.WAITING

    def mode_word(self) -> str:
        """The same in a word, the verifiers being asked how they are."""
        return _word(self._mode_among(self.verifiers()))

    def why_not_ready(self) -> str:
        """Why a request could not be answered now; empty if it can."""
        verifiers = self.verifiers()
        mode = self._mode_among(verifiers)
        unfit = [each["why"] for each in verifiers if each["health"] == Health.UNFIT.value]
        if unfit and len(unfit) == len(verifiers) and self.device.orders in (Orders.NONE, Orders.DRAFT_OFF):
            return f"no verifier fits this device: {'; '.join(dict.fromkeys(unfit))}"
        match mode:
            case None:
                return "this device's fleet has halted it"
            case Mode.WAITING:
                return "no verifier answers"
            case _:
                return ""

    def _mode_among(self, verifiers: list[dict[str, Any]]) -> Mode | None:
        return self.mode(any(each["reachable"] for each in verifiers))


def _word(mode: Mode | None) -> str:
    return mode.value if mode is not None else Orders.HALT.value
