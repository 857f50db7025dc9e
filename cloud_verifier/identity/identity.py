"""Identify the caller of a call before any of its messages is read.

The identity is never an edge's own claim: TLS proves a certificate, an issuer signs a token, and a proxy sets
a header. A call without an identity ends with UNAUTHENTICATED, a known but denied caller with
PERMISSION_DENIED. The messages quote nothing from the call, so they may be logged.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

import grpc

from cloud_verifier.identity.server_tls import read_certificate
from common.config.live_files import LiveFiles, read_bytes
from common.errors import Code, UserError


class IncomingCall(Protocol):
    """Describes the part of `grpc.aio.ServicerContext` that the service uses; Ray's calls have it too."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the caller's properties that TLS has proven; empty without TLS."""
        ...

    def peer(self) -> str:
        """Return the connection's other end in gRPC's notation; empty if it is not the caller's own."""
        ...

    def time_remaining(self) -> float | None:
        """Return the seconds until the call's deadline; None if there is none or it is unknown."""
        ...

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: tuple[tuple[str, Any], ...] = ()
    ) -> NoReturn: ...

    def add_done_callback(self, callback: Callable[[Any], None]) -> None: ...


HELD = "the file of secrets"
LEAST_SECRET = 32  # characters, which nobody guesses

TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A tenant's name, from a certificate or a token. It fits a log line whole, so no two names look alike."""

MAX_TOKEN_CHARS = 8192  # gRPC's own bound of all metadata of a call

SPIFFE = re.compile(r"spiffe://(?P<domain>[a-z0-9._-]{1,255})/(?P<path>.+)")

FORM = "spiffe://DOMAIN/tenant/NAME, and anything after that"


TENANT_MARK, URI, SERIAL, TOKEN = MARKS = ("tenant", "uri", "serial", "token")
"""The kinds of marks that identify a caller."""


@dataclass(frozen=True, slots=True)
class Who:
    """Identifies a caller. Unknown fields are empty."""

    tenant: str = ""
    uri: str = ""  # of its certificate
    serial: str = ""  # of its certificate: hex, in small letters, without zeros in front
    token: str = ""  # the id of its token

    def marks(self) -> list[tuple[str, str]]:
        """Return kind and value of each known mark."""
        marks = zip(MARKS, (self.tenant, self.uri, self.serial, self.token), strict=True)
        return [(kind, value) for kind, value in marks if value]


NOBODY = Who()


class Identity(Protocol):
    """Identifies callers in one way."""

    def who(self, context: IncomingCall) -> Who:
        """Return the caller. Raises `UserError`."""
        ...


class Everybody:
    """Treats all callers as one tenant."""

    def who(self, context: IncomingCall) -> Who:
        return NOBODY


EVERYBODY = Everybody()


class HeaderIdentity:
    """Identifies callers by a metadata entry that a proxy in front sets for every call."""

    def __init__(self, key: str) -> None:
        self._key = key

    def who(self, context: IncomingCall) -> Who:
        tenants = [value for key, value in context.invocation_metadata() or () if key == self._key]
        if len(tenants) > 1:
            raise UserError(
                f"the metadata entry {self._key} comes {len(tenants)} times; the proxy in front must remove "
                "clients' entries and set it once",
                Code.UNAUTHENTICATED,
            )
        return Who(tenants[0]) if tenants and isinstance(tenants[0], str) else NOBODY


class CertificateIdentity:
    """Identifies callers by the client certificate's SPIFFE id, its only URI, of the form `FORM`.

    gRPC reports it as `peer_spiffe_id` if there is exactly one well-formed URI. Other alternative names are
    ignored, since a DNS name may look like a URI, and so is the common name, which CAs fill with anything.
    Args: trust_domain, required in the id; empty: any domain for which the client CA signs. wall, seconds
    since 1970.
    """

    def __init__(self, trust_domain: str = "", wall: Callable[[], float] = time.time) -> None:
        self._trust_domain = trust_domain
        self._wall = wall

    def who(self, context: IncomingCall) -> Who:
        shown = context.auth_context()
        uri = _only(shown.get("peer_spiffe_id", ()))
        spiffe = SPIFFE.fullmatch(uri)
        if spiffe is None:
            raise UserError(
                "the client certificate names no tenant: among its alternative names must be one URI of the "
                f"form {FORM}; the common name does not count",
                Code.UNAUTHENTICATED,
            )
        end, serial = _about(_only(shown.get("x509_pem_cert", ())))
        if self._wall() > end:
            raise UserError(
                "the client certificate of this connection has expired meanwhile; connect with a new one",
                Code.UNAUTHENTICATED,
            )
        if self._trust_domain and spiffe["domain"] != self._trust_domain:
            raise UserError(
                f"the client certificate is of another trust domain than {self._trust_domain}",
                Code.PERMISSION_DENIED,
            )
        return Who(_tenant_of_path(spiffe["path"]), uri, serial)


class SecretIdentity:
    """Lets in all callers that hold a secret, as one tenant.

    Args: secrets, SHA-256 of each. Comparing takes the same time for every wrong secret.
    """

    def __init__(self, secrets: LiveFiles[tuple[bytes, ...]]) -> None:
        self._secrets = secrets

    def who(self, context: IncomingCall) -> Who:
        given = hashlib.sha256(bearer(context.invocation_metadata() or ()).encode()).digest()
        self._secrets.refresh()
        if not sum(hmac.compare_digest(given, own) for own in self._secrets.value):  # all are compared
            raise refused("is not this verifier's secret; pair the device again (`forerun pair`)")
        return NOBODY


def live_secrets(path: Path) -> LiveFiles[tuple[bytes, ...]]:
    """Read a file of secrets, one a line. Raises `UserError`."""

    def read() -> tuple[bytes, ...]:
        secrets = read_bytes(path, HELD).split()
        if not secrets or min(map(len, secrets)) < LEAST_SECRET:
            raise UserError(f"{HELD} {path} must hold secrets of {LEAST_SECRET} characters or more")
        return tuple(hashlib.sha256(secret).digest() for secret in secrets)

    return LiveFiles(HELD, (path,), read)


def _tenant_of_path(path: str) -> str:
    first, name, *_ = [*path.split("/"), ""]
    if first != "tenant" or not TENANT.fullmatch(name):
        raise UserError(
            f"the client certificate's URI is not of the form {FORM}, NAME of up to 64 letters, digits, '.', "
            "'_' and '-'",
            Code.PERMISSION_DENIED,
        )
    return name


def _only(values: Any) -> str:
    """Return a property's only value; empty if there is none, or several."""
    given = [*values]
    return given[0].decode("utf-8", "replace") if len(given) == 1 else ""


@lru_cache(maxsize=1024)
def _about(pem: str) -> tuple[float, str]:
    """Return a certificate's expiry, in seconds since 1970, and its serial number."""
    certificate = read_certificate(pem.encode())
    return certificate.not_valid_after_utc.timestamp(), f"{certificate.serial_number:x}"


def bearer(metadata: Any) -> str:
    """Return the token or secret of a call. Raises `UserError`."""
    entries = [value for key, value in metadata if key == "authorization"]
    if not entries:
        raise UserError(
            "this verifier asks for a token: authorization metadata with 'Bearer TOKEN' (verifier.token_file "
            "of the edge)",
            Code.UNAUTHENTICATED,
        )
    scheme, _, token = str(entries[0]).partition(" ")
    if len(entries) > 1 or scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARS:
        raise refused("is not one 'Bearer TOKEN'")
    return token


def refused(words: str) -> UserError:
    """Return the error for a call whose token does not hold."""
    return UserError(f"the token {words}", Code.UNAUTHENTICATED)
