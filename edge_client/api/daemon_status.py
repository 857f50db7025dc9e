"""Serves /v1/status, which describes all parts of the daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edge_client.core.effects import Fallback, Mode
from edge_client.network.generation import Generation
from edge_client.network.member import Health, VerifierStatus
from edge_client.texts.text_service import Orders, TextService


def verifier_status(verifier: VerifierStatus) -> dict[str, Any]:
    """Return one verifier's part of the status."""
    return {
        "address": verifier.address,
        "health": verifier.health.value,
        "reachable": verifier.health in (Health.READY, Health.FULL, Health.DRAINING),
        "why": verifier.why,
        "for_s": round(verifier.lasts, 1),
        "rtt_ms": _ms(verifier.latest_rtt),
        "min_rtt_ms": _ms(verifier.min_rtt),
        "smoothed_rtt_ms": _ms(verifier.smoothed_rtt),
        "model": verifier.model,
        "version": verifier.version,
        "fits": verifier.fits,
        "sessions": verifier.num_sessions,
        "max_sessions": verifier.max_sessions,
        "streams": verifier.num_streams,
        "last_error": verifier.last_error,
        "privacy": None if verifier.held is None else verifier.held.as_json(),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 2)


@dataclass(frozen=True, slots=True)
class PairStatus:
    """Builds the status of one pair from callables, which it calls anew each time."""

    texts: TextService
    fallback: Fallback
    draft: Callable[[], dict[str, Any]]
    verifiers: Callable[[], list[dict[str, Any]]]
    proposes: Callable[[], bool]  # whether a text that begins now is drafted

    def __call__(self) -> dict[str, Any]:
        verifiers = self.verifiers()
        return {
            "mode": self._mode_word(verifiers),
            "privacy": self.texts.settings.privacy.title,
            "draft": self.draft(),
            "verifiers": verifiers,
            "streams": [
                {"id": name, "verifier": run.verifier, **run.held.as_json()}
                for name, live in self.texts.live.items()
                if isinstance(run := live.answer.run, Generation) and run.held is not None
            ],
            "ended": dict(self.texts.totals.ended),
            "totals": {name: round(value, 3) for name, value in self.texts.totals.sums.items()},
        }

    def _mode(self, verifiers: list[dict[str, Any]]) -> Mode | None:
        """Return the mode of a text that would begin now; None if the fleet has halted the device."""
        is_reachable = any(each["reachable"] for each in verifiers)
        orders, can_draft = self.texts.orders, self.texts.can_draft
        if orders is Orders.HALT:
            return None
        if is_reachable and orders is not Orders.REMOTE_OFF:
            return Mode.AHEAD if self.proposes() and orders is not Orders.DRAFT_OFF else Mode.SERVER_ONLY
        alone = orders is Orders.REMOTE_OFF or (can_draft and self.fallback is Fallback.DRAFT)
        return Mode.DEVICE_ONLY if alone else Mode.WAITING

    def mode_word(self) -> str:
        """Return the mode of a text that would begin now, as a word."""
        return self._mode_word(self.verifiers())

    def _mode_word(self, verifiers: list[dict[str, Any]]) -> str:
        mode = self._mode(verifiers)
        return mode.value if mode is not None else Orders.HALT.value

    def why_not_ready(self) -> str:
        """Return why requests would fail now; empty if they would not."""
        verifiers = self.verifiers()
        unfit = [each["why"] for each in verifiers if each["health"] == Health.UNFIT.value]
        if unfit and len(unfit) == len(verifiers) and self.texts.orders in (Orders.NONE, Orders.DRAFT_OFF):
            return f"no verifier fits this device: {'; '.join(dict.fromkeys(unfit))}"
        if (mode := self._mode(verifiers)) is None:
            return "this device's fleet has halted it"
        return "no verifier answers" if mode is Mode.WAITING else ""


@dataclass(frozen=True, slots=True)
class StatusPage:
    """Builds the status of the daemon. Its own mode, privacy and draft are those of the first pair."""

    pairs: Mapping[str, PairStatus]  # by name, which is empty for the only one
    about: Mapping[str, Any]  # of the process: version, pid, start time
    fleet: Callable[[], dict[str, Any]]
    uptime: Callable[[], float]  # seconds

    @property
    def first(self) -> PairStatus:
        return next(iter(self.pairs.values()))

    def __call__(self) -> dict[str, Any]:
        pairs = {name: pair() for name, pair in self.pairs.items()}
        first, texts = next(iter(pairs.values())), self.first.texts
        queue = texts.admission
        ended, totals = (_sum(pair[name] for pair in pairs.values()) for name in ("ended", "totals"))
        return {
            **self.about,
            "uptime_s": round(self.uptime(), 1),
            "mode": first["mode"],
            "orders": texts.orders.value,
            "privacy": first["privacy"],
            "draft": first["draft"],
            "verifiers": [each for pair in pairs.values() for each in pair["verifiers"]],
            "streams": [each for pair in pairs.values() for each in pair["streams"]],
            "texts": {
                "running": queue.num_active,
                "waiting": queue.num_waiting,
                "refused": queue.num_refused,
                "ended": ended,
            },
            "totals": totals,
            "pairs": pairs if any(pairs) else {},
            "fleet": self.fleet(),
        }

    def verifiers(self) -> list[dict[str, Any]]:
        return [each for pair in self.pairs.values() for each in pair.verifiers()]

    def why_not_ready(self) -> str:
        """Return why requests of all pairs would fail now; empty if those of one would not."""
        whys = {name: pair.why_not_ready() for name, pair in self.pairs.items()}
        if not all(whys.values()):
            return ""
        return "; ".join(f"{name}: {why}" if name else why for name, why in whys.items())


def _sum(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of counts by name, in thousandths as each of them is given."""
    total = dict[str, float]()
    for each in counts:
        for name, count in each.items():
            total[name] = round(total.get(name, 0) + count, 3)
    return total
