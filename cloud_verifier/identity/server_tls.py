"""Load the verifier's certificate and its client CA. Renewed files take effect without a restart."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import grpc

from common.config.live_files import LiveFiles, read_bytes
from common.errors import UserError

if TYPE_CHECKING:
    from cryptography import x509

CERTIFICATE = "the TLS certificate"


class Papers(NamedTuple):
    """Holds the configuration for gRPC, and the expiry of its certificate."""

    configuration: grpc.ServerCertificateConfiguration
    expires_at: float  # seconds since 1970; of the verifier's own certificate


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Names the PEM files. With `client_ca` clients need a certificate that it has signed."""

    cert: Path  # the chain, the verifier's own certificate first
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)

    def read(self) -> Papers:
        """Read the files. Raises `UserError` for one that would fail every handshake."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            words = f"{CERTIFICATE} {self.cert} with the key {self.key} cannot be used"
            raise UserError(f"{words}: {_reason(error)}") from error
        try:
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"the TLS client CA {self.client_ca} cannot be used: {_reason(error)}") from error
        cert = read_bytes(self.cert, CERTIFICATE)
        key = read_bytes(self.key, "the TLS key")
        roots = None if self.client_ca is None else read_bytes(self.client_ca, "the TLS client CA")
        end = read_certificate(cert).not_valid_after_utc.timestamp()
        return Papers(grpc.ssl_server_certificate_configuration([(key, cert)], roots), end)


class LiveServerTls:
    """Keeps certificate, key and CA in step with their files.

    Each handshake checks for new files; open connections keep their certificate. Raises `UserError` as
    `ServerTls.read`.
    """

    def __init__(self, tls: ServerTls) -> None:
        self.files = LiveFiles(CERTIFICATE, tls.paths, tls.read)
        self._with_clients = tls.client_ca is not None
        self._handed_out = self.files.value

    @property
    def expires_at(self) -> float:
        return self.files.value.expires_at

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._handed_out.configuration,
            self._fetch,  # type: ignore[arg-type]  # gRPC takes None for "as before"; its types do not say so
            require_client_authentication=self._with_clients,
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return a new configuration; None if it is unchanged. gRPC's threads call it at each handshake."""
        self.files.refresh()
        newest = self.files.value
        if newest is self._handed_out:
            return None
        self._handed_out = newest
        return newest.configuration


def read_certificate(pem: bytes) -> x509.Certificate:
    """Return the first certificate of a chain. Raises `UserError`."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise UserError(f"{CERTIFICATE} cannot be read: {error}") from error


def _no_password() -> str:
    """Refuse an encrypted key. Otherwise OpenSSL would ask for a password on the terminal."""
    raise UserError("the TLS key asks for a password; a server needs one without")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is no PEM file of that kind").replace("_", " ").lower()
    return error.strerror or str(error)
