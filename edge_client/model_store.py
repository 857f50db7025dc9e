"""The folder of fetched draft models: each file beside a few lines about where it came from."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from common.errors import UserError
from edge_client.model_name import ModelName, parse_name

MANIFEST = ".forerun.json"
"""Ending of the file about a file."""

GGUF_MAGIC = b"GGUF"
BLOCK = 1 << 20  # bytes read at once
Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all (0: not known)."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Where a file came from and what it was when it came."""

    name: str  # as it was asked for
    url: str
    sha256: str
    size: int  # bytes
    fetched_at: str  # ISO 8601, UTC
    checked: str  # what the hash was compared with: "given", "hub", or "" for nothing
    commit: str = ""  # of the hub's repository


@dataclass(frozen=True, slots=True)
class Stored:
    """A model of the store."""

    path: Path
    manifest: Manifest


class ModelStore:
    """The models below `root`, which need not exist."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path_of(self, name: ModelName) -> Path:
        """Where its file is or will be."""
        return self.root / name.place

    def find(self, text: str) -> Path | None:
        """The file of a remote name, if it was fetched. Raises `UserError` if it is no name."""
        path = self.path_of(parse_name(text))
        return path if path.is_file() else None

    def get(self, text: str) -> Stored:
        """Raises `UserError` if it was not fetched."""
        path = self.find(text)
        manifest = None if path is None else read_manifest(path)
        if path is None or manifest is None:
            raise UserError(f"{text} is not in {self.root}; fetch it with: forerun pull {text}")
        return Stored(path, manifest)

    def all(self) -> Iterator[Stored]:
        """Every model, by place."""
        for about in sorted(self.root.rglob(f"*{MANIFEST}")):
            path = about.with_name(about.name.removesuffix(MANIFEST))
            if path.is_file() and (manifest := read_manifest(path)) is not None:
                yield Stored(path, manifest)

    def remove(self, text: str) -> int:
        """Remove it, and what is left of an unfinished fetch. The bytes that became free.

        Raises `UserError` if there is nothing of it.
        """
        path = self.path_of(parse_name(text))
        files = [each for each in (path, manifest_of(path), *parts_of(path)) if each.is_file()]
        if not files:
            raise UserError(f"{text} is not in {self.root}")
        freed = sum(each.stat().st_size for each in files)
        for each in files:
            each.unlink()
        self._remove_empty(path.parent)
        return freed

    def _remove_empty(self, folder: Path) -> None:
        with contextlib.suppress(OSError):  # not empty
            while folder != self.root and self.root in folder.parents:
                folder.rmdir()
                folder = folder.parent


def manifest_of(path: Path) -> Path:
    """The file about it."""
    return path.with_name(path.name + MANIFEST)


def parts_of(path: Path) -> tuple[Path, Path]:
    """What an unfinished fetch has of it, and what is known of that."""
    return path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")


def read_manifest(path: Path) -> Manifest | None:
    """None if there is none, or none that can be read."""
    try:
        found = json.loads(manifest_of(path).read_text(encoding="utf-8"))
        return Manifest(**{field.name: found[field.name] for field in fields(Manifest)})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Whole or not at all."""
    write_json(manifest_of(path), asdict(manifest))


def write_json(path: Path, found: object) -> None:
    """By way of a file beside it."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    os.replace(new, path)


def hash_of(path: Path, progress: Progress) -> str:
    """SHA-256 in hex. Raises `UserError` if it cannot be read."""
    digest, done = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while block := file.read(BLOCK):
                digest.update(block)
                done += len(block)
                progress(done, size)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def check_magic(name: str, head: bytes) -> None:
    """Raise `UserError` unless a file begins so."""
    if head[: len(GGUF_MAGIC)] != GGUF_MAGIC:
        raise UserError(
            f"{name} is not a GGUF file; convert the model with llama.cpp's convert_hf_to_gguf.py, or name "
            "the file of the repository that ends in .gguf"
        )
