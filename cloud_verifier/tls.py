"""A verifier's own certificate, and whose clients it lets in. Renewed files are used without a restart."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from common.errors import UserError
from common.rpc.live_files import LiveFiles, read_bytes

if TYPE_CHECKING:
    from cryptography import x509

CERTIFICATE = "the TLS certificate"


@dataclass(frozen=True, slots=True)
class Papers:
    """What gRPC is given, and until when it is good."""

    configuration: grpc.ServerCertificateConfiguration
    expires_at: float  # seconds since 1970; of the verifier's own certificate


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files. With `client_ca` only clients are served whose certificate it signed."""

    cert: Path  # the chain, the verifier's own certificate first
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)

    def read(self) -> Papers:
        """Raises `UserError` that names the file which cannot be used: gRPC itself would listen, and fail
        every handshake."""
        self._check()
        cert = read_bytes(self.cert, CERTIFICATE)
        key = read_bytes(self.key, "the TLS key")
        roots = None if self.client_ca is None else read_bytes(self.client_ca, "the TLS client CA")
        return Papers(grpc.ssl_server_certificate_configuration([(key, cert)], roots), end_of(cert))

    def _check(self) -> None:
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


class LiveTls:
    """Certificate, key and CA as the files have them now.

    Each handshake looks whether they are others; connections that stand keep what they began with. Raises
    `UserError` as `ServerTls.read`.
    """

    def __init__(self, tls: ServerTls) -> None:
        self.files = LiveFiles(CERTIFICATE, tls.paths, tls.read)
        self._with_clients = tls.client_ca is not None
        self._handed_out = self.files.value

    @property
    def expires_at(self) -> float:
        """Seconds since 1970."""
        return self.files.value.expires_at

    def credentials(self) -> grpc.ServerCredentials:
        """For a server's port."""
        return grpc.dynamic_ssl_server_credentials(
            self._handed_out.configuration,
            self._fetch,  # type: ignore[arg-type]  # gRPC takes None for "as before"; its types do not say so
            require_client_authentication=self._with_clients,
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC, in a thread of its own, at the beginning of each handshake; None: as before."""
        self.files.refresh()
        newest = self.files.value
        if newest is self._handed_out:
            return None
        self._handed_out = newest
        return newest.configuration


def end_of(pem: bytes) -> float:
    """When a certificate (the first of a chain) ends, in seconds since 1970. Raises `UserError`."""
    return read_certificate(pem).not_valid_after_utc.timestamp()


def read_certificate(pem: bytes) -> x509.Certificate:
    """The first of a chain. Raises `UserError`."""
    try:
        from cryptography import x509
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'forerun[verifier]'") from error
    try:
        return x509.load_pem_x509_certificate(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise UserError(f"{CERTIFICATE} cannot be read: {error}") from error


def _no_password() -> str:
    """Without it OpenSSL would ask on the terminal, also when a file is replaced years later."""
    raise UserError("the TLS key asks for a password; a server needs one without")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is no PEM file of that kind").replace("_", " ").lower()
    return error.strerror or str(error)
