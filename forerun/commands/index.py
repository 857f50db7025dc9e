"""Implements `forerun index`: makes, lists and removes indexes of a user's files."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError
from edge_client.settings import load_config
from forerun.options import ConfigOption, JsonOption, add_command, argument, files_read, option
from forerun.terminal import note, table

if TYPE_CHECKING:
    from edge_client.texts.datastore import Datastore

NAME = re.compile(r"\w[\w.-]*")

DESCRIPTION = """\
Index your repository or notes, so that the device proposes what stands there (docs/edge.md):

  forerun index ~/src/project
  forerun edge --index project ...

Run it again after large changes; a running daemon then reads the new index. Without a PATH every index is
made anew. Hidden files, files that git ignores, files above 1 MiB and files that are no UTF-8 text are left
out. The index stays on this device, readable by its owner alone."""


@dataclass(frozen=True, kw_only=True)
class IndexOptions(ConfigOption, JsonOption):
    """Declares what is indexed, listed or removed. Raises `UserError` for options that conflict."""

    sources: tuple[str, ...] = argument((), "folders and files (default: update all)", "PATH", nargs="*")
    name: str = option("", "name of the index (default: the last part of the first PATH)", "NAME")
    draft: str = option("", "draft model whose tokenizer is used (default: the daemon's)", "PATH")
    list: bool = option(False, "list the indexes", either="verb")
    remove: str = option("", "remove the index NAME", "NAME", either="verb")

    def __post_init__(self) -> None:
        if (self.list or self.remove) and (self.sources or self.name):
            raise UserError("--list and --remove take no PATH and no --name")
        if self.name and not self.sources:
            raise UserError("--name needs a PATH to index")
        if self.name and not NAME.fullmatch(self.name):
            raise UserError(f"--name is {self.name!r}; it must be of letters, digits, '.', '_' and '-'")
        if missing := next((each for each in self.sources if not Path(each).exists()), None):
            raise UserError(f"there is nothing at {missing} to index")


def add_parser(commands: Any) -> None:
    words = "index your files, so that the device proposes what stands there"
    add_command(commands, "index", words, _run, IndexOptions, DESCRIPTION)


def _run(options: IndexOptions) -> int:
    from edge_client.texts import datastore

    folder = options.paths.indexes
    if options.list:
        return _list(options, folder)
    if options.remove:
        path = datastore.place_of(options.remove, folder)
        if not path.is_file():
            raise UserError(f"there is no index {options.remove} in {folder}; forerun index --list shows all")
        path.unlink()
        print(json.dumps({"name": options.remove, "removed": True}) if options.json else f"{path} is removed")
        return 0
    wanted = _given(options, folder) or {path: index.roots for path, index in _all(folder)}
    if not wanted:
        raise UserError("there is no index to update; name a folder or file to index")
    from common.llama.load_trial import ModelTrials
    from common.llama.model import LlamaModel, LlamaSettings
    from common.vocabulary import Vocabulary

    draft = options.draft or _daemons_draft(options)
    settings = LlamaSettings(draft)
    ModelTrials(options.paths.tried).ensure(settings, weights=False)
    with LlamaModel(settings, weights=False) as words:
        fingerprint = Vocabulary(words.token_table()).fingerprint
        for path, roots in wanted.items():
            began = time.monotonic()
            note(f"reading the files of {path.stem}")
            num_left_out = datastore.build(path, roots, words, fingerprint)
            seconds = round(time.monotonic() - began, 2)
            told = {**_about(path, datastore.read(path)), "num_left_out": num_left_out, "seconds": seconds}
            print(json.dumps(told) if options.json else _in_words(told))
    return 0


def _given(options: IndexOptions, folder: Path) -> dict[Path, tuple[str, ...]]:
    """Return the index of the given sources with their absolute paths; empty without any."""
    from edge_client.texts.datastore import place_of

    roots = tuple(str(Path(each).expanduser().resolve()) for each in options.sources)
    name = options.name or (Path(roots[0]).name if roots else "")
    return {place_of(name, folder): roots} if roots else {}


def _daemons_draft(options: IndexOptions) -> str:
    config = load_config({}, os.environ, files_read(options.config, options.paths)).config
    if not config.draft.model:
        raise UserError("no draft model is named, whose tokenizer is needed; give --draft FILE")
    return config.draft.model


def _all(folder: Path) -> Iterator[tuple[Path, Datastore]]:
    from edge_client.texts.datastore import SUFFIX, DamagedIndex, read

    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            yield path, read(path)
        except DamagedIndex as error:
            print(f"forerun: {error}", file=sys.stderr)


def _about(path: Path, store: Datastore) -> dict[str, Any]:
    return {
        "name": path.stem,
        "path": str(path),
        "roots": list(store.roots),
        "files": store.num_files,
        "tokens": len(store.index),
        "bytes": store.size,
    }


def _in_words(told: dict[str, Any]) -> str:
    left_out = f" ({told['num_left_out']} left out: it is full)" if told["num_left_out"] else ""
    size = f"{told['tokens']} tokens, {told['bytes'] / 1e6:.1f} MB, {told['seconds']:.1f} s"
    return f"{told['name']}: {told['files']} files{left_out}, {size}"


def _list(options: IndexOptions, folder: Path) -> int:
    indexes = [_about(*each) for each in _all(folder)]
    if options.json:
        print(json.dumps(indexes, indent=1))
    elif indexes:
        rows = [
            (
                each["name"],
                str(each["files"]),
                str(each["tokens"]),
                f"{each['bytes'] / 1e6:.1f}",
                *each["roots"][:1],
            )
            for each in indexes
        ]
        print("\n".join(table(("name", "files", "tokens", "MB", "of"), rows, left=("name", "of"))))
    else:
        print(f"there is no index in {folder}")
    return 0
