"""Where the edge keeps what, for whom."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.paths import SYSTEM, find_paths, make_private

pytestmark = pytest.mark.api  # platformdirs, of the `edge` extra

XDG = {
    "XDG_CONFIG_HOME": "/h/config",
    "XDG_STATE_HOME": "/h/state",
    "XDG_CACHE_HOME": "/h/cache",
    "XDG_DATA_HOME": "/h/data",
    "XDG_RUNTIME_DIR": "/run/user/7",
}


def test_the_variables_of_xdg_are_honoured() -> None:
    paths = find_paths(XDG)
    assert paths.config_files == (Path("/etc/forerun/edge.toml"), Path("/h/config/forerun/edge.toml"))
    assert paths.token == Path("/h/state/forerun/token")
    assert paths.daemon == Path("/h/state/forerun/edge.pid")
    assert paths.journal == Path("/h/state/forerun/journal")
    assert paths.log == Path("/h/state/forerun/edge.log")
    assert paths.models == Path("/h/data/forerun/models")
    assert paths.socket == Path("/run/user/7/forerun/edge.sock")


def test_a_relative_xdg_variable_is_none() -> None:
    assert find_paths({**XDG, "XDG_STATE_HOME": "state"}).state == find_paths({}).state


def test_folders_of_a_service_manager_come_first() -> None:
    made = {
        "STATE_DIRECTORY": "/var/lib/private/forerun:/var/lib/other",
        "CACHE_DIRECTORY": "/var/cache/private/forerun",
        "RUNTIME_DIRECTORY": "/run/forerun",
        "CONFIGURATION_DIRECTORY": "/etc/forerun",
    }
    paths = find_paths({**XDG, **made})
    assert paths.state == Path("/var/lib/private/forerun")
    assert paths.models == Path("/var/cache/private/forerun/models")
    assert paths.runtime == Path("/run/forerun")
    assert paths.config_files == (Path("/etc/forerun/edge.toml"),)


def test_the_daemon_of_the_machine_is_found_by_whoever_asks() -> None:
    assert SYSTEM.daemon == Path("/var/lib/forerun/edge.pid")
    assert SYSTEM.config_files == (Path("/etc/forerun/edge.toml"),)


def test_sockets_without_a_runtime_folder_are_not_in_a_shared_one() -> None:
    paths = find_paths({})
    assert paths.runtime.parent == paths.state


def test_what_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    made = make_private(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert make_private(made) == made


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        make_private(tmp_path / "file" / "state")
