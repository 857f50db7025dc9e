"""Laws of a verifier's certificate: files that cannot be used are named before anything listens."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from common.errors import UserError

pytestmark = pytest.mark.grpc


def files(folder: Path) -> tuple[Path, Path, Path]:
    """Certificate, key and CA."""
    import trustme

    ca = trustme.CA()
    issued = ca.issue_cert("localhost")
    cert, key, roots = (folder / name for name in ("cert.pem", "key.pem", "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    ca.cert_pem.write_to_path(str(roots))
    return cert, key, roots


def test_files_that_go_together_are_taken(tmp_path: Path) -> None:
    from cloud_verifier.tls import ServerTls

    cert, key, roots = files(tmp_path)
    ServerTls(cert, key).read()
    ServerTls(cert, key, roots).read()


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    from cloud_verifier.tls import ServerTls

    cert, key, roots = files(tmp_path)
    (tmp_path / "other").mkdir()
    other_key = files(tmp_path / "other")[1]
    for tls, words in (
        (ServerTls(tmp_path / "none.pem", key), "none.pem .* No such file"),
        (ServerTls(cert, other_key), "cannot be used: key values mismatch"),
        (ServerTls(cert, key, key), "the TLS client CA .*key.pem cannot be used"),
        (ServerTls(roots, key), "cannot be used"),
    ):
        with pytest.raises(UserError, match=words):
            tls.read()


def test_when_a_certificate_ends_is_known(tmp_path: Path) -> None:
    import trustme

    from cloud_verifier.tls import LiveTls, ServerTls

    end = datetime.datetime(2040, 5, 6, tzinfo=datetime.UTC)
    cert, key, _ = files(tmp_path)
    issued = trustme.CA().issue_cert("localhost", not_after=end)
    issued.private_key_and_cert_chain_pem.write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    assert LiveTls(ServerTls(cert, key)).expires_at == end.timestamp()


def test_a_key_with_a_password_is_refused_and_asks_nobody(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    from cloud_verifier.tls import ServerTls

    cert, key, _ = files(tmp_path)
    locked = serialization.load_pem_private_key(key.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    )
    key.write_bytes(locked)
    with pytest.raises(UserError, match="asks for a password"):
        ServerTls(cert, key).read()
