"""Implements `forerun pull`: fetches draft models by name, once, and checks their hash."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from common.errors import UserError
from common.llama.store import (
    HUB,
    ModelStore,
    Progress,
    StoredModel,
    check_magic,
    hash_of,
    is_remote,
    parse_name,
)
from edge_client.settings import SHA256
from forerun.options import DaemonOptions, add_command, argument, option
from forerun.terminal import ProgressBar

DESCRIPTION = """\
Fetch a draft model, resume an interrupted download, and check its hash:

  forerun pull hf://organisation/repository/file.gguf
  forerun pull hf://organisation/repository/file.gguf@revision --sha256 HASH
  forerun pull https://host/path/file.gguf --sha256 HASH

Afterwards `--draft` and edge.toml accept the same name. HF_TOKEN opens gated repositories and is sent only to
the hub; HF_ENDPOINT names a mirror. For a local file, only its hash is printed."""


@dataclass(frozen=True, kw_only=True)
class PullOptions(DaemonOptions):
    """Declares what is pulled, listed, verified or removed. Raises `UserError` for options that conflict."""

    name: str | None = argument(None, "draft model: hf://..., https://... or a local file", "NAME", nargs="?")
    sha256: str = option("", "required SHA-256 of the file", "HASH")
    offline: bool = option(False, "use no network; fail if the model is not here")
    list: bool = option(False, "list the fetched models", either="verb")
    verify: bool = option(False, "hash NAME or all models again; exit code 1 if changed", either="verb")
    remove: bool = option(False, "remove the fetched model NAME", either="verb")
    models: Path | None = option(None, "folder of the models (default: the daemon's)", "FOLDER")

    def __post_init__(self) -> None:
        if self.name is None and not (self.list or self.verify):
            raise UserError(
                "name the model to pull: hf://organisation/repository/file.gguf, https://... or a file"
            )
        if self.name is not None and self.name.lower().startswith("file:"):
            path = unquote(urlsplit(self.name).path) or "/PATH/FILE.gguf"
            words = "is a file: address; give the path alone"
            raise UserError(f"{self.name} {words}: {path}")
        if self.name is not None and self.list:
            raise UserError("--list lists all models; omit the name")
        if self.sha256 and not SHA256.fullmatch(self.sha256):
            raise UserError(
                f"--sha256 is {self.sha256!r}; it must be 64 hex digits, as sha256sum prints them"
            )
        if self.sha256 and (self.list or self.verify or self.remove):
            raise UserError("--sha256 is only for fetching; --verify uses the hash stored then")


def add_parser(commands: Any) -> None:
    words = "fetch a draft model; list, verify or remove fetched models"
    add_command(commands, "pull", words, _run, PullOptions, DESCRIPTION)


def _run(options: PullOptions) -> int:
    store = ModelStore(options.models or options.paths.models)
    if options.list:
        return _list(options, store)
    if options.verify:
        return _verify(options, store)
    assert options.name is not None, "checked"
    if options.remove:
        return _remove(options, store, options.name)
    return (
        _pull(options, store, options.name) if is_remote(options.name) else _hash_local(options, options.name)
    )


def _pull(options: PullOptions, store: ModelStore, address: str) -> int:
    found = store.find(address)
    if found is not None:
        stored = store.get(address)
        _compare(options, stored.manifest.sha256)
        return _tell(options, stored, "is here already")
    if options.offline:
        raise UserError(f"{address} is not in {store.root}, and --offline forbids fetching it")
    from edge_client.models.fetch import FetchSurroundings, fetch  # here: HTTP and TLS take a while to import
    from edge_client.models.web import Credentials

    hub = os.environ.get("HF_ENDPOINT") or HUB
    name = parse_name(address, hub)
    with ProgressBar(sys.stderr) as bar:
        bar.note(f"fetching {name.url}")
        world = FetchSurroundings(_now, time.sleep, _showing(bar))
        credentials = Credentials(os.environ.get("HF_TOKEN", ""), hub)
        manifest = fetch(name, store.path_of(name), credentials, world, options.sha256)
    return _tell(options, StoredModel(store.path_of(name), manifest), "fetched")


def _hash_local(options: PullOptions, name: str) -> int:
    """Hash a local file and leave it where it is."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise UserError(
            f"there is no file {path}; for a model on the hub give hf://organisation/repository/file.gguf"
        )
    with path.open("rb") as file:
        check_magic(str(path), file.read(4))
    with ProgressBar(sys.stderr) as bar:
        sha256 = hash_of(path, _showing(bar))
    _compare(options, sha256)
    told = {"path": str(path), "sha256": sha256, "size": path.stat().st_size}
    print(json.dumps(told) if options.json else f"{path} is a file of this machine; its SHA-256 is {sha256}")
    return 0


def _compare(options: PullOptions, found: str) -> None:
    if options.sha256 and options.sha256.lower() != found:
        raise UserError(
            f"{options.name} has the SHA-256 {found}, not {options.sha256}; use --remove and fetch it again"
        )


def _tell(options: PullOptions, stored: StoredModel, verb: str) -> int:
    if options.json:
        print(json.dumps(_as_json(stored)))
        return 0
    print(f"{stored.manifest.name} {verb}: {stored.path}")
    words = {"given": "as given", "hub": "as the hub says"}
    checked = words.get(stored.manifest.checked, "compared with nothing")
    print(f"{_size(stored.manifest.size)}, SHA-256 {stored.manifest.sha256} ({checked})")
    return 0


def _list(options: PullOptions, store: ModelStore) -> int:
    found = list(store.all())
    if options.json:
        print(json.dumps([_as_json(each) for each in found], indent=1))
        return 0
    for each in found:
        print(f"{_size(each.manifest.size):>9}  {each.manifest.fetched_at[:10]}  {each.manifest.name}")
    if not found:
        print(f"no model was fetched to {store.root}")
    return 0


def _verify(options: PullOptions, store: ModelStore) -> int:
    chosen = list(store.all()) if options.name is None else [store.get(options.name)]
    results = list[dict[str, Any]]()
    for each in chosen:
        with ProgressBar(sys.stderr) as bar:
            same = hash_of(each.path, _showing(bar)) == each.manifest.sha256
        results.append({"name": each.manifest.name, "path": str(each.path), "ok": same})
    lines = (f"{'ok      ' if each['ok'] else 'CHANGED '} {each['name']}" for each in results)
    print(json.dumps(results, indent=1) if options.json else "\n".join(lines))
    return 0 if all(each["ok"] for each in results) else 1


def _remove(options: PullOptions, store: ModelStore, name: str) -> int:
    freed = store.remove(name)
    told = {"name": name, "removed": True, "freed": freed}
    print(json.dumps(told) if options.json else f"{name} is removed; {_size(freed)} are free again")
    return 0


def _as_json(stored: StoredModel) -> dict[str, Any]:
    return {"path": str(stored.path), **asdict(stored.manifest)}


def _showing(bar: ProgressBar) -> Progress:
    return lambda done, total: bar.show(done, total, f"{_size(done)}{f' of {_size(total)}' if total else ''}")


def _size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1e3
    return f"{count:.3g} GB"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
