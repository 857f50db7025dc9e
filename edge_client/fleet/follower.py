"""Connects the daemon to its fleet: reports its figures and applies the document's settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.wire.bounds import model_name
from edge_client.core.effects import Fallback
from edge_client.fleet.document import Kill
from edge_client.network.member import Health, VerifierStatus
from edge_client.pair import Pair
from edge_client.settings import EdgeConfig
from edge_client.texts.text_service import Orders

Reconfigure = Callable[[Mapping[str, Any]], EdgeConfig]
"""Merges the document's settings, by name, below all local ones -> the new configuration. Raises `UserError`
for an invalid setting."""


@dataclass(frozen=True, slots=True)
class FleetFollower:
    """Gives the fleet its view of a daemon. Called on the event loop; no call may block."""

    pairs: Sequence[Pair]  # the default first
    mode: Callable[[], str]  # as the status page shows it
    reconfigure: Reconfigure
    version: str
    began_at: float  # seconds, `time.monotonic`

    def about(self) -> dict[str, str]:
        """Return the facts that a birth reports."""
        ready = self._ready()
        drafts = [
            model_name(Path(pair.drafts.current.file).stem)
            if pair.drafts
            else pair.service.defaults.draft_name
            for pair in self.pairs
        ]
        return {
            "version": self.version,
            "draft": ", ".join(dict.fromkeys(filter(None, drafts))),
            "verifier": ready[0].address if ready else "",
            "mode": self.mode(),
        }

    def telemetry(self) -> dict[str, float | None]:
        """Return figures of all pairs. Counts run since the daemon started."""
        every = [pair.texts for pair in self.pairs]
        sums = {name: sum(texts.totals.sums[name] for texts in every) for name in every[0].totals.sums}
        recent = [figures for _, figures in max(every, key=lambda texts: texts.ended_at).recent]
        rtts = [each.smoothed_rtt for each in self._ready() if each.smoothed_rtt is not None]
        return {
            "generations": sum(sum(texts.totals.ended.values()) for texts in every),
            "active": every[0].admission.num_active,
            "tokens": int(sums["tokens"]),
            "drafted": int(sums["proposed"]),
            "accepted": int(sums["accepted"]),
            "resumes": int(sums["resumes"]),
            "errors": sum(texts.totals.ended.get("broken off", 0) for texts in every),
            "ttft_ms": recent[-1].first_token_ms if recent else None,  # of the last text
            "speedup": recent[-1].estimated_speedup if recent else None,  # against server streaming
            "rtt_ms": min(rtts) * 1e3 if rtts else None,
            "bytes_up": int(sums["bytes_up"]),
            "bytes_down": int(sums["bytes_down"]),
            "uptime_s": time.monotonic() - self.began_at,
        }

    def _ready(self) -> list[VerifierStatus]:
        every = [each for pair in self.pairs for each in pair.verifiers.snapshot()]
        return [each for each in every if each.health is Health.READY]

    def obey(self, kill: Kill) -> None:
        """Apply the kill switch to every text that begins from now on."""
        for pair in self.pairs:
            pair.texts.orders = Orders(kill.value)

    def apply(self, settings: Mapping[str, Any]) -> str:
        """Apply the fleet's settings at once to all pairs that have none of their own.

        Return their fault as a sentence, or an empty one.
        """
        try:
            configs = self.reconfigure(settings).each_pair
            policies = {name: config.draft.growth_policy() for name, config in configs.items()}
        except UserError as error:
            return str(error)
        for pair in (each for each in self.pairs if each.name in configs):  # the file may have lost one since
            config = configs[pair.name]
            if pair.drafts is not None:
                pair.drafts.keep_alive = config.draft.keep_alive
                pair.drafts.wanted = config.draft.update
            pair.service.defaults = replace(
                pair.service.defaults,
                policy=policies[pair.name],
                recall=config.draft.recall,
                fallback=Fallback(config.verifier.fallback),
            )
        return ""
