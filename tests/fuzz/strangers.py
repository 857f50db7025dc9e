"""Calls of those whom nobody knows, or who say that they are somebody: tokens bent, borrowed and made up."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import strategies as st

from cloud_verifier.identity.identity import Identity, IncomingCall, Who
from common.errors import ForerunError
from lab.tools.certs import KEY_ID, TokenKey
from tests.fuzz import framed, meaningless
from tests.fuzz.cases import DEADLINES, HURRY, Case, Credential
from tests.fuzz.garbled import METHODS
from tests.support.town import AUDIENCE, ISSUER, Town

TENANT = "hostile"
FOREIGN = TokenKey.new()

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=12),
        st.sampled_from(["forerun"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)
CLAIMS = st.dictionaries(
    st.sampled_from(["exp", "nbf", "iat", "aud", "iss", "sub", "jti", "tenant", "crit", "x"]),
    JSON,
    max_size=4,
)
HEADERS = st.dictionaries(
    st.sampled_from(["alg", "kid", "typ", "crit", "jku", "jwk", "x5u", "b64", "zip"]),
    JSON,
    min_size=1,
    max_size=3,
)


def _bent(town: Town, what: Credential) -> str:
    """A good one of which one bit is another: in its header, its claims or its signature."""
    parts = [bytearray(base64.urlsafe_b64decode(part + "==")) for part in town.token(TENANT).split(".")]
    at = what.at % sum(map(len, parts)) * 8 + what.at % 8
    for part in parts:
        if at < 8 * len(part):
            part[at // 8] ^= 1 << at % 8
            break
        at -= 8 * len(part)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def _cut(town: Town, what: Credential) -> str:
    token = town.token(TENANT)
    return token[: what.at % len(token)]


def _unsigned(town: Town, what: Credential) -> str:
    return jwt.encode(_claims(), "", algorithm="none")


def _shared(town: Town, what: Credential) -> str:
    """Signed with what everybody may know, the public key, as if that were a secret."""
    public: str = town.tokens.jwks()["keys"][0]["x"]
    return jwt.encode(_claims(), public, algorithm="HS256")


def _odd_claims(town: Town, what: Credential) -> str:
    """Truly signed, and saying anything: by hand, since no library of an issuer would say it."""
    claims = json.dumps({**_claims(), **json.loads(what.noise)}).encode()
    key = serialization.load_pem_private_key(town.tokens.pem, None)
    assert isinstance(key, ed25519.Ed25519PrivateKey), "what the town signs with"
    return jwt.PyJWS().encode(claims, key, algorithm="EdDSA", headers={"kid": KEY_ID})


def _odd_header(town: Town, what: Credential) -> str:
    """A good one's claims and signature under another header."""
    _, claims, signature = town.token(TENANT).split(".")
    header = base64.urlsafe_b64encode(what.noise).rstrip(b"=").decode()
    return f"{header}.{claims}.{signature}"


def _claims() -> dict[str, Any]:
    now = int(time.time())
    return {"aud": AUDIENCE, "iss": ISSUER, "iat": now, "exp": now + 300, "tenant": TENANT}


def _expired(town: Town, what: Credential) -> str:
    return town.token(TENANT, exp=int(time.time()) - 60 - what.at)


BAD: dict[str, Callable[[Town, Credential], str]] = {
    "expired": _expired,
    "early": lambda town, what: town.token(TENANT, nbf=int(time.time()) + 100),
    "endless": lambda town, what: town.token(TENANT, exp=int(time.time()) + 10**6),
    "misdirected": lambda town, what: town.token(TENANT, aud="mail"),
    "foreign": lambda town, what: FOREIGN.sign(_claims()),
    "unsigned": _unsigned,
    "shared": _shared,
    "bent": _bent,
    "cut": _cut,
    "empty": lambda town, what: "",
    "noise": lambda town, what: what.noise.decode("ascii"),
    "odd header": _odd_header,
}
"""None of these may come in."""

UNSURE = ("odd claims",)
"""These may: whoever signs decides, as long as it is a tenant's name and an end in time."""


def authorization(town: Town, what: Credential) -> tuple[tuple[str, str], ...]:
    """The metadata entries that a call brings."""
    if what.kind == "none":
        return ()
    good = f"Bearer {town.token(TENANT)}"
    if what.kind == "good":
        return (("authorization", good),)
    if what.kind == "twice":
        return (("authorization", good), ("authorization", good))
    if what.kind == "other scheme":
        return (("authorization", f"Basic {good}"),)
    make = _odd_claims if what.kind in UNSURE else BAD[what.kind]
    return (("authorization", f"Bearer {make(town, what)}"),)


KINDS = (*BAD, *UNSURE, "none", "twice", "other scheme")
PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=60)


@st.composite
def credentials(draw: st.DrawFn) -> Credential:
    """A third of them good: those who are somebody may also be hostile."""
    kind = "good" if draw(st.integers(0, 2)) == 0 else draw(st.sampled_from(KINDS))
    noise = b""
    if kind == "noise":
        noise = draw(st.one_of(PRINTABLE.map(str.strip), st.just("e" * 7000), st.just("." * 500))).encode()
    elif kind == "odd claims":
        noise = json.dumps(draw(CLAIMS)).encode()
    elif kind == "odd header":
        noise = json.dumps(draw(HEADERS)).encode()
    return Credential(kind, noise, draw(st.integers(0, 4000)))


class Witness:
    """Asks an identity, and keeps what it said of each call."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self.tenants = set[str]()
        self.num_refused = 0

    def who(self, context: IncomingCall) -> Who:
        try:
            caller = self._identity.who(context)
        except ForerunError:
            self.num_refused += 1
            raise
        self.tenants.add(caller.tenant)
        return caller


CASES = st.builds(
    Case,
    st.lists(st.one_of(meaningless.streams(), framed.streams()), min_size=1, max_size=2).map(tuple),
    time_left=DEADLINES,
    hurried=HURRY,
    method=METHODS,
    squeezed=st.booleans(),
    credential=credentials(),
)
