"""Implements `forerun edge config`: shows the daemon's settings and where each comes from."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config.command_line import add_command, add_flags, add_options
from common.config.pages import as_json, as_toml_file, commented_file
from common.config.setting import setting
from common.errors import UserError
from edge_client.process.paths import make_private
from edge_client.settings import HEAD, SCHEMA
from forerun.options import ConfigOption, JsonOption, PlaceOption, loaded, places

DESCRIPTION = """\
Show and make the configuration of `forerun edge`. The fleet, a file, the environment or a flag can override
each setting's built-in default; the later of these wins (docs/edge_config.md).

  forerun edge config show --origin
  forerun edge config init
  forerun edge config show --config FILE"""


@dataclass(frozen=True, kw_only=True)
class PathOptions(ConfigOption, JsonOption):
    """Declares which daemon's files are listed."""


@dataclass(frozen=True, kw_only=True)
class InitOptions(PlaceOption):
    """Declares which file is written."""

    file: Path | None = setting(
        None, "file to write (default: the usual edge.toml)", "FILE", nargs="?", is_argument=True
    )


def add_actions(actions: Any) -> None:
    words = "show and make the daemon's configuration"
    parser = add_command(actions, "config", words, description=DESCRIPTION)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    show = add_command(verbs, "show", "print the effective settings as TOML", _show)
    show.add_argument("--origin", action="store_true", help="also show the source of each setting")
    add_options(show, PathOptions)
    add_flags(show, SCHEMA)
    words = "print the configuration files and the folders of state, cache and sockets"
    add_command(verbs, "path", words, _path, PathOptions)
    words = "write a file of commented-out defaults; never overwrites a file"
    add_command(verbs, "init", words, _init, InitOptions)


def _show(options: argparse.Namespace) -> int:
    config = loaded(options, places(options))
    if options.json:
        print(json.dumps(as_json(SCHEMA, config, origins=options.origin), indent=1))
    else:
        print(as_toml_file(SCHEMA, config, origins=options.origin), end="")
    return 0


def _path(options: PathOptions) -> int:
    paths = options.paths
    names = [options.config] if options.config else list(paths.config_files)
    folders = {name: getattr(paths, name) for name in ("state", "cache", "runtime")}
    if options.json:
        files = [{"path": str(name), "exists": name.is_file()} for name in names]
        print(json.dumps({"files": files, **{kind: str(each) for kind, each in folders.items()}}, indent=1))
        return 0
    for name in names:
        print(f"{name}{'' if name.is_file() else '  (not there)'}")
    for kind, folder in folders.items():
        print(f"{kind}: {folder}")
    return 0


def _init(options: InitOptions) -> int:
    file = options.file or options.paths.config / "edge.toml"
    if options.file is None:
        make_private(file.parent)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 if options.system else 0o600)
    except FileExistsError as error:
        raise UserError(f"{file} is there already and is left unchanged; edit it or name another") from error
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror or error}") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(commented_file(SCHEMA, HEAD))
    print(file)
    return 0
