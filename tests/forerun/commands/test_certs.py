"""Laws of `forerun certs`: what it makes is of use for a trial, secret where it must be, and never
overwritten."""

import datetime
import json
import stat
from pathlib import Path

import pytest

from forerun.cli import main
from tests import wording

pytest.importorskip("jwt")
pytest.importorskip("cryptography")

DEV = ("certs", "dev", "--name", "localhost,127.0.0.1", "--tenant", "acme", "--device", "d1,d2")


def make(out: Path, *more: str) -> int:
    return main([*DEV, "--out", str(out), *more])


def test_it_makes_a_ca_a_verifier_and_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cryptography import x509

    out = tmp_path / "certs"
    assert make(out, "--days", "3") == 0
    told = capsys.readouterr().out
    secret = {"tls.key", "acme-d1.key", "acme-d2.key", "token-signing.key"}
    public = {"ca.crt", "tls.crt", "acme-d1.crt", "acme-d2.crt", "token-keys.json"}
    assert {path.name for path in out.iterdir()} == secret | public
    for path in out.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == (0 if path.name in secret else 0o44)
        assert str(path) in told
    assert "For trying out: all of it ends in 3 days" in told
    ca, server, client = (
        x509.load_pem_x509_certificate((out / name).read_bytes())
        for name in ("ca.crt", "tls.crt", "acme-d2.crt")
    )
    for each in (server, client):
        each.verify_directly_issued_by(ca)
        assert each.not_valid_after_utc - datetime.datetime.now(datetime.UTC) < datetime.timedelta(days=3.01)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["127.0.0.1"]
    uris = client.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert uris.get_values_for_type(x509.UniformResourceIdentifier) == [
        "spiffe://forerun.dev/tenant/acme/device/d2"
    ]


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is anything written beside what is there."""
    (tmp_path / "token-keys.json").write_text("mine")
    assert make(tmp_path) == 2
    wording.keep(capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["token-keys.json"]
    (tmp_path / "token-keys.json").unlink()
    (tmp_path / "ca.crt").symlink_to("elsewhere")
    assert make(tmp_path) == 2
    assert not (tmp_path / "elsewhere").exists()


def test_a_token_fits_the_keys_that_were_made_with_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import jwt

    make(tmp_path)
    capsys.readouterr()
    words = ("--tenant", "acme", "--audience", "forerun", "--issuer", "me", "--device", "d1")
    assert main(["certs", "token", "--key", str(tmp_path / "token-signing.key"), *words]) == 0
    token = capsys.readouterr().out.strip()
    (entry,) = json.loads((tmp_path / "token-keys.json").read_text())["keys"]
    claims = jwt.decode(token, jwt.PyJWK(entry).key, ["EdDSA"], audience="forerun", issuer="me")
    assert (claims["tenant"], claims["sub"], claims["exp"] - claims["iat"]) == ("acme", "d1", 600)


def test_a_file_that_is_no_key_of_tokens_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    for name in ("tls.key", "ca.crt"):
        key = str(tmp_path / name)
        assert main(["certs", "token", "--key", key, "--tenant", "acme", "--audience", "x"]) == 2
        wording.keep(capsys.readouterr().err)
