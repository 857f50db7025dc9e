"""What a link is built from: addresses and limits, validated when they are made."""

import math
from dataclasses import dataclass

from link.errors import SettingsError
from link.lane import LaneSettings
from link.toxics import Stream


@dataclass(frozen=True)
class Address:
    """A TCP address. Raises `SettingsError` when the port is out of range."""

    host: str
    port: int  # 0 lets the system choose, for listening only

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"address: port is {self.port}; give a number from 0 to 65535")

    @classmethod
    def parse(cls, text: str) -> "Address":
        """From `HOST:PORT`, an IPv6 host in brackets. Raises `SettingsError` when it reads otherwise."""
        host, colon, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not colon or not bare or not (port.isascii() and port.isdigit()) or (":" in bare and bare == host):
            raise SettingsError(f"address {text!r}: write HOST:PORT, as 127.0.0.1:8000 or [::1]:8000")
        return cls(bare, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class LinkSettings:
    """What does not change while a link runs. Raises `SettingsError` when a value is out of range."""

    upstream: Address  # the server that clients are led to
    listen: Address = Address("127.0.0.1", 0)  # loopback: a link has no access control
    seed: int = 0  # of jitter and toxicity
    max_queued: int = LaneSettings.max_queued  # bytes per lane
    max_flying: int = LaneSettings.max_flying  # bytes per lane
    connect_time: float = 10.0  # seconds to reach the server in

    def __post_init__(self) -> None:
        if self.upstream.port == 0:
            raise SettingsError("link: the port of upstream is 0; give the port that the server listens on")
        if not (math.isfinite(self.connect_time) and self.connect_time > 0):
            raise SettingsError(f"link: connect_time is {self.connect_time}; give seconds above 0")
        self.lane(0, Stream.UPSTREAM)  # checks the limits

    def lane(self, connection: int, stream: Stream) -> LaneSettings:
        """The settings of one direction of one connection."""
        return LaneSettings(self.seed, connection, stream, self.max_queued, self.max_flying)
