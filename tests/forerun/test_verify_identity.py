"""Laws of the options that say whose a call is: one way at most, and none that nothing stands behind."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from common.errors import UserError
from forerun.verify_identity import MAX_LIFETIME, add_identity, check_identity, identity
from forerun.verify_tls import add_tls

pytestmark = pytest.mark.grpc


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_tls(parser)
    add_identity(parser)
    return parser.parse_args(words)


def kind(*words: str) -> str:
    options = parsed(*words)
    check_identity(options)
    return type(identity(options)[0]).__name__


@pytest.fixture
def keys(tmp_path: Path) -> str:
    pytest.importorskip("jwt")
    from forerun.dev_certs import TokenKey, as_json

    path = tmp_path / "keys.json"
    path.write_bytes(as_json(TokenKey.new().jwks()))
    return str(path)


def test_each_way_is_what_it_says(keys: str) -> None:
    assert kind() == "Everybody"
    assert kind("--tenant-header", "x-tenant") == "HeaderIdentity"
    assert kind("--tls-client-ca", "ca", "--tenant-certificate") == "CertificateIdentity"
    assert kind("--tls-client-ca", "ca", "--tenant-certificate", "example.org") == "CertificateIdentity"
    assert kind("--token-keys", keys, "--token-audience", "forerun") == "TokenIdentity"


def test_the_lifetime_is_the_modules() -> None:
    tokens = pytest.importorskip("cloud_verifier.tokens")
    assert tokens.MAX_LIFETIME == MAX_LIFETIME


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--tenant-header", "k", "--tenant-certificate"),
            "--tenant-header and --tenant-certificate both say",
        ),
        (("--tenant-header", "k", "--token-keys", "f"), "--tenant-header and --token-keys both say"),
        (("--tenant-certificate", "--token-keys", "f"), "--tenant-certificate and --token-keys both say"),
        (("--tenant-certificate",), "needs --tls-client-ca"),
        (("--token-audience", "a"), "--token-audience needs --token-keys"),
        (("--token-keys", "none.json", "--token-audience", "a"), "none.json cannot be read"),
        (("--tenant-limits", "none.toml"), "none.toml cannot be read"),
    ],
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_identity(parsed(*words))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ((), "--token-keys needs --token-audience"),
        (("--token-audience", "a", "--token-lifetime", "0"), "--token-lifetime is 0"),
        (("--token-audience", "a", "--token-claim", ""), "--token-claim is empty"),
    ],
)
def test_rules_of_tokens_that_make_no_sense_are_refused(
    more: tuple[str, ...], sentence: str, keys: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        check_identity(parsed("--token-keys", keys, *more))


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
        check_identity(parsed("--token-keys", str(path), "--token-audience", "a"))
    assert "canary" not in str(refused.value)


def test_nobody_is_denied_who_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "denied"
    path.write_text("tenant acme\n")
    with pytest.raises(UserError, match="--denied needs one of --tenant-header, --tenant-certificate, --tok"):
        check_identity(parsed("--denied", str(path)))
    options = parsed("--tenant-header", "k", "--denied", str(path))
    check_identity(options)
    assert [*identity(options)[1]] == ["denied"]
    path.write_text("acme\n")
    with pytest.raises(UserError, match="line 1, is not understood"):
        check_identity(options)
