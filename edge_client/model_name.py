"""Names of draft models that are not on this machine: where they are fetched from and where they are kept.

hf://organisation/repository/file.gguf             on the hub, its newest revision ("main")
hf://organisation/repository/file.gguf@revision    a branch, a tag or a commit of it
https://host/path/file.gguf                        anywhere else
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import quote, unquote, urlsplit

from common.errors import UserError

HUB_PREFIX = "hf://"
WEB_PREFIXES = ("https://", "http://")
HUB = "https://huggingface.co"
NEWEST = "main"


@dataclass(frozen=True, slots=True)
class ModelName:
    """A name taken apart."""

    text: str  # as a person wrote it
    url: str
    place: PurePosixPath  # of the file, in a store


@dataclass(frozen=True, slots=True)
class HubPath:
    """A file of the hub."""

    repository: str  # organisation/name
    file: str
    revision: str


def is_remote(text: str) -> bool:
    """Whether it names something to be fetched, and not a file of this machine."""
    return text.startswith((HUB_PREFIX, *WEB_PREFIXES))


def parse_name(text: str, hub: str = HUB) -> ModelName:
    """Take a remote name apart. `hub`: its address, or a mirror's (HF_ENDPOINT). Raises `UserError` on
    another form."""
    if text.startswith(HUB_PREFIX):
        path = split_hub_path(text)
        revision, file = quote(path.revision, safe=""), quote(path.file)
        url = f"{hub.rstrip('/')}/{path.repository}/resolve/{revision}/{file}"
        return ModelName(text, url, PurePosixPath(path.repository, revision, path.file))
    return ModelName(text, text, _place_of_url(text))


def split_hub_path(text: str) -> HubPath:
    """Of hf://organisation/repository/file[@revision]. Raises `UserError` on another form."""
    path, at, revision = text.removeprefix(HUB_PREFIX).partition("@")
    organisation, _, rest = path.partition("/")
    repository, _, file = rest.partition("/")
    if not _are_plain(organisation, repository, *file.split("/")) or (at and not revision):
        raise UserError(f"{text} is not of the form {HUB_PREFIX}organisation/repository/file.gguf[@revision]")
    return HubPath(f"{organisation}/{repository}", file, revision or NEWEST)


def _place_of_url(text: str) -> PurePosixPath:
    """Below the host's name; a query becomes part of the file's name by its hash."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UserError(f"{text} is no URL: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise UserError("a URL with a name or a password in it is not fetched; leave them out")
    pieces = unquote(parts.path).lstrip("/").split("/")
    if not host or not _are_plain(*pieces):
        raise UserError(f"{text} names no file; write for example https://host/path/file.gguf")
    if parts.query:
        pieces[-1] = f"{hashlib.sha256(parts.query.encode()).hexdigest()[:8]}-{pieces[-1]}"
    return PurePosixPath("url", f"{host}-{port}" if port else host, *pieces)


def _are_plain(*pieces: str) -> bool:
    """Whether they can be names of folders and files, and lead nowhere else."""
    return all(piece not in ("", ".", "..") and not set(piece) & set("\\/\0") for piece in pieces)
