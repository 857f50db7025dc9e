"""Laws of certificates and callers where no wire is needed; tests/drivers has those that need one."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from cloud_verifier.identity.identity import HeaderIdentity, Who
from cloud_verifier.identity.server_tls import LiveServerTls, ServerTls
from common.errors import Code, UserError
from tests import wording
from tests.support.call import Call
from tests.support.papers import Papers

pytestmark = pytest.mark.grpc  # `grpc` has the certificates' half of the module


def call(*values: str) -> Any:
    """One with these in the proxy's header."""
    return Call(*values, key="x-tenant")


def test_the_proxys_header_is_the_tenant() -> None:
    identity = HeaderIdentity("x-tenant")
    assert identity.who(call("acme")) == Who("acme")
    assert identity.who(call()) == Who(), "behind a proxy that does not set it all are one"


def test_a_header_that_a_client_has_set_beside_the_proxys_is_refused() -> None:
    """A proxy that adds its own and leaves the client's there would let the client choose."""
    for values in (("acme", "globex"), ("globex", "acme"), ("acme", "acme")):
        with wording.raises(UserError) as found:
            HeaderIdentity("x-tenant").who(call(*values))
        assert found.value.code is Code.UNAUTHENTICATED


def files(folder: Path) -> tuple[Path, Path, Path]:
    """Certificate, key and CA."""
    papers = Papers(folder)
    return *papers.issue("localhost", pair=(folder / "cert.pem", folder / "key.pem")), papers.ca_file


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    cert, key, roots = files(tmp_path)
    assert ServerTls(cert, key, roots).read().expires_at > 0
    other_key = files(tmp_path / "other")[1]
    for tls in (
        ServerTls(tmp_path / "none.pem", key),
        ServerTls(cert, other_key),
        ServerTls(cert, key, key),
        ServerTls(roots, key),
    ):
        with wording.raises(UserError):
            tls.read()


def test_when_a_certificate_ends_is_known(tmp_path: Path) -> None:
    end = datetime.datetime(2040, 5, 6, tzinfo=datetime.UTC)
    pair = Papers(tmp_path).issue("localhost", end)
    assert LiveServerTls(ServerTls(*pair)).expires_at == end.timestamp()


def test_a_key_with_a_password_is_refused_and_asks_nobody(tmp_path: Path) -> None:
    cert, key, _ = files(tmp_path)
    locked = serialization.load_pem_private_key(key.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    )
    key.write_bytes(locked)
    with wording.raises(UserError):
        ServerTls(cert, key).read()
