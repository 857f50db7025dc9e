"""Settings are checked where they are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from edge_client.fleet.settings import BrokerSettings, FleetSettings

BROKER = BrokerSettings("broker.example")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host": ""}, "a host and a port"),
        ({"port": 0}, "a host and a port"),
        ({"certificate": Path("a")}, "needs its key"),
        ({"tls": False, "ca": Path("a")}, "without TLS"),
        ({"keepalive": 1}, r"in \[5, 3600\]"),
        ({"timeout": 0.0}, r"in \(0, 60\]"),
        ({"tls": False, "password": "x"}, "in the clear"),
    ],
)
def test_a_broker_that_cannot_be_meant_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        BrokerSettings(**({"host": "broker.example"} | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tenant": "a/b"}, "the tenant is"),
        ({"device": "+"}, "the device is"),
        ({"device": "fleet"}, "whole fleet"),
        ({"keys": (b"short",)}, "an Ed25519 key has 32"),
        ({"telemetry_interval": 0.5}, "must be 0 or lie"),
        ({"first_backoff": 9.0, "max_backoff": 1.0}, "not a range"),
        ({"message_burst": 0}, "above 0"),
    ],
)
def test_a_device_that_cannot_be_meant_is_refused(changes: dict[str, Any], words: str) -> None:
    fields: dict[str, Any] = {
        "broker": BROKER,
        "tenant": "acme",
        "device": "pi-1",
        "state_dir": Path("state"),
    }
    with pytest.raises(UserError, match=words):
        FleetSettings(**(fields | changes))


def test_a_password_is_shown_nowhere() -> None:
    assert "hunter2" not in repr(BrokerSettings("broker.example", username="u", password="hunter2"))


def test_a_ca_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for path in (tmp_path / "ca.pem", tmp_path / "none.pem"):
        with pytest.raises(UserError, match="CA certificates"):
            BrokerSettings("broker.example", ca=path).context()
