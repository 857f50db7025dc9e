"""Names and topics of a fleet (docs/fleet.md): where a message of a device, an operator or a verifier goes.

forerun/v1/{tenant}/{device}/status             device: retained birth, and its last will
                            /telemetry/{part}   device: spec, link, host
                            /event              device
                            /config/desired     operator: retained, signed
                            /config/reported    device: retained
                            /cmd/{id}           operator: signed
                            /cmd/{id}/ack       device
forerun/v1/{tenant}/fleet/config                operator: retained, signed, for every device
                   /fleet/kill                  operator: retained, signed, for every device
                   /verifier/{id}/status        verifier: retained, and its last will
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from common.errors import UserError

ROOT = "forerun/v1"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""A tenant, device, verifier or command: nothing that MQTT reads as a wildcard, a level or a system topic."""

RESERVED = ("fleet", "verifier")
"""Levels that stand where a device's name does."""

PARTS = ("spec", "link", "host")
"""Of telemetry."""


def check_name(what: str, name: str) -> str:
    """The name. Raises `UserError` that says what a `what` may be called."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"{what} is {name!r}; it must be 1 to 64 letters, digits, dots, dashes and underscores, and "
            "begin with a letter or digit (the signs + # / mean something else in MQTT topics)"
        )
    return name


@dataclass(frozen=True, slots=True)
class TenantTopics:
    """What all devices of a tenant share, and the filters with which an operator listens to them."""

    tenant: str

    def __post_init__(self) -> None:
        check_name("the tenant", self.tenant)

    @property
    def base(self) -> str:
        return f"{ROOT}/{self.tenant}"

    @property
    def fleet_config(self) -> str:
        return f"{self.base}/fleet/config"

    @property
    def kill(self) -> str:
        return f"{self.base}/fleet/kill"

    @property
    def verifiers(self) -> str:
        """Filter: the status of every verifier."""
        return self.verifier("+")

    @property
    def devices(self) -> str:
        """Filter: the status of every device."""
        return f"{self.base}/+/status"

    @property
    def device_events(self) -> str:
        """Filter: the events of every device."""
        return f"{self.base}/+/event"

    def verifier(self, name: str) -> str:
        return f"{self.base}/verifier/{name}/status"

    def device(self, name: str) -> DeviceTopics:
        return DeviceTopics(self.tenant, name)

    def device_of(self, topic: str) -> str | None:
        """Whose status this topic is; None for any other topic."""
        name = _between(topic, f"{self.base}/", "/status")
        return name if name is not None and name not in RESERVED else None

    def teller_of(self, topic: str) -> str | None:
        """Whose event topic this is; None for any other topic."""
        return _between(topic, f"{self.base}/", "/event")

    def verifier_of(self, topic: str) -> str | None:
        """Whose status this topic is; None for any other topic."""
        return _between(topic, f"{self.base}/verifier/", "/status")


@dataclass(frozen=True, slots=True)
class DeviceTopics:
    """The topics of one device."""

    tenant: str
    device: str

    def __post_init__(self) -> None:
        check_name("the tenant", self.tenant)
        check_name("the device", self.device)
        if self.device in RESERVED:
            raise UserError(
                f"a device cannot be called {self.device!r}: topics of the whole fleet stand there"
            )

    @property
    def shared(self) -> TenantTopics:
        return TenantTopics(self.tenant)

    @property
    def base(self) -> str:
        return f"{ROOT}/{self.tenant}/{self.device}"

    @property
    def status(self) -> str:
        return f"{self.base}/status"

    @property
    def event(self) -> str:
        return f"{self.base}/event"

    @property
    def desired(self) -> str:
        return f"{self.base}/config/desired"

    @property
    def reported(self) -> str:
        return f"{self.base}/config/reported"

    @property
    def commands(self) -> str:
        """Filter: every command, and no ack."""
        return f"{self.base}/cmd/+"

    def telemetry(self, part: str) -> str:
        return f"{self.base}/telemetry/{part}"

    def command(self, name: str) -> str:
        return f"{self.base}/cmd/{name}"

    def ack(self, name: str) -> str:
        return f"{self.base}/cmd/{name}/ack"

    def command_of(self, topic: str) -> str | None:
        """The id of the command that this topic carries; None for any other topic."""
        return _between(topic, f"{self.base}/cmd/", "")


def _between(topic: str, before: str, after: str) -> str | None:
    if not (topic.startswith(before) and topic.endswith(after)):
        return None
    name = topic[len(before) : len(topic) - len(after)]
    return name if NAME.fullmatch(name) else None
