"""TLS connections to verifiers: trusted CAs, the edge's credentials, and reasons of failed handshakes.

Files may be replaced while the edge runs. Later connections use the new files.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from common.config.live_files import LiveFiles, read_bytes
from common.errors import UserError

HANDSHAKE_TIME = 2.0
"""Seconds for the handshake that finds the reason of a failure."""

ALPN = ["h2"]
"""The protocol that a gRPC server requires."""

MAX_TOKEN_BYTES = 8192
"""gRPC's limit on all metadata of a call."""

TOKEN = re.compile(rb"[\x21-\x7e]+")

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Holds an edge's TLS files and its credentials. Raises `UserError` for a certificate without its key, or
    the reverse."""

    ca: Path | None = None  # PEM; CA of the verifiers' certificates. None: the system's CAs
    cert: Path | None = None  # PEM; this edge's own, for verifiers that require one
    key: Path | None = None  # of `cert`
    server_name: str = ""  # in the verifier's certificate; empty: the host of its address
    token_file: Path | None = None  # a token for verifiers that require one; never sent without TLS

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise UserError("a TLS client certificate needs its key, and a key its certificate; give both")

    def credentials(self) -> grpc.ChannelCredentials:
        """Return a channel's credentials. Raises `UserError` that names an unusable file."""
        self.context()  # gRPC itself would only say that no connection could be made
        ca, key, cert = (
            None if path is None else read_bytes(path, "the TLS file")
            for path in (self.ca, self.key, self.cert)
        )
        return grpc.ssl_channel_credentials(ca, key, cert)

    def context(self) -> ssl.SSLContext:
        """Return the credentials for Python's own sockets. Raises `UserError` as `credentials` does."""
        context = ssl.create_default_context()
        if self.ca is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            with _named("the TLS CA", self.ca):
                context.load_verify_locations(self.ca)
            # A verifier's own certificate may be pinned, which gRPC takes as it is.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self.cert is not None:
            with _named("the TLS client certificate", self.cert):
                context.load_cert_chain(self.cert, self.key, password=_no_password)
        context.set_alpn_protocols(ALPN)
        return context


class LiveClientTls:
    """Rereads the files of the settings. The constructor raises `UserError` for an unusable file. A later
    replacement that is unusable is logged, and the version before stays."""

    def __init__(self, tls: TlsSettings) -> None:
        paths = tuple(path for path in (tls.ca, tls.cert, tls.key) if path is not None)
        self._credentials = LiveFiles("what this edge has for TLS", paths, tls.credentials)
        self._token: LiveFiles[str] | None = None
        if (path := tls.token_file) is not None:
            self._token = LiveFiles("the token of this edge", (path,), lambda: read_token(path))

    @property
    def credentials(self) -> grpc.ChannelCredentials:
        return self._credentials.value

    def renewed(self) -> bool:
        """Tell whether the credentials have changed since the last call."""
        return self._credentials.refresh()

    def metadata(self) -> Metadata:
        """Return the next call's metadata, which holds the token if there is one."""
        if self._token is None:
            return ()
        self._token.refresh()
        return (("authorization", f"Bearer {self._token.value}"),)


def read_token(path: Path) -> str:
    """Read a token. Raises `UserError` without the token in its message."""
    token = read_bytes(path, "the token file", MAX_TOKEN_BYTES).strip()
    if not TOKEN.fullmatch(token):
        raise UserError(f"the token file {path} must hold one word of visible ASCII and nothing else")
    return token.decode("ascii")


def _no_password() -> str:
    """Raise `UserError`. Without this OpenSSL would ask for a password on the terminal."""
    raise UserError("the TLS key of this edge asks for a password; give one without")


@contextlib.contextmanager
def _named(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{what} {path} cannot be used: {error.strerror or error}") from error


async def explain(host: str, port: int, tls: TlsSettings | None, name: str = "") -> str | None:
    """Explain by a handshake with Python's own TLS why a connection fails; None if TLS is not the reason.

    The certificate must bear `name` unless the settings have a name.
    """
    expected = (tls.server_name if tls else "") or name or host
    if tls is None:  # only tests for TLS; nothing is sent
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(ALPN)
    else:
        context = tls.context()
    try:
        async with asyncio.timeout(HANDSHAKE_TIME):
            stays = await _shake_hands(host, port, context, expected)
    except ssl.SSLCertVerificationError as error:
        return _about_certificate(error, expected)
    except ssl.SSLError as error:
        return None if tls is None else _about_handshake(error)
    except (OSError, TimeoutError):
        return None
    if tls is None:
        return (
            "it speaks TLS and this edge does not; name the CA that signed its certificate with "
            "--verifier-tls-ca FILE (--tls-ca FILE for commands that run without the daemon)"
        )
    return None if stays else _about_closing(tls)


async def _shake_hands(host: str, port: int, context: ssl.SSLContext, name: str) -> bool:
    """Tell whether the server sends anything. In TLS 1.3 it checks the client after the handshake."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    try:
        return await reader.read(1) != b""
    finally:
        writer.transport.abort()


def _about_certificate(error: ssl.SSLCertVerificationError, name: str) -> str:
    words = error.verify_message
    if "expired" in words or "not yet valid" in words:
        return f"its TLS certificate is out of date ({words}); renew it, or set this machine's clock"
    if "ismatch" in words:
        return (
            f"its TLS certificate is not for {name!r} ({words}); name the host as the certificate does, or "
            "give the certificate's name as server_name"
        )
    return f"its TLS certificate is not signed by a trusted CA ({words}); name the CA that signed it"


def _about_closing(tls: TlsSettings) -> str:
    """Guess why the server hung up. A gRPC server gives no reason when it rejects a certificate."""
    if tls.cert is None:
        return "it hangs up after the TLS handshake: most likely it wants a client certificate; give one"
    return (
        "it hangs up after the TLS handshake: most likely it does not accept this edge's client certificate, "
        f"which has ended, or which another CA signed; look at {tls.cert}"
    )


def _about_handshake(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "certificate required" in reason or "handshake failure" in reason:
        return "it wants a TLS client certificate; give the edge one with its key"
    if "unknown ca" in reason or "bad certificate" in reason or "certificate unknown" in reason:
        return f"it does not accept this edge's TLS client certificate ({reason})"
    if "wrong version" in reason or "record layer" in reason:
        return (
            "it does not speak TLS and this edge does; start the verifier with --tls-cert and --tls-key, "
            "or allow plain text with --verifier-insecure (--insecure for commands without the daemon)"
        )
    return f"the TLS handshake fails ({reason})"
