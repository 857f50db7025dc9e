"""Whose a call is. It is found out before anything of the call is read, and never from what an edge says of
itself: a certificate is the edge's because TLS has shown it, a token because an issuer has signed it, a
header because a proxy has set it.

A call without an identity ends with UNAUTHENTICATED, one whose identity is known and not allowed with
PERMISSION_DENIED. The sentences quote nothing that came with the call, so they may be logged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from cloud_verifier.call import Call
from cloud_verifier.tls import read_certificate
from common.errors import Code, UserError

TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A tenant's name, from a certificate or a token. No longer than a log line shows, so that no two look
alike."""

TENANT_SEGMENT = "tenant"

SPIFFE = re.compile(r"spiffe://(?P<domain>[a-z0-9._-]{1,255})/(?P<path>.+)")

FORM = "spiffe://DOMAIN/tenant/NAME, and anything after that"


TENANT_MARK, URI, SERIAL, TOKEN = MARKS = ("tenant", "uri", "serial", "token")
"""By what a caller can be told from others."""


@dataclass(frozen=True, slots=True)
class Who:
    """A caller. Empty fields are not known."""

    tenant: str = ""
    uri: str = ""  # of its certificate
    serial: str = ""  # of its certificate: hex, in small letters, without zeros in front
    token: str = ""  # the id of its token

    def marks(self) -> Iterator[tuple[str, str]]:
        """Kind and value of each that is known."""
        found = zip(MARKS, (self.tenant, self.uri, self.serial, self.token), strict=True)
        return ((kind, value) for kind, value in found if value)


NOBODY = Who()


class Identity(Protocol):
    """One way to know callers."""

    def who(self, context: Call) -> Who:
        """Of this call. Raises `UserError`."""
        ...


class Everybody:
    """All are one tenant."""

    def who(self, context: Call) -> Who:
        return NOBODY


EVERYBODY = Everybody()


class HeaderIdentity:
    """A metadata entry that a proxy in front sets for every call and takes from nobody."""

    def __init__(self, key: str) -> None:
        self._key = key

    def who(self, context: Call) -> Who:
        found = [value for key, value in context.invocation_metadata() or () if key == self._key]
        if len(found) > 1:
            raise UserError(
                f"the metadata entry {self._key} comes {len(found)} times: the proxy in front must take it "
                "from clients, and set it once",
                Code.UNAUTHENTICATED,
            )
        return Who(found[0]) if found and isinstance(found[0], str) else NOBODY


class CertificateIdentity:
    """The client certificate's SPIFFE id: the one URI among its alternative names, of the form `FORM`.

    gRPC tells it as `peer_spiffe_id`, only if there is exactly one URI and it is well formed. A name of
    another kind (`x509_subject_alternative_name` mixes them all: a DNS name may look like a URI) or the
    common name, which CAs have filled with anything, is never taken. Args: trust_domain, that the id must
    have; empty: any that the client CA signs for. wall, seconds since 1970.
    """

    def __init__(self, trust_domain: str = "", wall: Callable[[], float] = time.time) -> None:
        self._trust_domain = trust_domain
        self._wall = wall

    def who(self, context: Call) -> Who:
        shown = context.auth_context()
        uri = _only(shown.get("peer_spiffe_id", ()))
        found = SPIFFE.fullmatch(uri)
        if found is None:
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
        if self._trust_domain and found["domain"] != self._trust_domain:
            raise UserError(
                f"the client certificate is of another trust domain than {self._trust_domain}",
                Code.PERMISSION_DENIED,
            )
        return Who(_tenant_of_path(found["path"]), uri, serial)


def _tenant_of_path(path: str) -> str:
    first, name, *_ = [*path.split("/"), ""]
    if first != TENANT_SEGMENT or not TENANT.fullmatch(name):
        raise UserError(
            f"the client certificate's URI is not of the form {FORM}, NAME of up to 64 letters, digits, '.', "
            "'_' and '-'",
            Code.PERMISSION_DENIED,
        )
    return name


def _only(values: Any) -> str:
    """The one value of a property; empty if there is none, or several."""
    found = [*values]
    return found[0].decode("utf-8", "replace") if len(found) == 1 else ""


@lru_cache(maxsize=1024)
def _about(pem: str) -> tuple[float, str]:
    """Of a certificate: its end, in seconds since 1970, and its serial number. A stream begins with a lookup
    and not with a parse."""
    found = read_certificate(pem.encode())
    return found.not_valid_after_utc.timestamp(), f"{found.serial_number:x}"
