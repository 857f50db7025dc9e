"""Looks whether a server can listen at an address."""

from __future__ import annotations

import socket

from common.errors import UserError
from common.wire.grpc_options import host_and_port


def check_free(option: str, address: str) -> None:
    """Raise `UserError`, which names the option, unless a server can listen at HOST:PORT now."""
    place = host_and_port(address)
    if place is None:
        raise UserError(f"{option} is {address!r}; it must be HOST:PORT, for example 127.0.0.1:50051")
    host, port = place[0].strip("[]"), place[1]
    try:
        family, kind, protocol, _, name = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(name)
    except OSError as error:
        words = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise UserError(f"{words}; choose another {option} HOST:PORT") from error
