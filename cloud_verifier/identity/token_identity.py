"""Identify edges by JSON Web Tokens (RFC 7519), signed by an issuer whose public keys are in a file.

As RFC 8725 advises, the key and not the token sets the algorithm, the audience is required, and no key is
fetched from an address that a token names.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt

from cloud_verifier.identity.identity import TENANT, Who, bearer, refused
from common.config.live_files import LiveFiles, read_bytes
from common.errors import Code, UserError

ALGORITHMS = {("OKP", "Ed25519"): "EdDSA", ("EC", "P-256"): "ES256", ("RSA", ""): "RS256"}
"""Algorithms by a key's kind and curve. Shared secrets are excluded: a verifier could forge such tokens."""

MAX_LIFETIME = 900.0
"""Longest remaining life of an accepted token, in seconds. A leaked token soon expires, so no list of revoked
tokens is needed."""

KEYS = "the file of token keys"
MAX_FILE_BYTES, MAX_KEYS = 256 * 1024, 64
LEAST_RSA_BITS = 2048
LEEWAY = 30.0
"""Seconds by which clocks may differ."""

MAX_KNOWN = 4096
"""Valid tokens remembered by their hash: a device uses the same token until it expires."""

HOSTILE = jwt.PyJWTError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError
"""Exceptions that parsing untrusted JSON may raise."""


EXPIRED = "has expired; the edge needs a fresh one"
WORDS: dict[type[Exception], str] = {
    jwt.ExpiredSignatureError: EXPIRED,
    jwt.ImmatureSignatureError: "is not valid yet; set the clocks of issuer and verifier",
    jwt.InvalidSignatureError: "is not signed with a key that this verifier knows",
}


@dataclass(frozen=True, slots=True)
class Key:
    """Holds a public key and its only algorithm."""

    id: str  # empty without one
    algorithm: str
    key: jwt.PyJWK


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Holds the rules for the claims of a token."""

    audience: str  # required `aud` claim: this service, and not another of the same issuer
    issuer: str = ""  # required `iss` claim; empty: any issuer with a key in the file
    claim: str = "tenant"  # claim that names the tenant
    lifetime: float = MAX_LIFETIME  # most seconds until the token's expiry


def live_keys(path: Path) -> LiveFiles[tuple[Key, ...]]:
    """Return the keys of a JWKS file (RFC 7517), reread when it changes."""
    return LiveFiles(KEYS, (path,), lambda: read_keys(path))


def read_keys(path: Path) -> tuple[Key, ...]:
    """Read the keys. Raises `UserError` for a file without a usable key, or with a private or shared key."""
    data = read_bytes(path, KEYS, MAX_FILE_BYTES)
    try:
        entries = json.loads(data)["keys"]
        if not isinstance(entries, list) or len(entries) > MAX_KEYS:
            raise UserError(f"{KEYS} {path} must hold a list of at most {MAX_KEYS} keys")
        keys = [_key(entry, path) for entry in entries]
    except HOSTILE as error:
        raise UserError(
            f"{KEYS} {path} is no JWKS ({type(error).__name__}); it has the form {{'keys': [...]}}"
        ) from None
    usable = tuple(each for each in keys if each is not None)
    if not usable:
        raise UserError(f"{KEYS} {path} holds no key for {', '.join(ALGORITHMS.values())}")
    return usable


def _key(entry: dict[str, Any], path: Path) -> Key | None:
    """Return the key; None for another use or algorithm, which issuers may publish in the same file."""
    if "d" in entry or "k" in entry:
        raise UserError(f"{KEYS} {path} holds a private or shared key; a verifier needs public keys alone")
    algorithm = ALGORITHMS.get((entry["kty"], entry.get("crv", "")))
    if algorithm is None or entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm:
        return None
    key = jwt.PyJWK(entry, algorithm)
    if algorithm == "RS256" and key.key.key_size < LEAST_RSA_BITS:
        raise UserError(f"{KEYS} {path} holds an RSA key of less than {LEAST_RSA_BITS} bits")
    return Key(str(entry.get("kid", "")), algorithm, key)


class TokenIdentity:
    """Identifies callers by the tenant that a call's token names. `wall` gives seconds since 1970."""

    def __init__(
        self, keys: LiveFiles[tuple[Key, ...]], rules: TokenRules, wall: Callable[[], float] = time.time
    ) -> None:
        self.keys = keys
        self._rules = rules
        self._wall = wall
        self._known = OrderedDict[bytes, tuple[float, Who]]()  # end and owner, by the token's hash
        self._known_by: object = None  # the keys that have verified them

    def who(self, context: Any) -> Who:
        token = bearer(context.invocation_metadata() or ())
        self.keys.refresh()
        if self.keys.value is not self._known_by:
            self._known.clear()
            self._known_by = self.keys.value
        digest = hashlib.sha256(token.encode()).digest()
        if digest not in self._known:
            self._known[digest] = self._check(token)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        end, who = self._known[digest]
        if self._wall() > end + LEEWAY:
            del self._known[digest]
            raise refused(EXPIRED)
        return who

    def _check(self, token: str) -> tuple[float, Who]:
        """Return the end and the owner of a token. Raises `UserError`."""
        claims = self._claims(token)
        end, name = claims["exp"], claims[self._rules.claim]
        if end - self._wall() > self._rules.lifetime + LEEWAY:
            longest = f"{self._rules.lifetime:g} s"
            raise refused(f"lives longer than {longest} from now; the issuer must make shorter tokens")
        if not isinstance(name, str) or not TENANT.fullmatch(name):
            raise UserError(
                f"the token's claim {self._rules.claim!r} names no tenant: up to 64 letters, digits, '.', "
                "'_' and '-'",
                Code.PERMISSION_DENIED,
            )
        return end, Who(name, token=claims.get("jti", ""))

    def _claims(self, token: str) -> dict[str, Any]:
        rules = self._rules
        try:
            key = self._key_for(jwt.get_unverified_header(token))
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                audience=rules.audience,
                issuer=rules.issuer or None,
                leeway=LEEWAY,
                options={"require": ["exp", "aud", rules.claim, *(["iss"] if rules.issuer else [])]},
            )
            return {**claims, "exp": float(claims["exp"])}  # an issuer's number may be beyond any float
        except HOSTILE as error:
            raise refused(self._in_words(error)) from None

    def _key_for(self, header: dict[str, Any]) -> Key:
        """Return the key that the token names, or the only key for its algorithm if it names none."""
        name, algorithm = header.get("kid", ""), header.get("alg")
        fitting = [
            each for each in self.keys.value if each.algorithm == algorithm and (not name or each.id == name)
        ]
        if len(fitting) != 1:
            raise jwt.InvalidSignatureError
        return fitting[0]

    def _in_words(self, error: Exception) -> str:
        """Describe a token's fault without quoting the token."""
        match error:
            case jwt.MissingRequiredClaimError():
                return f"lacks the claim {error.claim!r}"
            case jwt.InvalidAudienceError():
                return f"is not for the audience {self._rules.audience!r}"
            case jwt.InvalidIssuerError():
                return f"is not from the issuer {self._rules.issuer!r}"
        return WORDS.get(type(error), "cannot be read: it is no JSON Web Token")
