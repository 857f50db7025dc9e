"""A verifier's own certificate, and whose clients it lets in."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from common.errors import UserError


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files. With `client_ca` only clients are served whose certificate it signed."""

    cert: Path  # the chain, the verifier's own certificate first
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """For a server's port. Raises `UserError` that names the file which cannot be used: gRPC itself would
        listen, and fail every handshake."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            words = f"the TLS certificate {self.cert} with the key {self.key} cannot be used"
            raise UserError(f"{words}: {_reason(error)}") from error
        try:
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"the TLS client CA {self.client_ca} cannot be used: {_reason(error)}") from error
        roots = None if self.client_ca is None else self.client_ca.read_bytes()
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        return grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is no PEM file of that kind").replace("_", " ").lower()
    return error.strerror or str(error)
