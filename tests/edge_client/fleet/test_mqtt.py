"""A connection carries messages over TLS, and fails with an error."""

import asyncio
import base64
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import UnavailableError, UserError
from edge_client.settings import FleetSection
from tests.edge_client.fleet.broker import broker
from tests.support.ports import refusing
from tests.support.waiting import until

pytestmark = pytest.mark.broker


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    from edge_client.fleet import mqtt

    monkeypatch.setattr(mqtt, "TIMEOUT", 2.0)


def at(port: int, scheme: str = "mqtt", **more: Any) -> FleetSection:
    return FleetSection(broker=f"{scheme}://127.0.0.1:{port}", tenant="acme", device="pi-1", **more)


async def connect(fleet: FleetSection) -> None:
    """Make a connection and wait for its end."""
    from edge_client.fleet.mqtt import connected, subscribe

    async with asyncio.timeout(30), connected(fleet, "pi-1") as client:
        await subscribe(client, "mine")
        async for _ in client.messages:
            pass


@pytest.mark.filterwarnings(
    "ignore:unclosed <ssl.SSLSocket:ResourceWarning"
)  # paho's, after a failed handshake
async def test_certificates_are_checked_at_both_ends(tmp_path: Path) -> None:
    from edge_client.fleet.mqtt import connected, subscribe
    from tests.edge_client.fleet.world import certificates

    pems = tmp_path / "pems"
    certificates(pems, "pi-1")
    certificates(tmp_path / "others")
    more = ("require_certificate true", "use_identity_as_username true")
    with broker(tmp_path / "broker", certificates=pems, more=more) as found:
        bare = at(found.port, "mqtts", ca=str(pems / "ca.pem"))
        for wrong in (bare, replace(bare, ca=str(tmp_path / "others" / "ca.pem")), at(found.port, "mqtts")):
            with pytest.raises(UnavailableError):
                await connect(wrong)
        full = replace(bare, cert=str(pems / "pi-1.pem"), key=str(pems / "pi-1.key"))
        async with connected(full, "pi-1") as client:
            await subscribe(client, "mine")
            for number in range(50):  # more than one TLS record holds
                await client.publish("mine", bytes([number]) * 2000, qos=1)
            await until(lambda: len(client.messages) == 50)
        for wrong in (
            replace(full, key=str(pems / "server.key")),
            replace(bare, ca=str(tmp_path / "none.pem")),
        ):
            with pytest.raises(UserError):
                await connect(wrong)


async def test_a_password_lets_in_over_tls(tmp_path: Path) -> None:
    from edge_client.fleet.mqtt import connected
    from tests.edge_client.fleet.world import certificates

    certificates(tmp_path / "pems")
    salt = bytes(12)
    key = hashlib.pbkdf2_hmac("sha512", b"secret", salt, 101)
    words = "$".join(base64.b64encode(each).decode() for each in (salt, key))
    (tmp_path / "passwords").write_text(f"pi-1:$7$101${words}\n")  # as mosquitto_passwd writes them
    (tmp_path / "passwords").chmod(0o600)
    (tmp_path / "right").write_text("secret\n")
    (tmp_path / "wrong").write_text("wrong\n")
    more = (f"password_file {tmp_path / 'passwords'}",)
    with broker(tmp_path / "broker", certificates=tmp_path / "pems", more=more) as found:
        ca = str(tmp_path / "pems" / "ca.pem")
        by = {name: str(tmp_path / name) for name in ("right", "wrong", "none")}
        fleets = {
            name: at(found.port, "mqtts", ca=ca, username="pi-1", password_file=file)
            for name, file in by.items()
        }
        async with connected(fleets["right"], "pi-1") as client:
            await client.publish("mine", b"x", qos=1)
        for name, error in (("wrong", UnavailableError), ("none", UserError)):
            with pytest.raises(error):
                await connect(fleets[name])


async def test_what_cannot_be_reached_is_unavailable(tmp_path: Path) -> None:
    with refusing() as address:
        port = int(address.rpartition(":")[2])
    for fleet in (
        at(port),
        replace(at(port), broker="mqtt://host.invalid"),
        replace(at(port), broker="mqtt://a..b"),
    ):
        with pytest.raises(UnavailableError):
            await connect(fleet)
