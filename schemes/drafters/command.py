"""Implements `forerun index`, which makes indexes of a user's files."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config.command_line import add_command
from common.config.setting import setting
from common.errors import UserError
from edge_client.process.paths import EdgePaths, chosen_paths
from edge_client.process.run_file import daemons_config
from edge_client.texts.index_file import SUFFIX, read_index
from schemes.drafters.file_index import build, place_of

NAME = re.compile(r"\w[\w.-]*")

DESCRIPTION = """\
Index your repository or notes, so that the device proposes what stands there (docs/edge.md):

  forerun index ~/src/project
  forerun edge --index project ...

Run it again after large changes; a running daemon then reads the new index. Without a PATH every index is
made anew. Hidden files, files that git ignores, files above 1 MiB and files that are no UTF-8 text are left
out. The index is a file on this device, readable by its owner alone; remove the file to remove the index."""


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Declares what is indexed. Raises `UserError` for options that conflict."""

    system: bool = setting(False, "use the daemon of the whole machine, not this user's")
    config: Path | None = setting(None, "the only file read (see `forerun edge config path`)", "FILE")
    json: bool = setting(False, "print JSON instead of text")
    sources: tuple[str, ...] = setting(
        (), "folders and files (default: update all)", "PATH", nargs="*", is_argument=True
    )
    name: str = setting("", "name of the index (default: the last part of the first PATH)", "NAME")
    draft: str = setting("", "draft model whose tokenizer is used (default: the daemon's)", "PATH")

    def __post_init__(self) -> None:
        if self.name and not self.sources:
            raise UserError("--name needs a PATH to index")
        if self.name and not NAME.fullmatch(self.name):
            raise UserError(f"--name is {self.name!r}; it must be of letters, digits, '.', '_' and '-'")
        if missing := next((each for each in self.sources if not Path(each).exists()), None):
            raise UserError(f"there is nothing at {missing} to index")

    @property
    def paths(self) -> EdgePaths:
        """Return the files of the chosen daemon."""
        return chosen_paths(system=self.system)


def add_parser(commands: Any) -> None:
    words = "index your files, so that the device proposes what stands there"
    add_command(commands, "index", words, _run, IndexOptions, DESCRIPTION)


def _run(options: IndexOptions) -> int:
    from common.llama.files import find_model
    from common.llama.load_trial import ModelTrials
    from common.llama.model import LlamaModel, LlamaSettings
    from common.vocabulary import Vocabulary

    if not (wanted := _wanted(options)):
        raise UserError("there is no index to update; name a folder or file to index")
    settings = LlamaSettings(find_model(options.draft or _daemons_draft(options)))
    ModelTrials(options.paths.tried).ensure(settings, weights=False)
    with LlamaModel(settings, weights=False) as words:
        fingerprint = Vocabulary(words.token_table()).fingerprint
        for path, roots in wanted.items():
            began = time.monotonic()
            num_left_out = build(path, roots, words, fingerprint)
            seconds = round(time.monotonic() - began, 2)
            made = {**_about(path), "num_left_out": num_left_out, "seconds": seconds}
            print(json.dumps(made) if options.json else _in_words(made))
    return 0


def _wanted(options: IndexOptions) -> dict[Path, list[str]]:
    """Return the indexes to make and the absolute paths of their sources: the given one, or all there are."""
    folder = options.paths.indexes
    if not options.sources:
        return {path: read_index(path).about["roots"] for path in sorted(folder.glob(f"*{SUFFIX}"))}
    roots = [str(Path(each).expanduser().resolve()) for each in options.sources]
    path = place_of(options.name or Path(roots[0]).name, folder)
    if not options.name and (others := _roots_of(path)) not in ([], roots):
        raise UserError(
            f"the index {path.stem} is already one of {', '.join(others)}; give another --name, or "
            f"--name {path.stem} to replace it"
        )
    return {path: roots}


def _roots_of(path: Path) -> list[str]:
    """Return what an index was made of; empty if there is none that can be read."""
    try:
        return list(read_index(path).about["roots"])
    except UserError:
        return []


def _daemons_draft(options: IndexOptions) -> str:
    """Return the file with the tokens of the daemon's first pair."""
    config = daemons_config(options.paths, options.config).config
    draft = next(iter(config.each_pair.values())).draft
    if not draft.model:
        raise UserError("no draft model is named, whose tokenizer is needed; give --draft FILE")
    return draft.tokens or draft.model


def _about(path: Path) -> dict[str, Any]:
    index = read_index(path)
    return {
        "name": path.stem,
        "path": str(path),
        "roots": index.about["roots"],
        "files": index.about["num_files"],
        "tokens": len(index.index),
        "bytes": path.stat().st_size,
    }


def _in_words(made: dict[str, Any]) -> str:
    left_out = f" ({made['num_left_out']} left out: it is full)" if made["num_left_out"] else ""
    size = f"{made['tokens']} tokens, {made['bytes'] / 1e6:.1f} MB, {made['seconds']:.1f} s"
    return f"{made['path']}: {made['files']} files{left_out}, {size}"
