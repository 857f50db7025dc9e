"""What a fleet sets is what the daemon's next texts are written with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from edge_client.config import EdgeConfig, Overlay, load_config
from tests.test_docs import NoVerifiers

pytestmark = pytest.mark.api


def reconfigured(values: Mapping[str, Any]) -> EdgeConfig:
    sections = dict[str, dict[str, Any]]()
    for name, value in values.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    return load_config({}, {}, [], Overlay("the fleet", sections)).config


def link() -> Any:
    from edge_client.api.service import Defaults, TextService
    from edge_client.daemon.device import Device, DeviceSettings
    from edge_client.fleet_link import FleetLink
    from tests.edge_client.api.world import Letters

    device = Device(Letters(), NoVerifiers(), None, DeviceSettings())  # type: ignore[arg-type]
    service = TextService(device, Defaults())
    none: Any = None  # its own verifiers are asked for telemetry only
    return FleetLink(device, service, None, none, str, reconfigured, version="1", began_at=0.0)


def test_a_policy_from_afar_is_held_to_the_power_budget() -> None:
    found = link()
    assert found.apply({"draft.power_steps_per_second": 20.0, "draft.recall": False}) == []
    assert found.service.defaults.policy == "adaptive:max_steps_per_second=20"
    assert not found.service.defaults.recall


def test_a_policy_that_knows_no_budget_is_refused_with_one_and_changes_nothing() -> None:
    found = link()
    before = found.service.defaults
    (said,) = found.apply({"draft.power_steps_per_second": 20.0, "draft.policy": "chain"})
    assert "chain" in said
    assert found.service.defaults == before
