"""Tells what `--model` and `--drafter` name: a folder, or an id of the hub. It needs neither torch nor a
network, so a mistyped path is refused at once."""

from __future__ import annotations

import re
from pathlib import Path

from common.errors import UserError
from common.llama.files import is_remote
from common.offers import offered

DRAFTERS, SOURCES = "forerun.drafters", "forerun.verifier_sources"
"""Entry points of what `--drafter` names, by kind: what runs beside a target on torch, and sources without a
model. One of these takes the words, and returns the most rows of a session (`num_rows`) and what makes a
session's `VerifierSource` from its prompt (`source`)."""

CONFIG = "config.json"
HUB_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*", re.ASCII)
"""Pattern of a hub id: a repository, or organisation/repository (huggingface_hub's `validate_repo_id`)."""

WHAT_TO_GIVE = (
    "Give a folder that holds config.json, *.safetensors and tokenizer.json, or the id of a model on the "
    "Hugging Face hub if this machine can reach it."
)


def drafter_kind(source: str, *groups: str) -> str | None:
    """Return the kind of a drafter `KIND` or `KIND:ARGUMENTS` that `groups` offer (default: either); None for
    another, a path or a hub id."""
    kind = source.partition(":")[0]
    is_offered = any(kind in offered(group) for group in groups or (DRAFTERS, SOURCES))
    return kind if is_offered and not Path(source).expanduser().exists() else None


def folder_of(source: str) -> Path | None:
    """Return the folder that `source` names; None if it can only be an id of the hub.

    Raises `UserError` for a path of nothing, of a file, or of a folder without a model's configuration.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / CONFIG).is_file():
            raise UserError(f"cannot load the model '{source}': {_missing_from(path)}")
        return path
    if path.is_file():
        raise UserError(f"cannot load the model '{source}': it is a file and no GGUF. {WHAT_TO_GIVE}")
    if is_remote(source):
        raise UserError(
            f"cannot load the model '{source}': it names no GGUF file. Give organisation/repository for a "
            "model in Hugging Face format, or a name that ends in .gguf"
        )
    if _is_path(source, path):
        raise UserError(f"cannot load the model '{source}': there is no such folder. {WHAT_TO_GIVE}")
    return None


def _is_path(source: str, path: Path) -> bool:
    """Tell whether `source` is a path rather than a hub id, which would be looked for over the network in
    vain."""
    return not HUB_ID.fullmatch(source) or (path.parent != Path() and path.parent.is_dir())


def _missing_from(folder: Path) -> str:
    files = sorted(each.name for each in folder.glob("*.gguf"))
    if files:
        return f"the folder has no {CONFIG}. Name its GGUF file: {folder / files[0]}"
    return f"the folder has no {CONFIG}. {WHAT_TO_GIVE}"
