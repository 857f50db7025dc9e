"""Encrypted connections to verifiers: what an edge trusts, who it is, and in words why a handshake failed.

Files may be replaced while the edge runs. Connections that are made from then on use the new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from common.errors import UserError
from common.rpc.live_files import LiveFiles, read_bytes
from edge_client.certificate import end_of_file

HANDSHAKE_TIME = 2.0
"""Seconds for the handshake that looks for the reason of a failure."""

ALPN = ["h2"]
"""What a gRPC server insists on."""


MAX_TOKEN_BYTES = 8192
"""As much as gRPC takes of all metadata of a call."""

TOKEN = re.compile(rb"[\x21-\x7e]+")

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How an edge speaks TLS, and how it shows who it is. Raises `UserError` for a certificate without its
    key, or the reverse."""

    ca: Path | None = None  # PEM; who signed the verifiers' certificates. None: those that the system trusts
    cert: Path | None = None  # PEM; this edge's own, for verifiers that ask who it is
    key: Path | None = None  # of `cert`
    server_name: str = ""  # that the certificate must bear; empty: the host that was named
    token_file: Path | None = None  # a token for verifiers that ask for one; never sent without TLS

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise UserError("a TLS client certificate needs its key, and a key its certificate; give both")

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel. Raises `UserError` that names the file which cannot be used."""
        self.context()  # gRPC itself would only say that no connection could be made
        ca, key, cert = (
            None if path is None else read_bytes(path, "the TLS file")
            for path in (self.ca, self.key, self.cert)
        )
        return grpc.ssl_channel_credentials(ca, key, cert)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Of what a connection begins with."""
        return tuple(path for path in (self.ca, self.cert, self.key) if path is not None)

    def context(self) -> ssl.SSLContext:
        """The same for Python's own sockets. Raises `UserError` as `credentials`."""
        context = ssl.create_default_context()
        if self.ca is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            with _named("the TLS CA", self.ca):
                context.load_verify_locations(self.ca)
        if self.cert is not None:
            with _named("the TLS client certificate", self.cert):
                context.load_cert_chain(self.cert, self.key, password=_no_password)
        context.set_alpn_protocols(ALPN)
        return context


class LiveTls:
    """The settings' files as they are now. Raises `UserError` for those that cannot be used; one that
    becomes so later is told in the log, and the one before stays."""

    def __init__(self, tls: TlsSettings) -> None:
        self._credentials = LiveFiles("what this edge has for TLS", tls.paths, tls.credentials)
        self._token: LiveFiles[str] | None = None
        if (path := tls.token_file) is not None:
            self._token = LiveFiles("the token of this edge", (path,), lambda: read_token(path))

    @property
    def credentials(self) -> grpc.ChannelCredentials:
        """For a new channel."""
        return self._credentials.value

    def renewed(self) -> bool:
        """Whether a new channel would have other credentials than one of before this call."""
        return self._credentials.refresh()

    def metadata(self) -> Metadata:
        """Of the next call: who this edge is, if that is a token."""
        if self._token is None:
            return ()
        self._token.refresh()
        return (("authorization", f"Bearer {self._token.value}"),)


def read_token(path: Path) -> str:
    """Raises `UserError`, which does not quote it."""
    found = read_bytes(path, "the token file", MAX_TOKEN_BYTES).strip()
    if not TOKEN.fullmatch(found):
        raise UserError(f"the token file {path} holds no token: one word of visible ASCII, and nothing else")
    return found.decode("ascii")


def _no_password() -> str:
    """Without it OpenSSL would ask on the terminal, also when a file is replaced later."""
    raise UserError("the TLS key of this edge asks for a password; give one without")


@contextlib.contextmanager
def _named(what: str, path: Path):  # type: ignore[no-untyped-def]  # a generator of nothing
    try:
        yield
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{what} {path} cannot be used: {error.strerror or error}") from error


async def explain(host: str, port: int, tls: TlsSettings | None, name: str = "") -> str | None:
    """In words, what a connection to that place fails for as far as TLS goes; None if that is not it.

    gRPC tells little of it, so a handshake is made with Python's own TLS. `name`: that the certificate must
    bear, unless the settings have one.
    """
    expected = (tls.server_name if tls else "") or name or host
    context = _any_context() if tls is None else tls.context()
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
            "it speaks TLS, and this edge does not; name the CA that signed its certificate with "
            "--verifier-tls-ca FILE (--tls-ca FILE for commands that run without the daemon)"
        )
    return None if stays else _about_closing(tls)


async def _shake_hands(host: str, port: int, context: ssl.SSLContext, name: str) -> bool:
    """Whether the server goes on: one that speaks gRPC does so first, and under TLS 1.3 it looks only after
    the handshake at who the client is."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    try:
        return await reader.read(1) != b""
    finally:
        writer.transport.abort()


def _any_context() -> ssl.SSLContext:
    """To see whether it is TLS at all: nothing is sent over it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(ALPN)
    return context


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
    """A gRPC server does not say why it hangs up on a client whose certificate it does not like."""
    if tls.cert is None:
        return "it hangs up after the TLS handshake: most likely it wants a client certificate; give one"
    if ended := _ended(tls.cert):
        return ended
    return (
        "it hangs up after the TLS handshake: most likely it does not accept this edge's client certificate, "
        "which another CA signed, or which the verifier's clock finds out of date"
    )


def _ended(cert: Path) -> str:
    """In words, if this edge's certificate is over."""
    end = end_of_file(cert)
    if end is None or end > datetime.datetime.now(datetime.UTC):
        return ""
    return f"this edge's client certificate ended on {end:%Y-%m-%d}; renew {cert}"


def _about_handshake(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "certificate required" in reason or "handshake failure" in reason:
        return "it wants a TLS client certificate; give the edge one with its key"
    if "unknown ca" in reason or "bad certificate" in reason or "certificate unknown" in reason:
        return f"it does not accept this edge's TLS client certificate ({reason})"
    if "wrong version" in reason or "record layer" in reason:
        return (
            "it does not speak TLS, and this edge does; start the verifier with --tls-cert and --tls-key, "
            "or allow plain text with --verifier-insecure (--insecure for commands without the daemon)"
        )
    return f"the TLS handshake fails ({reason})"
