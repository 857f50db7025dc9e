"""Where a server listens, as a person writes it."""

from __future__ import annotations


def host_and_port(address: str) -> tuple[str, int] | None:
    """Of HOST:PORT, an IPv6 host in the brackets that it came in; None if it reads otherwise."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 2**16):
        return None
    return host, int(port)
