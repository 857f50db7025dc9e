"""Binds an address for a server, and looks whether it could listen there."""

from __future__ import annotations

import socket

from common.errors import UserError
from common.wire.grpc_options import host_and_port


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address. Raise `OSError`."""
    family, kind, protocol, _, name = socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(name)
    except OSError:
        listener.close()
        raise
    return listener


def check_free(option: str, address: str) -> None:
    """Raise `UserError`, which names the option, unless a server can listen at HOST:PORT now."""
    place = host_and_port(address)
    if place is None:
        raise UserError(f"{option} is {address!r}; it must be HOST:PORT, for example 127.0.0.1:50051")
    host, port = place[0].strip("[]"), place[1]
    try:
        bound(host, port).close()
    except OSError as error:
        words = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise UserError(f"{words}; choose another {option} HOST:PORT") from error
