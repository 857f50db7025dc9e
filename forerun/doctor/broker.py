"""The fleet's broker, where one is configured: may this device do what it must, and no more?"""

from __future__ import annotations

import asyncio
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from common.errors import ForerunError
from edge_client.config.sections import FleetSection
from edge_client.paths import expand
from forerun.doctor.finding import Finding, Level, fail, skip

TLS_PORT, PLAIN_PORT = 8883, 1883


def check_fleet(fleet: FleetSection, state: Path) -> list[Finding]:
    """By `edge_client.fleet.check`, whose findings are made ours."""
    if not fleet.broker:
        return [skip("broker", "none is configured (fleet.broker)")]
    if find_spec("edge_client.fleet") is None or find_spec("edge_client.fleet.check") is None:
        return [skip("broker", "this installation has no part that speaks to brokers")]
    try:
        check, settings = (
            import_module("edge_client.fleet.check"),
            import_module("edge_client.fleet.settings"),
        )
    except ImportError as error:
        return [skip("broker", f"{error.name} is not installed; pip install 'forerun[edge]'")]
    try:
        found = asyncio.run(check.check_broker(_settings(settings, fleet, state)))
    except (ForerunError, OSError) as error:
        return [fail("broker", str(error))]
    return [_finding(each) for each in found]


def _settings(module: Any, fleet: FleetSection, state: Path) -> Any:
    """`FleetSettings` of the configuration."""
    parts = urlsplit(fleet.broker)
    tls = parts.scheme == "mqtts"
    password = expand(fleet.password_file).read_text().strip() if fleet.password_file else ""
    broker = module.BrokerSettings(
        host=parts.hostname or "",
        port=parts.port or (TLS_PORT if tls else PLAIN_PORT),
        tls=tls,
        ca=_file(fleet.ca),
        certificate=_file(fleet.cert),
        key=_file(fleet.key),
        username=fleet.username,
        password=password,
    )
    return module.FleetSettings(broker=broker, tenant=fleet.tenant, device=fleet.device, state_dir=state)


def _finding(found: Any) -> Finding:
    """`ok` None: it works, and should be better."""
    level = Level.WARN if found.ok is None else Level.OK if found.ok else Level.FAIL
    return Finding("broker", level, str(found.words))


def _file(path: str) -> Path | None:
    return expand(path) if path else None
