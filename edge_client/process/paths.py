"""Places of the edge's files: configuration, state, cache and sockets; and its owner-only files.

A user's places are those of the platform (XDG on Linux, Library on macOS). A service manager's directories
precede them. A daemon of the whole machine has fixed places, so every client command finds it.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError

APPLICATION = "forerun"
PAIRED = "pair.toml"
"""The configuration that `forerun pair` writes."""

PRIVATE = 0o700
"""Mode of every folder made here: tokens, texts and sockets are their owner's alone."""

TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
"""Pattern of a bearer token, as RFC 6750 allows it, and too long to guess."""


@dataclass(frozen=True, slots=True)
class EdgePaths:
    """Names the edge's folders, which need not exist, and the files in them."""

    config: Path  # the folder of edge.toml
    state: Path
    cache: Path
    runtime: Path  # of unix sockets; gone after a restart of the machine

    @property
    def config_files(self) -> tuple[Path, ...]:
        """The configuration files that are read if present; later ones override earlier ones."""
        own = (self.config / PAIRED, self.config / "edge.toml")
        return own[1:] if self.config == SYSTEM.config else (SYSTEM.config / "edge.toml", *own)

    def files_read(self, config: Path | None) -> list[Path]:
        """Return the configuration file `config` alone, or those of `config_files` that exist."""
        return [path for path in self.config_files if path.is_file()] if config is None else [config]

    @property
    def token(self) -> Path:
        """The file of the API's bearer token."""
        return self.state / "token"

    @property
    def daemon(self) -> Path:
        """The run file, by which client commands find the daemon (`edge_client.process.run_file`)."""
        return self.state / "edge.pid"

    @property
    def tried(self) -> Path:
        """The record of loadable draft files (`common.llama.load_trial`)."""
        return self.state / "tried.json"

    @property
    def journal(self) -> Path:
        """The folder of completions that survive a restart."""
        return self.state / "journal"

    @property
    def responses(self) -> Path:
        """The folder of responses that survive a restart, for `previous_response_id`."""
        return self.state / "responses"

    @property
    def indexes(self) -> Path:
        """The folder of indexes of the user's files (`forerun index`)."""
        return self.state / "indexes"

    @property
    def earlier(self) -> Path:
        """The folder of earlier texts that survive a restart, one file a pair."""
        return self.state / "earlier"

    @property
    def log(self) -> Path:
        """The log of a daemon without a service manager, if one is requested."""
        return self.state / "edge.log"

    @property
    def socket(self) -> Path:
        """The place of a unix socket."""
        return self.runtime / "edge.sock"


SYSTEM = EdgePaths(
    config=Path("/etc") / APPLICATION,
    state=Path("/var/lib") / APPLICATION,
    cache=Path("/var/cache") / APPLICATION,
    runtime=Path("/run") / APPLICATION,
)
"""Paths of a daemon of the whole machine, made by the unit of `install-service --system`."""


def find_paths(environment: Mapping[str, str]) -> EdgePaths:
    """Return the paths of this environment.

    The folders made by systemd come first (STATE_DIRECTORY and the like), then the XDG variables, then the
    platform's defaults. Raise `UserError` if platformdirs is missing.
    """
    platform = _platform_paths()
    state = _first(environment, ("STATE_DIRECTORY",), "XDG_STATE_HOME", platform.state)
    cache = _first(environment, ("CACHE_DIRECTORY",), "XDG_CACHE_HOME", platform.cache)
    return EdgePaths(
        config=_first(environment, ("CONFIGURATION_DIRECTORY",), "XDG_CONFIG_HOME", platform.config),
        state=state,
        cache=cache,
        runtime=_first(environment, ("RUNTIME_DIRECTORY",), "XDG_RUNTIME_DIR", state / "run"),
    )


def chosen_paths(*, system: bool) -> EdgePaths:
    """Return the paths of the daemon of the whole machine, or of this user's. Raise as `find_paths`."""
    return SYSTEM if system else find_paths(os.environ)


def make_private(folder: Path) -> Path:
    """Make the folder if missing, for its owner alone, and return it. Raise `UserError` on failure."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=PRIVATE, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the folder {folder} cannot be made: {error.strerror or error}; check who owns its parent"
        ) from error
    return folder


def write_private(path: Path, content: bytes) -> None:
    """Write a file in full or not at all, for its owner alone. Raise `OSError`."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # of mode 0600
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def expand(path: str) -> Path:
    """Return the path that a user or a file names, with ~ expanded."""
    return Path(path).expanduser()


def path_of(name: str) -> Path | None:
    """Return the path of this name; None for an empty name."""
    return Path(name) if name else None


def ensure_token(path: Path) -> str:
    """Return the file's token; make one if the file is missing. Raise as `read_token`, and for an unwritable
    folder."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    except OSError as error:
        raise UserError(f"the token file {path} cannot be made: {error.strerror or error}") from error
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w", encoding="ascii") as out:
        out.write(f"{token}\n")
    return token


def read_token(path: Path) -> str:
    """Return the file's token. Raise `UserError` if it is unreadable, invalid or open to other users."""
    try:
        with path.open(encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(1024).strip()
    except OSError as error:
        raise UserError(f"the token file {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the token file {path} holds no token; remove it and start the daemon") from error
    if stat.S_IMODE(mode) & 0o077:
        raise UserError(f"other users may read the token file {path}; run: chmod 600 {path}")
    if not TOKEN.fullmatch(token):
        raise UserError(f"the token file {path} holds no token; remove it and start the daemon")
    return token


def _first(environment: Mapping[str, str], manager: tuple[str, ...], xdg: str, fallback: Path) -> Path:
    """Return the service manager's folder (the first of several), the XDG variable's, or the fallback."""
    for name in manager:
        if folder := environment.get(name, "").split(":")[0]:
            return Path(folder)
    home = environment.get(xdg, "")
    return Path(home) / APPLICATION if os.path.isabs(home) else fallback  # XDG: a relative one is no path


def _platform_paths() -> EdgePaths:
    try:
        from platformdirs import PlatformDirs
    except ImportError as error:
        raise UserError("platformdirs is not installed; run: pip install 'forerun[edge]'") from error
    dirs = PlatformDirs(APPLICATION, appauthor=False)
    return EdgePaths(
        config=dirs.user_config_path,
        state=dirs.user_state_path,
        cache=dirs.user_cache_path,
        runtime=dirs.user_state_path / "run",  # the platform's own falls back to /tmp, which others share
    )
