"""Short tokens by which edges say who they are: JSON Web Tokens (RFC 7519), signed by an issuer whose
public keys the verifier has in a file. The advice of RFC 8725 is followed: the algorithm comes from the key
and not from the token, the audience is asked for, and no key is fetched from an address that a token names.
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

from cloud_verifier.identity import TENANT, Who
from common.errors import Code, UserError
from common.rpc.live_files import LiveFiles, read_bytes

ALGORITHMS = {("OKP", "Ed25519"): "EdDSA", ("EC", "P-256"): "ES256", ("RSA", ""): "RS256"}
"""By a key's kind and curve. None with a shared secret: who can check such a token can make one."""

KEYS = "the file of token keys"
MAX_FILE_BYTES, MAX_KEYS = 256 * 1024, 64
LEAST_RSA_BITS = 2048
MAX_TOKEN_CHARS = 8192  # gRPC's own bound of all metadata of a call
LEEWAY = 30.0
"""Seconds by which clocks may differ."""

MAX_LIFETIME = 900.0
"""Seconds that a token may still live, unless the operator says otherwise: one that leaks is soon worth
nothing, and nobody keeps a list of those that were called back."""

MAX_KNOWN = 4096
"""Tokens remembered as good, by their hash: a device asks with the same one until it has another."""

KEY = "authorization"
SCHEME = "bearer"

HOSTILE = (
    jwt.PyJWTError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What parsing a stranger's JSON may raise."""


@dataclass(frozen=True, slots=True)
class Key:
    """A public key, and the one algorithm it is used with."""

    id: str  # empty: it has none
    algorithm: str
    key: jwt.PyJWK


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say. Raises `UserError` for settings that make no sense."""

    audience: str  # whom it is for: this service, and not another of the same issuer
    issuer: str = ""  # who signed it; empty: whoever's key is in the file
    claim: str = "tenant"  # whose value is the tenant's name
    lifetime: float = MAX_LIFETIME  # seconds until its end at most

    def __post_init__(self) -> None:
        if not self.audience:
            raise UserError(
                "--token-keys needs --token-audience: without it a token made for another service of "
                "the same issuer would be taken"
            )
        if not self.claim:
            raise UserError("--token-claim is empty; it must name the claim that holds the tenant")
        if not 0 < self.lifetime < float("inf"):
            raise UserError(f"--token-lifetime is {self.lifetime}; it must be above 0")


def live_keys(path: Path) -> LiveFiles[tuple[Key, ...]]:
    """The keys of a JWKS file (RFC 7517), as it is now. Raises `UserError`."""
    return LiveFiles(KEYS, (path,), lambda: read_keys(path))


def read_keys(path: Path) -> tuple[Key, ...]:
    """Raises `UserError` for a file without a usable key, or with one that must not lie here."""
    data = read_bytes(path, KEYS, MAX_FILE_BYTES)
    try:
        entries = json.loads(data)["keys"]
        if not isinstance(entries, list) or len(entries) > MAX_KEYS:
            raise UserError(f"{KEYS} {path} must hold a list of at most {MAX_KEYS} keys")
        found = [_key(entry, path) for entry in entries]
    except HOSTILE as error:
        raise UserError(
            f"{KEYS} {path} is no JWKS ({type(error).__name__}); it has the form {{'keys': [...]}}"
        ) from None
    usable = tuple(each for each in found if each is not None)
    if not usable:
        raise UserError(f"{KEYS} {path} holds no key for {', '.join(ALGORITHMS.values())}")
    return usable


def _key(entry: dict[str, Any], path: Path) -> Key | None:
    """None for a key of another use or algorithm, which issuers publish beside."""
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
    """The tenant that a call's token names. The keys are looked at anew with each; `wall`, seconds since
    1970."""

    def __init__(
        self, keys: LiveFiles[tuple[Key, ...]], rules: TokenRules, wall: Callable[[], float] = time.time
    ) -> None:
        self.keys = keys
        self._rules = rules
        self._wall = wall
        self._known = OrderedDict[bytes, tuple[float, Who]]()  # end and owner, by the token's hash
        self._known_by: object = None  # the keys that they were checked with

    def who(self, context: Any) -> Who:
        """See `Identity`."""
        token = _bearer(context.invocation_metadata() or ())
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
            raise _refused("has expired; the edge needs a fresh one")
        return who

    def _check(self, token: str) -> tuple[float, Who]:
        """Its end and its owner. Raises `UserError`."""
        claims = self._claims(token)
        end, name = claims["exp"], claims[self._rules.claim]
        if end - self._wall() > self._rules.lifetime + LEEWAY:
            words = (
                f"lives longer than {self._rules.lifetime:g} s from now; the issuer must make shorter ones"
            )
            raise _refused(words)
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
            raise _refused(self._in_words(error)) from None

    def _key_for(self, header: dict[str, Any]) -> Key:
        """The one that the token names; a token without a name, where there is one key for its algorithm."""
        name, algorithm = header.get("kid", ""), header.get("alg")
        fitting = [
            each for each in self.keys.value if each.algorithm == algorithm and (not name or each.id == name)
        ]
        if len(fitting) != 1:
            raise jwt.InvalidSignatureError
        return fitting[0]

    def _in_words(self, error: Exception) -> str:
        """What is wrong with a token, without a word of it."""
        rules = self._rules
        match error:
            case jwt.ExpiredSignatureError():
                return "has expired; the edge needs a fresh one"
            case jwt.ImmatureSignatureError():
                return "is not valid yet; set the clocks of issuer and verifier"
            case jwt.MissingRequiredClaimError():
                return f"lacks the claim {error.claim!r}"
            case jwt.InvalidAudienceError():
                return f"is not for the audience {rules.audience!r}"
            case jwt.InvalidIssuerError():
                return f"is not from the issuer {rules.issuer!r}"
            case jwt.InvalidSignatureError():
                return "is not signed with a key that this verifier knows"
        return "cannot be read: it is no JSON Web Token"


def _bearer(metadata: Any) -> str:
    """The token of a call. Raises `UserError`."""
    found = [value for key, value in metadata if key == KEY]
    if not found:
        raise UserError(
            f"this verifier asks for a token: {KEY} metadata with 'Bearer TOKEN' (verifier.token_file of the "
            "edge)",
            Code.UNAUTHENTICATED,
        )
    scheme, _, token = str(found[0]).partition(" ")
    if len(found) > 1 or scheme.lower() != SCHEME or not token or len(token) > MAX_TOKEN_CHARS:
        raise _refused("is not one 'Bearer TOKEN'")
    return token


def _refused(words: str) -> UserError:
    return UserError(f"the token {words}", Code.UNAUTHENTICATED)
