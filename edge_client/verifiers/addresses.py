"""Verifiers as a person names them, and the machines behind a name."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import ip_address

from common.address import host_and_port
from common.errors import UnavailableError, UserError

RESOLVE_TIME = 2.0
"""Seconds; a name server that is slower than that is as good as gone."""

EXAMPLE = "for example 10.0.0.7:50051"


@dataclass(frozen=True, slots=True)
class VerifierAddress:
    """Where one listens, or several of one name."""

    host: str  # an IPv6 address in brackets
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_literal(self) -> bool:
        """Whether no name server is needed."""
        return self.bare_host == "localhost" or _ip(self.bare_host) is not None

    @property
    def is_loopback(self) -> bool:
        """Whether nothing leaves this machine."""
        found = _ip(self.bare_host)
        return self.bare_host == "localhost" or (found is not None and found.is_loopback)

    @property
    def bare_host(self) -> str:
        return self.host.strip("[]")


def parse_address(text: str, *, encrypted: bool = False, insecure: bool = False) -> VerifierAddress:
    """Of HOST:PORT or dns:///HOST:PORT. Raises `UserError` for any other form, and for one beyond this
    machine that is neither `encrypted` nor allowed in plain text (`insecure`)."""
    plain = text.removeprefix("dns:///")
    scheme, colon, _ = plain.partition("://")
    if colon:
        raise UserError(f"the verifier {text!r} names the scheme {scheme!r}; give HOST:PORT, {EXAMPLE}")
    found = host_and_port(plain)
    if found is None or any(not letter.isprintable() or letter in " /@,?" for letter in plain):
        raise UserError(f"the verifier {text!r} is no HOST:PORT with a port from 1 to 65535, {EXAMPLE}")
    if not found[1] or (":" in found[0] and not found[0].startswith("[")):
        what = "port 0" if not found[1] else "an IPv6 address without brackets"
        raise UserError(f"the verifier {text!r} has {what}; give HOST:PORT or [IPV6]:PORT, {EXAMPLE}")
    address = VerifierAddress(*found)
    if not (encrypted or insecure or address.is_loopback):
        raise UserError(
            f"the verifier {address} is on another machine, and without TLS everybody on the way can read "
            "and change what is said; give a TLS CA with --verifier-tls-ca FILE, or allow plain text on "
            "purpose with --verifier-insecure (commands without the daemon: --tls-ca FILE, --insecure)"
        )
    return address


async def resolve(address: VerifierAddress) -> tuple[VerifierAddress, ...]:
    """The machines behind a name: itself if there is one, each if there are several (a headless service). The
    two families of one machine count once. Raises `UnavailableError` if the name is not known."""
    if address.is_literal:
        return (address,)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_TIME):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        words = getattr(error, "strerror", None) or "the name server does not answer"
        raise UnavailableError(f"the name {address.host} is not known ({words})") from error
    old = sorted({str(place[0]) for family, *_, place in found if family == socket.AF_INET})
    new = sorted({str(place[0]) for family, *_, place in found if family == socket.AF_INET6})
    machines = old or [f"[{each}]" for each in new]
    return (
        tuple(VerifierAddress(each, address.port) for each in machines) if len(machines) > 1 else (address,)
    )


def _ip(host: str):  # type: ignore[no-untyped-def]  # one of two classes of the standard library
    try:
        return ip_address(host)
    except ValueError:
        return None
