"""The broker's check: none configured; its findings made ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from edge_client.config.sections import FleetSection
from forerun.doctor import broker
from forerun.doctor.broker import check_fleet
from forerun.doctor.finding import Finding, Level


def test_without_a_broker_it_is_skipped(tmp_path: Path) -> None:
    (found,) = check_fleet(FleetSection(), tmp_path)
    assert found.level is Level.SKIP


@dataclass
class Told:
    ok: bool | None
    words: str


@pytest.mark.parametrize(("ok", "level"), [(True, Level.OK), (False, Level.FAIL), (None, Level.WARN)])
def test_findings_of_the_fleet_are_made_ours(ok: bool | None, level: Level) -> None:
    assert broker._finding(Told(ok, "w")) == Finding("broker", level, "w")
