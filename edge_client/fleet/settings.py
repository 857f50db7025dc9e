"""How a device, or an operator, reaches the broker, and what a device believes."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import UserError
from edge_client.core.fleet.names import DeviceTopics, check_name

KEY_SIZE = 32
"""Bytes of an Ed25519 public key."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """One MQTT 5 broker. Checked in the constructor; files are read when they are used."""

    host: str
    port: int = 8883  # MQTT over TLS; 1883 without
    tls: bool = True
    ca: Path | None = None  # who may sign the broker's certificate; None: whom the system trusts
    certificate: Path | None = None  # this client's, in PEM
    key: Path | None = None  # of that certificate
    username: str = ""
    password: str = field(default="", repr=False)
    keepalive: int = 20  # seconds; a stalled device is told dead after one and a half of them
    timeout: float = 10.0  # seconds for the broker's answer to a connection, a subscription or a message

    def __post_init__(self) -> None:
        if not self.host or not 0 < self.port < 2**16:
            raise UserError(f"the broker is {self.host!r}:{self.port}; it must be a host and a port")
        if (self.certificate is None) != (self.key is None):
            raise UserError("a client certificate needs its key, and a key its certificate; give both")
        if not self.tls and (self.ca or self.certificate):
            raise UserError("certificates are of no use without TLS; leave them out or turn TLS on")
        if not 5 <= self.keepalive <= 3600:
            raise UserError(f"keepalive is {self.keepalive} s; it must lie in [5, 3600]")
        if not 0 < self.timeout <= 60:
            raise UserError(f"the broker's timeout is {self.timeout} s; it must lie in (0, 60]")
        if self.password and not self.tls and self.host not in LOOPBACK:
            raise UserError("a password would travel in the clear; turn TLS on")

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def context(self) -> ssl.SSLContext | None:
        """For TLS; None without it. Reads files. Raises `UserError` that names the file."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"the broker's CA certificates {self.ca} cannot be read: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate and self.key:
            try:
                context.load_cert_chain(self.certificate, self.key, password=_no_prompt)
            except (OSError, ssl.SSLError) as error:
                raise UserError(
                    f"the client certificate {self.certificate} cannot be used with {self.key}: {error}"
                ) from error
        return context


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Of one device. Checked in the constructor."""

    broker: BrokerSettings
    tenant: str
    device: str  # also the MQTT client id: the certificate's common name, where there is one
    state_dir: Path  # holds fleet.json
    keys: tuple[bytes, ...] = ()  # Ed25519 public keys that may give orders; none: no order is believed
    verifier_keys: tuple[bytes, ...] = ()  # that may sign offers of verifiers, and nothing else
    allowed_endpoints: tuple[
        str, ...
    ] = ()  # patterns of verifiers that may come unsigned: "*.gpu.example:443"
    allowed_settings: frozenset[str] | None = None  # that a fleet may set; None: whatever `apply` takes
    discover: bool = False  # listen to offers of verifiers
    telemetry_interval: float = 30.0  # seconds; 0 for none
    first_backoff: float = 1.0  # seconds before the first reconnect; doubles
    max_backoff: float = 120.0  # seconds; a broker that returns after an outage meets its fleet over a minute
    messages_per_second: float = (
        2000.0  # read from the broker in the long run; what is above waits at its end
    )
    message_burst: int = 4000  # that are read at once

    def __post_init__(self) -> None:
        self.topics  # noqa: B018  # checks the names
        for key in (*self.keys, *self.verifier_keys):
            if len(key) != KEY_SIZE:
                raise UserError(f"a public key has {len(key)} bytes; an Ed25519 key has {KEY_SIZE}")
        if self.telemetry_interval and not 1 <= self.telemetry_interval <= 86400:
            raise UserError(
                f"telemetry_interval is {self.telemetry_interval} s; it must be 0 or lie in [1, 86400]"
            )
        if not 0 < self.first_backoff <= self.max_backoff:
            raise UserError(f"backoff {self.first_backoff} to {self.max_backoff} s is not a range above 0")
        if self.messages_per_second <= 0 or self.message_burst < 1:
            raise UserError("messages_per_second and message_burst must be above 0")

    @property
    def topics(self) -> DeviceTopics:
        """Of this device."""
        return DeviceTopics(check_name("the tenant", self.tenant), check_name("the device", self.device))


def _no_prompt() -> bytes:
    """An encrypted key must not make a daemon wait for somebody at a terminal."""
    return b""
