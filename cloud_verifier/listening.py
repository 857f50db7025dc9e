"""An address to listen on, for each of a verifier's gRPC servers."""

from __future__ import annotations

import grpc
import grpc.aio

from common.errors import UserError


def listen(
    server: grpc.aio.Server, address: str, another: str, credentials: grpc.ServerCredentials | None = None
) -> int:
    """The port: that of HOST:PORT, where 0 picks one; of unix:PATH it means nothing. Without `credentials` in
    plain text. Raises `UserError`, which tells to choose `another` address."""
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        words = "it is in use, or not an address of this machine"
        raise UserError(f"cannot listen on {address}: {words}; choose another {another}") from error
