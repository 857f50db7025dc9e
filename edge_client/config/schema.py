"""The schema: all sections together, and every setting by name."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from edge_client.config.sections import (
    ApiSection,
    DraftSection,
    FleetSection,
    LogSection,
    ServiceSection,
    VerifierSection,
)
from edge_client.config.setting import Entry, entries_of


@dataclass(frozen=True, slots=True)
class EdgeConfig:
    """All that the daemon is told."""

    verifier: VerifierSection = field(default_factory=VerifierSection)
    draft: DraftSection = field(default_factory=DraftSection)
    api: ApiSection = field(default_factory=ApiSection)
    fleet: FleetSection = field(default_factory=FleetSection)
    log: LogSection = field(default_factory=LogSection)
    service: ServiceSection = field(default_factory=ServiceSection)


SECTIONS: dict[str, type[Any]] = {
    each.NAME: each
    for each in (VerifierSection, DraftSection, ApiSection, FleetSection, LogSection, ServiceSection)
}
"""By their names in a file."""

ENTRIES: tuple[Entry, ...] = tuple(
    entry for name, section in SECTIONS.items() for entry in entries_of(name, section)
)
"""Every setting, in the order of the file."""

BY_NAME: dict[str, Entry] = {entry.name: entry for entry in ENTRIES}

LOCAL_ONLY: frozenset[str] = frozenset(entry.name for entry in ENTRIES if entry.setting.is_local)
"""What a fleet may never set: who may reach this device, whom it trusts, and where its files are."""

if tuple(SECTIONS) != tuple(each.name for each in fields(EdgeConfig)):
    raise AssertionError("the sections of EdgeConfig are not those of SECTIONS")
