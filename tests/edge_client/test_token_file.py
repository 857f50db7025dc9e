"""The API's token is random, private, and made once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.token_file import TOKEN, ensure_token, read_token


def test_a_token_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = ensure_token(path)
    assert TOKEN.fullmatch(token)
    assert len(token) >= 43  # 256 bits
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ensure_token(path) == read_token(path) == token
    assert ensure_token(tmp_path / "other") != token


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_token_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    ensure_token(path)
    os.chmod(path, mode)
    with pytest.raises(UserError, match="chmod 600"):
        ensure_token(path)


@pytest.mark.parametrize(
    "data", [b"", b"short\n", b"with a space in the middle of it", b"\xff" * 40, b"a" * 600]
)
def test_what_is_no_token_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(UserError, match="holds no token"):
        read_token(path)


def test_a_missing_file_or_folder_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_token(tmp_path / "token")
    with pytest.raises(UserError, match="cannot be made"):
        ensure_token(tmp_path / "none" / "token")
