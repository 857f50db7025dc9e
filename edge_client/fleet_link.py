"""The daemon in its fleet: what it tells, and what orders change here. Never on a token's path."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import CapacityError, LocalError, UserError
from edge_client.api.service import TextService
from edge_client.config import EdgeConfig
from edge_client.config.schema import BY_NAME, LOCAL_ONLY
from edge_client.config.sections import FleetSection
from edge_client.core.config import Fallback
from edge_client.core.fleet.discovery import Offer
from edge_client.core.fleet.payloads import (
    CommandName,
    DraftState,
    HostTelemetry,
    Kill,
    LinkState,
    LinkTelemetry,
    Mode,
    SpecTelemetry,
    Telemetry,
    label,
)
from edge_client.core.fleet.presence import About
from edge_client.core.fleet.standing import FleetOrders
from edge_client.daemon.device import Device, Orders
from edge_client.draft_model import DraftModel, ModelState
from edge_client.edge_daemon import policy_of
from edge_client.fleet.fleet import Fleet
from edge_client.fleet.hooks import Hooks
from edge_client.fleet.keys import read_public
from edge_client.fleet.settings import BrokerSettings, FleetSettings
from edge_client.verifiers import Verifiers
from edge_client.verifiers.status import Health

ORDERS = {
    Kill.NONE: Orders.NONE,
    Kill.DRAFT_OFF: Orders.DRAFT_OFF,
    Kill.REMOTE_OFF: Orders.REMOTE_OFF,
    Kill.HALT: Orders.HALT,
}

MODES = {mode.value.replace("_", "-"): mode for mode in Mode}

DRAFT_STATES = {
    ModelState.LOADED: DraftState.LOADED,
    ModelState.FAILED: DraftState.FAILED,
    ModelState.LOADING: DraftState.UNLOADED,
    ModelState.UNLOADED: DraftState.UNLOADED,
}

Reconfigure = Callable[[Mapping[str, Any]], EdgeConfig]
"""The fleet's values by their names (`draft.policy`) -> the configuration with them below all that is set
locally. Raises `UserError` for what does not fit."""


@dataclass(frozen=True, slots=True)
class FleetLink:
    """What the fleet sees of a daemon and can reach in it."""

    device: Device
    service: TextService
    drafts: DraftModel | None
    verifiers: Verifiers
    mode: Callable[[], str]  # as the status page tells it
    reconfigure: Reconfigure
    version: str
    began_at: float  # seconds, `time.monotonic`
    values: dict[str, Any] = field(default_factory=dict)  # the fleet's, as they hold now

    def fleet(self, settings: FleetSettings) -> Fleet:
        """The task to run."""
        hooks = Hooks(self.telemetry, self.on_orders, self.apply, self.act, self.on_offers)
        return Fleet(settings, self.about(), hooks)

    def about(self) -> About:
        """What the birth tells."""
        ready = [each for each in self.verifiers.snapshot() if each.health is Health.READY]
        return About(
            version=label(self.version),
            draft=label(self.service.defaults.draft_name),
            verifier=label(ready[0].address) if ready else "",
            mode=MODES.get(self.mode(), Mode.IDLE),
        )

    # What it tells ----------------------------------------------------------------------------------------

    def telemetry(self) -> Telemetry:
        """Numbers and states; the schema has no room for a text."""
        return Telemetry(self._spec(), self._link(), self._host())

    def _spec(self) -> SpecTelemetry:
        device = self.device
        sums, recent = device.totals.sums, [figures for _, figures in device.recent]
        proposed = int(sums["proposed"])
        return SpecTelemetry(
            generations=sum(device.totals.ended.values()),
            active=device.admission.num_active,
            tokens=int(sums["tokens"]),
            drafted=proposed,
            accepted=int(sums["accepted"]),
            resumes=int(sums["resumes"]),
            errors=device.totals.ended.get("broken off", 0),
            acceptance=min(1.0, sums["accepted"] / proposed) if proposed else None,
            ttft_ms=recent[-1].first_token_ms if recent else None,
            speedup=min(1000.0, recent[-1].estimated_speedup) if recent else None,
        )

    def _link(self) -> LinkTelemetry:
        found = self.verifiers.snapshot()
        ready = [each for each in found if each.health is Health.READY]
        state = LinkState.UP if ready else LinkState.DOWN if found else LinkState.UNKNOWN
        rtts = [each.smoothed_rtt for each in ready if each.smoothed_rtt is not None]
        sums = self.device.totals.sums
        return LinkTelemetry(
            state=state,
            rtt_ms=min(rtts) * 1e3 if rtts else None,
            bytes_up=int(sums["bytes_up"]),
            bytes_down=int(sums["bytes_down"]),
            reconnects=int(sums["resumes"]),
        )

    def _host(self) -> HostTelemetry:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        per_mebibyte = 2**20 if sys.platform == "darwin" else 2**10  # what ru_maxrss counts in
        uptime = time.monotonic() - self.began_at
        return HostTelemetry(
            uptime_s=uptime,
            rss_mb=usage.ru_maxrss / per_mebibyte,
            cpu=(usage.ru_utime + usage.ru_stime) / uptime if uptime > 0 else None,
            draft=DRAFT_STATES[self.drafts.state] if self.drafts is not None else DraftState.UNLOADED,
        )

    # What is ordered --------------------------------------------------------------------------------------

    def on_orders(self, orders: FleetOrders) -> None:
        """The kill switch holds for every text that begins from now on."""
        self.device.orders = ORDERS[orders.kill]

    def on_offers(self, offers: Sequence[Offer]) -> None:
        """Verifiers that may be used beside the owner's."""
        self.verifiers.offer(offer.endpoint for offer in offers)

    def apply(self, values: Mapping[str, Any]) -> list[str]:
        """Settings from afar; what is wrong with them, in sentences. Policy, recall and keep-alive hold at
        once, others from the daemon's next start."""
        try:
            config = self.reconfigure(values)
            policy = policy_of(config.draft)
        except UserError as error:
            return [str(error)]
        if self.drafts is not None:
            self.drafts.keep_alive = config.draft.keep_alive
        self.service.defaults = replace(
            self.service.defaults,
            policy=policy,
            recall=config.draft.recall,
            fallback=Fallback(config.verifier.fallback),
        )
        told = dict(values)  # may be `values` itself
        self.values.clear()
        self.values.update(told)
        return []

    async def act(self, command: CommandName) -> None:
        """Carry a command out. Raises `ForerunError` if it cannot."""
        if command is CommandName.RELOAD_CONFIG:
            if errors := self.apply(self.values):
                raise UserError("; ".join(errors))
            return
        if self.drafts is None:
            raise LocalError("no draft model is configured here")
        if command is CommandName.LOAD_DRAFT:
            await self.drafts.load()
        elif command is CommandName.UNLOAD_DRAFT and not await self.drafts.unload():
            raise CapacityError("texts are being drafted; the model goes when they have ended")


def fleet_settings(section: FleetSection, state: Path) -> FleetSettings:
    """Of the daemon's configuration. Raises `UserError` for files that cannot be read."""
    scheme, _, place = section.broker.partition("://")
    host, _, port = place.rpartition(":")
    tls = scheme == "mqtts"
    broker = BrokerSettings(
        host=host.strip("[]"),
        port=int(port),
        tls=tls,
        ca=_path(section.ca),
        certificate=_path(section.cert),
        key=_path(section.key),
        username=section.username,
        password=_password(section.password_file),
    )
    keys = (read_public(section.public_key),) if section.public_key else ()
    return FleetSettings(
        broker,
        section.tenant,
        section.device,
        state,
        keys,
        verifier_keys=(read_public(section.verifier_public_key),) if section.verifier_public_key else (),
        allowed_endpoints=section.verifier_patterns,
        discover=section.discover,
        allowed_settings=frozenset(BY_NAME) - LOCAL_ONLY,
        telemetry_interval=section.telemetry_interval,
    )


async def keep_telling(fleet: Fleet, link: FleetLink) -> None:
    """Tell the fleet of another mode, draft or verifier when it happens, until cancelled."""
    while True:
        changed = asyncio.Event()
        stop = link.verifiers.listen(changed.set)
        try:
            fleet.tell(link.about())
            await changed.wait()
        finally:
            stop()


def _path(name: str) -> Path | None:
    return Path(name) if name else None


def _password(file: str) -> str:
    if not file:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the broker's password file {file} cannot be read: {error}") from error
