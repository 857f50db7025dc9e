"""Laws of tokens as bytes: whatever a stranger sends is refused with a sentence, and tells nothing of
itself."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Code, UserError
from tests.support.call import Call

pytest.importorskip("jwt")
pytestmark = pytest.mark.grpc


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A key, and who checks its tokens."""
    from cloud_verifier.identity.token_identity import TokenIdentity, TokenRules, live_keys
    from forerun.commands.dev_certs import TokenKey, as_json

    path: Path = tmp_path_factory.mktemp("keys") / "keys.json"
    key = TokenKey.new()
    path.write_bytes(as_json(key.jwks()))
    return key, TokenIdentity(live_keys(path), TokenRules("forerun"))


def refused(identity: Any, *values: str) -> UserError:
    with pytest.raises(UserError) as found:
        identity.who(Call(*values))
    assert found.value.code in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED)
    return found.value


def coded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
HEADERS = st.dictionaries(st.sampled_from(("alg", "kid", "typ", "crit", "b64", "jwk", "jku", "x5c")), JSON)
CLAIMS = st.dictionaries(st.sampled_from(("exp", "nbf", "iat", "aud", "iss", "sub", "tenant", "jti")), JSON)


@given(header=HEADERS | JSON, claims=CLAIMS | JSON, signature=st.binary(max_size=80))
def test_what_nobody_has_signed_is_refused(
    issuer: tuple[Any, Any], header: object, claims: object, signature: bytes
) -> None:
    mark = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    refused(issuer[1], f"Bearer {coded(header)}.{coded(claims)}.{mark}")


@given(CLAIMS)
def test_what_the_issuer_has_signed_is_refused_unless_it_is_all_that_it_must_be(
    issuer: tuple[Any, Any], claims: dict[str, Any]
) -> None:
    """An issuer makes mistakes, too: numbers without end, lists for names."""
    import jwt

    key, identity = issuer
    try:
        token = jwt.encode(claims, key._private(), algorithm="EdDSA", headers={"kid": "dev"})
    except (TypeError, ValueError, jwt.PyJWTError):
        return
    error = refused(identity, f"Bearer {token}")
    assert token.split(".")[1] not in str(error)


def test_a_key_is_used_with_its_own_algorithm_alone(tmp_path: Path) -> None:
    """ES256 and RS256 keys are taken, and neither signs for the other."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    from cloud_verifier.identity.token_identity import TokenIdentity, TokenRules, live_keys

    secrets: dict[str, Any] = {
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "RS256": rsa.generate_private_key(65537, 2048),
    }
    kinds: dict[str, Any] = {"ES256": jwt.algorithms.ECAlgorithm, "RS256": jwt.algorithms.RSAAlgorithm}
    entries = [
        {**kinds[name].to_jwk(secret.public_key(), as_dict=True), "kid": name}
        for name, secret in secrets.items()
    ]
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": entries}))
    identity = TokenIdentity(live_keys(path), TokenRules("forerun"))
    claims = {"aud": ["mail", "forerun"], "exp": int(time.time()) + 60, "tenant": "acme"}
    for name, secret in secrets.items():
        for header in ({"kid": name}, {}):
            token = jwt.encode(claims, secret, algorithm=name, headers=header)
            assert identity.who(Call(f"Bearer {token}")).tenant == "acme"
        other = next(each for each in secrets if each != name)
        token = jwt.encode(claims, secret, algorithm=name, headers={"kid": other})
        assert "is not signed with a key that this verifier knows" in str(
            refused(identity, f"Bearer {token}")
        )


def test_tokens_that_are_known_take_a_bounded_memory(issuer: tuple[Any, Any]) -> None:
    from cloud_verifier.identity.token_identity import MAX_KNOWN

    key, identity = issuer
    claims = {"aud": "forerun", "exp": int(time.time()) + 77, "tenant": "acme"}
    identity._known.clear()
    identity._known.update({number.to_bytes(32): (0.0, "x") for number in range(MAX_KNOWN)})
    assert identity.who(Call(f"Bearer {key.sign(claims)}")).tenant == "acme"
    assert len(identity._known) == MAX_KNOWN


def test_a_token_has_its_id(issuer: tuple[Any, Any]) -> None:
    key, identity = issuer
    claims = {"aud": "forerun", "exp": int(time.time()) + 78, "tenant": "acme", "jti": "t-1"}
    who = identity.who(Call(f"Bearer {key.sign(claims)}"))
    assert (who.tenant, who.token, who.uri, who.serial) == ("acme", "t-1", "", "")
