"""Where the edge keeps what, for whom."""

import os
import stat
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.process.paths import TOKEN, ensure_token, find_paths, make_private, read_token
from tests import wording

needs_platformdirs = pytest.mark.api
XDG = {
    "XDG_CONFIG_HOME": "/h/config",
    "XDG_STATE_HOME": "/h/state",
    "XDG_CACHE_HOME": "/h/cache",
    "XDG_RUNTIME_DIR": "/run/user/7",
}


@needs_platformdirs
def test_the_variables_of_xdg_are_honoured() -> None:
    paths = find_paths(XDG)
    own = Path("/h/config/forerun")
    assert paths.config_files == (Path("/etc/forerun/edge.toml"), own / "pair.toml", own / "edge.toml")
    assert paths.token == Path("/h/state/forerun/token")
    assert paths.daemon == Path("/h/state/forerun/edge.pid")
    assert paths.journal == Path("/h/state/forerun/journal")
    assert paths.log == Path("/h/state/forerun/edge.log")
    assert paths.socket == Path("/run/user/7/forerun/edge.sock")
    ours = find_paths({"XDG_STATE_HOME": "state"})  # a relative one is none
    assert ours.state == find_paths({}).state == ours.runtime.parent, "/tmp is shared"


@needs_platformdirs
def test_folders_of_a_service_manager_come_first() -> None:
    made = {
        "STATE_DIRECTORY": "/var/lib/private/forerun:/var/lib/other",
        "CACHE_DIRECTORY": "/var/cache/private/forerun",
        "RUNTIME_DIRECTORY": "/run/forerun",
        "CONFIGURATION_DIRECTORY": "/etc/forerun",
    }
    paths = find_paths({**XDG, **made})
    assert paths.state == Path("/var/lib/private/forerun")
    assert paths.cache == Path("/var/cache/private/forerun")
    assert paths.runtime == Path("/run/forerun")
    assert paths.config_files == (Path("/etc/forerun/edge.toml"),)


def test_what_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    made = make_private(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert make_private(made) == made


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with wording.raises(UserError):
        make_private(tmp_path / "file" / "state")


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
    with wording.raises(UserError):
        ensure_token(path)


@pytest.mark.parametrize(
    "data", [b"", b"short\n", b"with a space in the middle of it", b"\xff" * 40, b"a" * 600]
)
def test_what_is_no_token_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(data)
    path.chmod(0o600)
    with wording.raises(UserError):
        read_token(path)


def test_a_missing_file_or_folder_is_a_sentence(tmp_path: Path) -> None:
    with wording.raises(UserError):
        read_token(tmp_path / "token")
    with wording.raises(UserError):
        ensure_token(tmp_path / "none" / "token")
