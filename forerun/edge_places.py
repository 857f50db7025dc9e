"""What all commands of the edge ask first: whose daemon is meant, where its files are, and how it is set."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from edge_client import daemon_file
from edge_client.config import Loaded, load_config
from edge_client.config.flags import flags_from
from edge_client.config.schema import BY_NAME
from edge_client.model_name import is_remote
from edge_client.paths import SYSTEM, EdgePaths, find_paths

if TYPE_CHECKING:
    from edge_client.llama.settings import LlamaSettings


def add_place(parser: argparse.ArgumentParser) -> None:
    """Whose daemon."""
    parser.add_argument(
        "--system",
        action="store_true",
        help="the daemon of the whole machine (/etc/forerun, /var/lib/forerun), not this user's",
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """Which configuration."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="read this file in place of those that `config path` lists",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """For programs."""
    parser.add_argument("--json", action="store_true", help="print JSON in place of text")


def places(options: argparse.Namespace) -> EdgePaths:
    """Of the daemon that the options mean."""
    return SYSTEM if getattr(options, "system", False) else find_paths(os.environ)


def models_folder(name: str) -> str:
    """Where `forerun pull` puts models; empty for a model that is named by its file."""
    return str(find_paths(os.environ).models) if is_remote(name) else ""


def try_draft(settings: LlamaSettings, *, weights: bool = True) -> None:
    """Return when this process may load the draft model: a file that llama.cpp dies of ends a child.

    Raises `UserError` that says why it may not.
    """
    from edge_client.llama.trial import Trials

    Trials(find_paths(os.environ).tried).ensure(settings, weights=weights)


def files_read(options: argparse.Namespace, paths: EdgePaths) -> list[Path]:
    """--config, or those of the usual files that are there."""
    chosen: Path | None = getattr(options, "config", None)
    return [path for path in paths.config_files if path.is_file()] if chosen is None else [chosen]


def given_flags(options: argparse.Namespace) -> str:
    """The options' settings and configuration file, for another process with another folder."""
    found = dict(flags_from(options))
    for name, value in found.items():
        if BY_NAME[name].setting.is_path and isinstance(value, str) and Path(value).exists():
            found[name] = str(Path(value).absolute())
    chosen: Path | None = getattr(options, "config", None)
    return json.dumps({"flags": found, "config": None if chosen is None else str(chosen.absolute())})


def as_the_daemon(options: argparse.Namespace, paths: EdgePaths) -> Loaded:
    """The configuration of the options; without any, that of the daemon that runs, if one does."""
    if not flags_from(options) and getattr(options, "config", None) is None:
        record = daemon_file.read(paths.daemon)
        if record is not None and record.flags:
            told = json.loads(record.flags)
            file = told["config"]
            read = files_read(options, paths) if file is None else [Path(file)]
            return load_config(told["flags"], os.environ, read)
    return loaded(options, paths)


def loaded(options: argparse.Namespace, paths: EdgePaths) -> Loaded:
    """The configuration of the options: files, environment, flags. Raises `UserError` that says what is wrong
    where."""
    return load_config(flags_from(options), os.environ, files_read(options, paths))
