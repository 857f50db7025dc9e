"""Keys lie in files that others cannot read, and a signature is by one of them or by nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import UserError

pytestmark = pytest.mark.broker


def test_a_pair_that_was_written_signs_and_is_believed(tmp_path: Path) -> None:
    from edge_client.fleet import keys

    public = keys.generate(tmp_path / "key")
    private = keys.read_private(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert keys.read_public(str(tmp_path / "key.pub")) == keys.read_public(public.hex()) == public
    signature = keys.signer(private)(b"words")
    verify = keys.verifier(public)
    assert verify(b"words", signature)
    assert not verify(b"other words", signature)
    assert not verify(b"words", signature[:-1])
    assert not keys.verifier(b"")(b"words", signature)


def test_a_known_answer(tmp_path: Path) -> None:
    """RFC 8032, 7.1, test 2."""
    from edge_client.fleet import keys

    secret = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"
    public = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    signature = (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert keys.signer(bytes.fromhex(secret))(b"\x72").hex() == signature
    assert keys.verifier(bytes.fromhex(public))(b"\x72", bytes.fromhex(signature))


def test_a_key_is_never_written_over_and_never_read_where_others_can(tmp_path: Path) -> None:
    from edge_client.fleet import keys

    keys.generate(tmp_path / "key")
    with pytest.raises(UserError):
        keys.generate(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(UserError):
        keys.read_private(tmp_path / "key")


@pytest.mark.parametrize(
    "content", ["", "hello", "forerun-fleet-public-key zz", "forerun-fleet-public-key 00"]
)
def test_what_is_no_key_is_named(tmp_path: Path, content: str) -> None:
    from edge_client.fleet import keys

    (tmp_path / "key").write_text(content)
    with pytest.raises(UserError):
        keys.read_public(str(tmp_path / "key"))
    with pytest.raises(UserError):
        keys.read_private(tmp_path / "key")
    with pytest.raises(UserError):
        keys.read_public(str(tmp_path / "none"))
