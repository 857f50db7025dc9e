"""Parses the addresses of verifiers and resolves the machines behind a name."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import ip_address

from common.errors import UnavailableError, UserError
from common.wire.grpc_options import host_and_port, is_loopback

RESOLVE_TIME = 2.0
"""Seconds for a name server's answer."""

EXAMPLE = "for example 10.0.0.7:50051"


@dataclass(frozen=True, slots=True)
class VerifierAddress:
    """Names where one verifier listens, or several behind one name."""

    host: str  # an IPv6 address in brackets
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_literal(self) -> bool:
        """Tell whether the host is an IP address."""
        try:
            ip_address(self.bare_host)
        except ValueError:
            return self.bare_host == "localhost"
        return True

    @property
    def is_loopback(self) -> bool:
        """Tell whether the host is this machine."""
        return is_loopback(self.host)

    @property
    def bare_host(self) -> str:
        return self.host.strip("[]")


def parse_address(text: str, *, encrypted: bool = False, insecure: bool = False) -> VerifierAddress:
    """Parse HOST:PORT or dns:///HOST:PORT. Raises `UserError` for any other form, and for another machine
    without TLS (`encrypted`) or permission for plain text (`insecure`)."""
    plain = text.removeprefix("dns:///")
    scheme, colon, rest = plain.partition("://")
    if colon:
        place = rest.strip("/").partition("/")[0]
        instead = place if host_and_port(place) else "10.0.0.7:50051"
        raise UserError(
            f"the verifier {text!r} names the scheme {scheme!r}; leave it out, for example {instead}"
        )
    host_port = host_and_port(plain)
    if host_port is None or any(not letter.isprintable() or letter in " /@,?" for letter in plain):
        raise UserError(f"the verifier {text!r} is not HOST:PORT with a port from 1 to 65535, {EXAMPLE}")
    if not host_port[1] or (":" in host_port[0] and not host_port[0].startswith("[")):
        what = "port 0" if not host_port[1] else "an IPv6 address without brackets"
        raise UserError(f"the verifier {text!r} has {what}; give HOST:PORT or [IPV6]:PORT, {EXAMPLE}")
    address = VerifierAddress(*host_port)
    if not (encrypted or insecure or address.is_loopback):
        raise UserError(
            f"the verifier {address} is on another machine, and without TLS every hop on the way can read "
            "and change the text; give a TLS CA with --verifier-tls-ca FILE, or allow plain text on "
            "purpose with --verifier-insecure (commands without the daemon: --tls-ca FILE, --insecure)"
        )
    return address


async def resolve(address: VerifierAddress) -> tuple[VerifierAddress, ...]:
    """Return each machine behind a name if there are several (a headless service), else the name itself.

    IPv4 and IPv6 of one machine count once. Raises `UnavailableError` if the name is not known.
    """
    if address.is_literal:
        return (address,)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_TIME):
            answers = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        words = getattr(error, "strerror", None) or "the name server does not answer"
        raise UnavailableError(f"the name {address.host} is not known ({words})") from error
    old = sorted({str(place[0]) for family, *_, place in answers if family == socket.AF_INET})
    new = sorted({str(place[0]) for family, *_, place in answers if family == socket.AF_INET6})
    machines = old or [f"[{each}]" for each in new]
    return (
        tuple(VerifierAddress(each, address.port) for each in machines) if len(machines) > 1 else (address,)
    )
