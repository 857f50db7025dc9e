"""Declares the options that commands share, and what they have in common with files and addresses."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config.command_line import flags_from
from common.config.merge import Loaded
from common.config.setting import Entry, setting
from common.errors import UserError
from common.wire.grpc_options import host_and_port
from edge_client.process.paths import EdgePaths, chosen_paths
from edge_client.process.run_file import daemons_config
from edge_client.settings import SCHEMA, EdgeConfig, load_config
from simulator.documents import write_error, write_whole


@dataclass(frozen=True, kw_only=True)
class WorkersOption:
    """Declares how many processes the simulator uses."""

    workers: int = setting(0, "number of processes; 0: one per processor", "N")


@dataclass(frozen=True, kw_only=True)
class JsonOption:
    """Declares output for programs."""

    json: bool = setting(False, "print JSON instead of text")


@dataclass(frozen=True, kw_only=True)
class PlaceOption:
    """Declares which daemon a command addresses."""

    system: bool = setting(False, "use the daemon of the whole machine, not this user's")

    @property
    def paths(self) -> EdgePaths:
        """Return the files of the chosen daemon."""
        return places(self)


@dataclass(frozen=True, kw_only=True)
class DaemonOptions(PlaceOption, JsonOption):
    """Declares the options that commands about the daemon share."""


@dataclass(frozen=True, kw_only=True)
class ConfigOption(PlaceOption):
    """Declares which configuration of the daemon is read."""

    config: Path | None = setting(None, "the only file read (see `forerun edge config path`)", "FILE")


def add_server_words(parser: argparse.ArgumentParser, level: Entry) -> None:
    """Add options that other servers have, too, for the address and the level of the log."""
    for name, words in (("host", "host of --listen"), ("port", "port of --listen")):
        parser.add_argument(f"--{name}", default=argparse.SUPPRESS, metavar=name.upper(), help=words)
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_const",
        const="debug",
        dest=level.name,
        default=argparse.SUPPRESS,
        help="--log-level debug",
    )


def joined_address(options: argparse.Namespace, name: str, configured: str) -> str:
    """Return an address to listen at with a given host or port, of which the other part stays as configured.
    Raise `UserError` for a socket, which has neither. `name`: the setting's."""
    if not (hasattr(options, "host") or hasattr(options, "port")):
        return configured
    if configured.startswith("unix:"):
        raise UserError(f"{name} is {configured}, a socket without host and port; leave them out, or it")
    host, _, port = configured.rpartition(":")
    own = getattr(options, "host", host)
    own = f"[{own}]" if ":" in own and not own.startswith("[") else own  # of IPv6
    address = f"{own}:{getattr(options, 'port', port)}"
    if host_and_port(address) is None or address.split() != [address]:
        raise UserError(f"--host and --port give {address!r}, which is no address; a port is at most 65535")
    return address


def places(options: Any) -> EdgePaths:
    """Return the files of the daemon that the parsed options choose."""
    return chosen_paths(system=getattr(options, "system", False))


def read_prompt(prompt: str | None) -> str:
    """Return the prompt, or the text of standard input. Raise `UserError`."""
    try:
        if prompt is None:
            prompt = sys.stdin.read()
        prompt.encode("utf-8")  # Python lets other bytes of arguments and standard input in, as surrogates
    except OSError as error:
        raise UserError(f"the prompt cannot be read: {error}") from error
    except UnicodeError as error:
        raise UserError("the prompt is not UTF-8 text; convert it first, for example with iconv") from error
    return prompt


def write_out(what: str, path: Path, text: str) -> None:
    """Write a whole file or nothing. Messages call it `what`. Raise `UserError` or `CapacityError`."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise write_error(f"{what} cannot be written to {path}", error) from error


# The daemon's configuration --------------------------------------------------------------------------------


def given_flags(options: argparse.Namespace) -> str:
    """Return the given settings and configuration file as JSON, with absolute paths for another process."""
    flags = dict(flags_from(options, SCHEMA))
    for name, value in flags.items():
        if SCHEMA.by_name[name].setting.is_path and isinstance(value, str) and Path(value).exists():
            flags[name] = str(Path(value).absolute())
    config: Path | None = options.config
    return json.dumps({"flags": flags, "config": None if config is None else str(config.absolute())})


def as_the_daemon(options: argparse.Namespace, paths: EdgePaths) -> Loaded[EdgeConfig]:
    """Return the configuration of the options; without options, that of a running daemon."""
    has_flags = bool(flags_from(options, SCHEMA))
    return loaded(options, paths) if has_flags else daemons_config(paths, options.config)


def loaded(options: argparse.Namespace, paths: EdgePaths) -> Loaded[EdgeConfig]:
    """Load the configuration from files, environment and flags. Raise `UserError`."""
    return load_config(flags_from(options, SCHEMA), os.environ, paths.files_read(options.config))
