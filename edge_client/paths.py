"""Where the edge keeps what: configuration, state, models, sockets.

A person's own places are those of the platform (XDG on Linux, Library on macOS); a service manager's
directories beat them where it names some; and a daemon of the whole machine has fixed ones, so that a client
command finds it whoever calls.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError

APPLICATION = "forerun"
PRIVATE = 0o700
"""Of every folder that is made here: tokens, texts and sockets are their owner's alone."""


@dataclass(frozen=True, slots=True)
class EdgePaths:
    """Folders, which need not exist, and the files in them."""

    config: Path  # the folder of edge.toml
    state: Path
    cache: Path
    models: Path
    runtime: Path  # of unix sockets; gone after a restart of the machine
    system_config: Path = Path("/etc") / APPLICATION  # read before `config`

    @property
    def config_files(self) -> tuple[Path, ...]:
        """What is read if it is there, the later over the earlier."""
        return tuple(dict.fromkeys((self.system_config / "edge.toml", self.config / "edge.toml")))

    @property
    def token(self) -> Path:
        """The bearer token of the API."""
        return self.state / "token"

    @property
    def daemon(self) -> Path:
        """What tells client commands of the running daemon (`edge_client.daemon_file`)."""
        return self.state / "edge.pid"

    @property
    def tried(self) -> Path:
        """Which draft files may be loaded (`edge_client.llama.trial`)."""
        return self.state / "tried.json"

    @property
    def pace(self) -> Path:
        """How long draft models take on this device (`edge_client.llama.pace`)."""
        return self.state / "pace.json"

    @property
    def journal(self) -> Path:
        """The folder of completions that survive a restart."""
        return self.state / "journal"

    @property
    def log(self) -> Path:
        """The log of a daemon without a service manager, if it is asked to write one."""
        return self.state / "edge.log"

    @property
    def socket(self) -> Path:
        """Where a unix socket belongs."""
        return self.runtime / "edge.sock"


SYSTEM = EdgePaths(
    config=Path("/etc") / APPLICATION,
    state=Path("/var/lib") / APPLICATION,
    cache=Path("/var/cache") / APPLICATION,
    models=Path("/var/cache") / APPLICATION / "models",
    runtime=Path("/run") / APPLICATION,
)
"""Of a daemon of the whole machine; the unit that `install-service --system` writes makes them."""


def find_paths(environment: Mapping[str, str]) -> EdgePaths:
    """The places of whoever has this environment.

    systemd names folders that it made in STATE_DIRECTORY and the like, where the unit asks for them; then
    come the XDG variables, then the platform's defaults. Raises `UserError` if platformdirs is missing.
    """
    platform = _platform_paths()
    state = _first(environment, ("STATE_DIRECTORY",), "XDG_STATE_HOME", platform.state)
    cache = _first(environment, ("CACHE_DIRECTORY",), "XDG_CACHE_HOME", platform.cache)
    models = _first(environment, (), "XDG_DATA_HOME", platform.models)
    if environment.get("CACHE_DIRECTORY"):
        models = cache
    return EdgePaths(
        config=_first(environment, ("CONFIGURATION_DIRECTORY",), "XDG_CONFIG_HOME", platform.config),
        state=state,
        cache=cache,
        models=models / "models",
        runtime=_first(environment, ("RUNTIME_DIRECTORY",), "XDG_RUNTIME_DIR", state / "run"),
    )


def make_private(folder: Path) -> Path:
    """The folder, made if it is missing, for its owner alone. Raises `UserError` if it cannot be made."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=PRIVATE, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the folder {folder} cannot be made: {error.strerror or error}; check who owns what is above it"
        ) from error
    return folder


def expand(path: str) -> Path:
    """A path as a person or a file writes it."""
    return Path(path).expanduser()


def _first(environment: Mapping[str, str], manager: tuple[str, ...], xdg: str, fallback: Path) -> Path:
    """The service manager's folder (the first, if it made several), the XDG variable's, or the fallback."""
    for name in manager:
        if found := environment.get(name, "").split(":")[0]:
            return Path(found)
    home = environment.get(xdg, "")
    return Path(home) / APPLICATION if os.path.isabs(home) else fallback  # XDG: a relative one is no path


def _platform_paths() -> EdgePaths:
    try:
        from platformdirs import PlatformDirs
    except ImportError as error:
        raise UserError("platformdirs is not installed; pip install 'forerun[edge]'") from error
    dirs = PlatformDirs(APPLICATION, appauthor=False)
    return EdgePaths(
        config=dirs.user_config_path,
        state=dirs.user_state_path,
        cache=dirs.user_cache_path,
        models=dirs.user_data_path,
        runtime=dirs.user_state_path / "run",  # the platform's own falls back to /tmp, which others share
    )
