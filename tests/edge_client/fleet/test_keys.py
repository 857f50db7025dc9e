"""Keys lie in files that others cannot read, and a signature is by one of them or by nobody."""

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
