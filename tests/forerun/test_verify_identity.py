"""Laws of the options that say whose a call is: one way at most, and none that nothing stands behind."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.identity.identity import Identity
from cloud_verifier.server.serving import identity_of
from common.config.live_files import LiveFiles
from common.errors import UserError
from tests.cloud_verifier.configured import configured

pytestmark = pytest.mark.grpc


TLS = ("--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "ca")


def identity(*words: str) -> tuple[Identity, Mapping[str, LiveFiles[Any]]]:
    return identity_of(configured(*words).identity)


def kind(*words: str) -> str:
    return type(identity(*words)[0]).__name__


@pytest.fixture
def keys(tmp_path: Path) -> str:
    pytest.importorskip("jwt")
    from forerun.commands.dev_certs import TokenKey, as_json

    path = tmp_path / "keys.json"
    path.write_bytes(as_json(TokenKey.new().jwks()))
    return str(path)


def test_each_way_is_what_it_says(keys: str) -> None:
    assert kind() == "Everybody"
    assert kind("--tenant-header", "x-tenant") == "HeaderIdentity"
    assert kind(*TLS, "--tenant-certificate") == "CertificateIdentity"
    assert kind(*TLS, "--tenant-certificate", "example.org") == "CertificateIdentity"
    assert kind("--token-keys", keys, "--token-audience", "forerun") == "TokenIdentity"


RSA_1024 = {"kty": "RSA", "e": "AQAB", "n": "4" * 171}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("canary", "is no JWKS"),
        ("[]", "is no JWKS"),
        ('{"keys": 7}', "must hold a list"),
        ('{"keys": [7]}', "is no JWKS"),
        ('{"keys": []}', "holds no key for EdDSA, ES256, RS256"),
        ('{"keys": [{"kty": "oct", "k": "canary"}]}', "holds a private or shared key"),
        ('{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "canary", "d": "canary"}]}', "private or shared"),
        ('{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "canary"}]}', "is no JWKS"),
        ('{"keys": [{"kty": "OKP", "crv": "X25519", "x": "canary"}]}', "holds no key"),
        (json.dumps({"keys": [RSA_1024]}), "RSA key of less than 2048 bits"),
        (json.dumps({"keys": [{**RSA_1024, "use": "enc"}]}), "holds no key"),
    ],
)
def test_a_file_without_a_usable_key_is_refused_and_not_quoted(
    content: str, sentence: str, tmp_path: Path
) -> None:
    pytest.importorskip("jwt")
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(UserError, match=sentence) as refused:
        identity("--token-keys", str(path), "--token-audience", "a")
    assert "canary" not in str(refused.value)


def test_nobody_is_denied_who_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "denied"
    path.write_text("tenant acme\n")
    with pytest.raises(UserError, match="--denied needs one of --tenant-header, --tenant-certificate, --tok"):
        identity("--denied", str(path))
    words = "--tenant-header", "k", "--denied", str(path)
    assert [*identity(*words)[1]] == ["denied"]
    path.write_text("acme\n")
    with pytest.raises(UserError, match="line 1, is not understood"):
        identity(*words)
