"""`forerun pull`: draft models by name, fetched once, with their hash."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from common.errors import UserError
from edge_client.config.checks import SHA256
from edge_client.model_name import HUB, is_remote, parse_name
from edge_client.model_store import ModelStore, Progress, Stored, check_magic, hash_of
from forerun.edge_places import add_json, add_place, places
from forerun.progress import ProgressBar

DESCRIPTION = """\
Fetches a draft model, takes up what broke off, and checks what came:

  forerun pull hf://organisation/repository/file.gguf
  forerun pull hf://organisation/repository/file.gguf@revision --sha256 HASH
  forerun pull https://host/path/file.gguf --sha256 HASH

Afterwards the same name is the draft model's, in `--draft` and in edge.toml. HF_TOKEN opens gated
repositories and is told to no other host than the hub; HF_ENDPOINT names a mirror. Of a local file the hash
is printed."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "pull",
        help="fetch a draft model, and see to those that were fetched",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="hf://..., https://... or a file")
    parser.add_argument("--sha256", default="", metavar="HASH", help="what the file must hash to")
    parser.add_argument("--offline", action="store_true", help="use no network: say whether it is here")
    verb = parser.add_mutually_exclusive_group()
    verb.add_argument("--list", action="store_true", help="list what was fetched")
    verb.add_argument(
        "--verify", action="store_true", help="hash NAME, or all, again; exit code 1 if changed"
    )
    verb.add_argument("--remove", action="store_true", help="remove NAME")
    parser.add_argument(
        "--models", type=Path, metavar="FOLDER", help="where they are kept (the usual folder)"
    )
    add_place(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    _check(options)
    store = ModelStore(options.models or places(options).models)
    if options.list:
        return _list(options, store)
    if options.verify:
        return _verify(options, store)
    if options.remove:
        return _remove(options, store)
    return _pull(options, store)


def _check(options: argparse.Namespace) -> None:
    """Raises `UserError` for what does not go together."""
    if options.name is None and not (options.list or options.verify):
        raise UserError("name what to pull: hf://organisation/repository/file.gguf, https://... or a file")
    if options.name is not None and options.name.lower().startswith("file:"):
        path = unquote(urlsplit(options.name).path) or "/PATH/FILE.gguf"
        raise UserError(
            f"{options.name} is a file: address; a file of this machine is named by its path alone: {path}"
        )
    if options.name is not None and options.list:
        raise UserError("--list lists all; leave the name out")
    if options.sha256 and not SHA256.fullmatch(options.sha256):
        raise UserError(f"--sha256 is {options.sha256!r}; it must be 64 hex digits, as sha256sum prints them")
    if options.sha256 and (options.list or options.verify or options.remove):
        raise UserError("--sha256 belongs to a pull; --verify compares with what was noted then")


# pull -------------------------------------------------------------------------------------------------------


def _pull(options: argparse.Namespace, store: ModelStore) -> int:
    if not is_remote(options.name):
        return _hash_local(options)
    found = store.find(options.name)
    if found is not None:
        stored = store.get(options.name)
        _compare(options, stored.manifest.sha256)
        return _tell(options, stored, "is here already")
    if options.offline:
        raise UserError(f"{options.name} is not in {store.root}, and --offline forbids to fetch it")
    from edge_client.fetch import Surroundings, fetch  # here: HTTP and TLS take a while to import
    from edge_client.web import Credentials

    hub = os.environ.get("HF_ENDPOINT") or HUB
    name = parse_name(options.name, hub)
    with ProgressBar(sys.stderr) as bar:
        bar.note(f"fetching {name.url}")
        world = Surroundings(_now, time.sleep, _showing(bar))
        credentials = Credentials(os.environ.get("HF_TOKEN", ""), hub)
        manifest = fetch(name, store.path_of(name), credentials, world, options.sha256)
    return _tell(options, Stored(store.path_of(name), manifest), "fetched")


def _hash_local(options: argparse.Namespace) -> int:
    """A file of one's own stays where it is."""
    path = Path(options.name).expanduser()
    if not path.is_file():
        raise UserError(
            f"there is no file {path}; a name on the hub is hf://organisation/repository/file.gguf"
        )
    with path.open("rb") as file:
        check_magic(str(path), file.read(4))
    with ProgressBar(sys.stderr) as bar:
        sha256 = hash_of(path, _showing(bar))
    _compare(options, sha256)
    told = {"path": str(path), "sha256": sha256, "size": path.stat().st_size}
    print(json.dumps(told) if options.json else f"{path} is a file of this machine; its SHA-256 is {sha256}")
    return 0


def _compare(options: argparse.Namespace, found: str) -> None:
    if options.sha256 and options.sha256.lower() != found:
        raise UserError(
            f"{options.name} has the SHA-256 {found}, not {options.sha256}; use --remove to fetch anew"
        )


def _tell(options: argparse.Namespace, stored: Stored, verb: str) -> int:
    if options.json:
        print(json.dumps(_as_json(stored)))
        return 0
    print(f"{stored.manifest.name} {verb}: {stored.path}")
    checked = {"given": "as given", "hub": "as the hub says"}.get(
        stored.manifest.checked, "compared with nothing"
    )
    print(f"{_size(stored.manifest.size)}, SHA-256 {stored.manifest.sha256} ({checked})")
    return 0


# what was fetched -------------------------------------------------------------------------------------------


def _list(options: argparse.Namespace, store: ModelStore) -> int:
    found = list(store.all())
    if options.json:
        print(json.dumps([_as_json(each) for each in found], indent=1))
        return 0
    for each in found:
        print(f"{_size(each.manifest.size):>9}  {each.manifest.fetched_at[:10]}  {each.manifest.name}")
    if not found:
        print(f"nothing was fetched to {store.root}")
    return 0


def _verify(options: argparse.Namespace, store: ModelStore) -> int:
    chosen = list(store.all()) if options.name is None else [store.get(options.name)]
    results = []
    for each in chosen:
        with ProgressBar(sys.stderr) as bar:
            same = hash_of(each.path, _showing(bar)) == each.manifest.sha256
        results.append({"name": each.manifest.name, "path": str(each.path), "ok": same})
        if not options.json:
            print(f"{'ok      ' if same else 'CHANGED '} {each.manifest.name}")
    if options.json:
        print(json.dumps(results, indent=1))
    return 0 if all(each["ok"] for each in results) else 1


def _remove(options: argparse.Namespace, store: ModelStore) -> int:
    freed = store.remove(options.name)
    told = {"name": options.name, "removed": True, "freed": freed}
    print(json.dumps(told) if options.json else f"{options.name} is removed; {_size(freed)} are free again")
    return 0


def _as_json(stored: Stored) -> dict[str, Any]:
    return {"path": str(stored.path), **asdict(stored.manifest)}


def _showing(bar: ProgressBar) -> Progress:
    return lambda done, total: bar.show(done, total, f"{_size(done)}{f' of {_size(total)}' if total else ''}")


def _size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1e3
    return f"{count:.3g} GB"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
