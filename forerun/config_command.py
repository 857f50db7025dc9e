"""`forerun edge config`: what the daemon is told, and which file, variable or flag says so."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from common.errors import UserError
from edge_client.config import load_config
from edge_client.config.flags import add_flags
from edge_client.config.pages import as_json, as_toml_file, commented_file
from edge_client.paths import make_private
from forerun.edge_places import add_config, add_json, add_place, files_read, loaded, places

DESCRIPTION = """\
Shows and makes the configuration of `forerun edge`. Each setting is the built-in default, unless the fleet, a
file, the environment or a flag says otherwise; the later of these wins (docs/edge_config.md).

  forerun edge config show --origin
  forerun edge config init
  forerun edge config check FILE"""


def add_actions(actions: Any) -> None:
    """`config` and its verbs."""
    parser = actions.add_parser(
        "config",
        help="show, make and check the daemon's configuration",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    show = _verb(verbs, "show", "print what holds, as TOML", _show)
    show.add_argument("--origin", action="store_true", help="and which file, variable or flag says so")
    add_config(show)
    add_flags(show)
    path = _verb(verbs, "path", "print which files are read, and where state and models are", _path)
    add_config(path)
    init = _verb(verbs, "init", "write a commented file that changes nothing; never over another", _init)
    init.add_argument("file", nargs="?", type=Path, metavar="FILE", help="(edge.toml in its usual folder)")
    check = _verb(verbs, "check", "say whether a file is right; exit code 2 with a sentence if not", _check)
    check.add_argument("file", type=Path, metavar="FILE")


def _verb(verbs: Any, name: str, words: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=words, description=f"{words}.".capitalize())
    add_place(parser)
    add_json(parser)
    parser.set_defaults(run=run)
    return parser


def _show(options: argparse.Namespace) -> int:
    found = loaded(options, places(options))
    if options.json:
        print(json.dumps(as_json(found, origins=options.origin), indent=1))
    else:
        print(as_toml_file(found, origins=options.origin), end="")
    return 0


def _path(options: argparse.Namespace) -> int:
    paths = places(options)
    names = files_read(options, paths) if options.config else list(paths.config_files)
    folders = {name: getattr(paths, name) for name in ("state", "models", "cache", "runtime")}
    if options.json:
        files = [{"path": str(name), "exists": name.is_file()} for name in names]
        print(json.dumps({"files": files, **{kind: str(each) for kind, each in folders.items()}}, indent=1))
        return 0
    for name in names:
        print(f"{name}{'' if name.is_file() else '  (not there)'}")
    for kind, folder in folders.items():
        print(f"{kind}: {folder}")
    return 0


def _init(options: argparse.Namespace) -> int:
    file = options.file or places(options).config / "edge.toml"
    if options.file is None:
        make_private(file.parent)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 if options.system else 0o600)
    except FileExistsError as error:
        raise UserError(f"{file} is there already and is left as it is; edit it, or name another") from error
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror or error}") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(commented_file())
    print(json.dumps({"written": str(file)}) if options.json else file)
    return 0


def _check(options: argparse.Namespace) -> int:
    """The file alone: neither the environment nor other files can hide what is wrong in it."""
    found = load_config({}, {}, [options.file])
    count = sum(origin.layer == "file" for origin in found.origins.values())
    if options.json:
        print(json.dumps({"file": str(options.file), "ok": True, "settings": count}))
    else:
        print(f"{options.file} is right; it sets {count} of {len(found.origins)} settings")
    return 0
