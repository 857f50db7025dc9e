"""The folder of fetched models (`forerun pull`), and their names.

A name says where a file comes from and where it is kept:

    hf://organisation/repository/file.gguf            on the hub, its newest revision ("main")
    hf://organisation/repository/file.gguf@revision   a branch, a tag or a commit of it
    https://host/path/file.gguf                       anywhere else
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urlsplit

from common.errors import UserError

HUB_PREFIX = "hf://"
WEB_PREFIXES = ("https://", "http://")
HUB = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class ModelName:
    """Holds the parts of a remote name."""

    text: str  # as written by the user
    url: str
    place: PurePosixPath  # of the file, in a store


def is_remote(text: str) -> bool:
    """Tell whether a name is remote, and not a file of this machine."""
    return text.startswith((HUB_PREFIX, *WEB_PREFIXES))


def is_gguf(text: str) -> bool:
    """Tell whether a name, of a file or remote, is of a GGUF file."""
    name = text.partition("@")[0] if is_remote(text) else text
    return name.lower().endswith(".gguf")


def parse_name(text: str, hub: str = HUB) -> ModelName:
    """Parse a remote name of `hub` or a mirror (HF_ENDPOINT). Raises `UserError` for another form."""
    if text.startswith(HUB_PREFIX):
        repository, file, revision = split_hub_path(text)
        revision = quote(revision, safe="")
        url = f"{hub.rstrip('/')}/{repository}/resolve/{revision}/{quote(file)}"
        return ModelName(text, url, PurePosixPath(repository, revision, file))
    return ModelName(text, text, _place_of_url(text))


def split_hub_path(text: str) -> tuple[str, str, str]:
    """Return organisation/repository, file and revision. Raises `UserError` on another form."""
    path, at, revision = text.removeprefix(HUB_PREFIX).partition("@")
    organisation, _, rest = path.partition("/")
    repository, _, file = rest.partition("/")
    if not _are_plain(organisation, repository, *file.split("/")) or (at and not revision):
        raise UserError(f"{text} is not of the form {HUB_PREFIX}organisation/repository/file.gguf[@revision]")
    return f"{organisation}/{repository}", file, revision or "main"


def _place_of_url(text: str) -> PurePosixPath:
    """Return a path below the host's name. The file's name includes the hash of a query."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UserError(f"{text} is not a valid URL: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise UserError("a URL with a user name or a password is not fetched; leave them out")
    pieces = unquote(parts.path).lstrip("/").split("/")
    if not host or not _are_plain(*pieces):
        raise UserError(f"{text} names no file; write for example https://host/path/file.gguf")
    if parts.query:
        pieces[-1] = f"{hashlib.sha256(parts.query.encode()).hexdigest()[:8]}-{pieces[-1]}"
    return PurePosixPath("url", f"{host}-{port}" if port else host, *pieces)


def _are_plain(*pieces: str) -> bool:
    """Tell whether all pieces are plain names of folders and files."""
    return all(piece not in ("", ".", "..") and not set(piece) & set("\\/\0") for piece in pieces)


MANIFEST = ".forerun.json"
"""Ending of a manifest's name, after the model file's name."""

GGUF_MAGIC = b"GGUF"
BLOCK = 1 << 20  # bytes read at once
Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all (0: unknown)."""


@dataclass(frozen=True, slots=True)
class ModelManifest:
    """Records a file's origin, size and hash at the time of its fetch."""

    name: str  # as it was asked for
    url: str
    sha256: str
    size: int  # bytes
    fetched_at: str  # ISO 8601, UTC
    checked: str  # what the hash was compared with: "given", "hub", or "" for nothing
    commit: str = ""  # of the hub's repository


@dataclass(frozen=True, slots=True)
class StoredModel:
    """Describes a model of the store."""

    path: Path
    manifest: ModelManifest


class ModelStore:
    """Manages the models below the folder `root`, which need not exist."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path_of(self, name: ModelName) -> Path:
        return self.root / name.place

    def find(self, text: str) -> Path | None:
        """Return the fetched file of a remote name; None without one. Raises `UserError` for no name."""
        path = self.path_of(parse_name(text))
        return path if path.is_file() else None

    def get(self, text: str) -> StoredModel:
        """Return a fetched model. Raises `UserError` if it is not in the store."""
        path = self.find(text)
        manifest = None if path is None else read_manifest(path)
        if path is None or manifest is None:
            raise UserError(f"{text} is not in {self.root}; fetch it with: forerun pull {text}")
        return StoredModel(path, manifest)

    def all(self) -> Iterator[StoredModel]:
        for about in sorted(self.root.rglob(f"*{MANIFEST}")):
            path = about.with_name(about.name.removesuffix(MANIFEST))
            if path.is_file() and (manifest := read_manifest(path)) is not None:
                yield StoredModel(path, manifest)

    def remove(self, text: str) -> int:
        """Remove a model or its unfinished fetch. Return the freed bytes. Raises `UserError` for neither."""
        name = parse_name(text)
        path = self.path_of(name)
        files = [each for each in (path, manifest_of(path), *parts_of(path)) if each.is_file()]
        if not files:
            raise UserError(f"{text} is not in {self.root}")
        freed = sum(each.stat().st_size for each in files)
        for each in files:
            each.unlink()
        with contextlib.suppress(OSError):  # not empty
            for folder in path.parents[: len(name.place.parts) - 1]:
                folder.rmdir()
        return freed


def manifest_of(path: Path) -> Path:
    return path.with_name(path.name + MANIFEST)


def parts_of(path: Path) -> tuple[Path, Path]:
    """Return the paths of an unfinished fetch: its bytes and their description."""
    return path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")


def read_manifest(path: Path) -> ModelManifest | None:
    """Return a file's manifest; None if it is missing or unreadable."""
    try:
        found = json.loads(manifest_of(path).read_text(encoding="utf-8"))
        return ModelManifest(**{field.name: found[field.name] for field in fields(ModelManifest)})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_json(path: Path, found: object) -> None:
    """Write JSON to a temporary file and rename it to `path`."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    os.replace(new, path)


def hash_of(path: Path, progress: Progress) -> str:
    """Return a file's SHA-256 in hex. Raises `UserError` if it cannot be read."""
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
    """Raise `UserError` unless `head` begins a GGUF file."""
    if head[: len(GGUF_MAGIC)] != GGUF_MAGIC:
        raise UserError(
            f"{name} is not a GGUF file; convert the model with llama.cpp's convert_hf_to_gguf.py, or name "
            "the file of the repository that ends in .gguf"
        )
