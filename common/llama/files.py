"""Finds the GGUF file of a model by its name. A remote file is fetched once:

    path/file.gguf                                    a file of this machine
    hf://organisation/repository/file.gguf            on the Hugging Face hub, as `hf download` takes it
    hf://organisation/repository@revision/file.gguf   a branch, a tag or a commit of it
    https://host/path/file.gguf                       anywhere else

huggingface_hub fetches from the hub, keeps all files below HF_HOME, and heeds HF_TOKEN, HF_ENDPOINT and
HF_HUB_OFFLINE.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib import request
from urllib.error import HTTPError
from urllib.parse import urlsplit

from common.errors import CapacityError, ForerunError, UnavailableError, UserError

logger = logging.getLogger(__name__)

HUB, WEB, PLAIN = "hf://", "https://", "http://"
GGUF_MAGIC = b"GGUF"
SMALLEST = 24
"""Bytes of a GGUF file without metadata and tensors: magic, version and two counts."""

SILENCE = 30.0
"""Seconds without a byte before the fetch of an https:// file fails."""

BLOCK = 1 << 20  # bytes read at once

CONVERT = (
    "convert the model with llama.cpp's convert_hf_to_gguf.py, or name the file of the repository that ends "
    "in .gguf"
)
OTHER_FILES = (
    (
        rb"version https://git-lfs",
        "a Git LFS pointer; run `git lfs pull` in its clone, or fetch the file itself",
    ),
    (
        rb"(\xef\xbb\xbf)?\s*<",
        "a web page; take the address of the file, not of its page, and fetch it again",
    ),
    (rb"(?s).{5}\0{3}\{", f"a safetensors file; {CONVERT}"),
    (rb"PK", f"a zip archive or a checkpoint of PyTorch; unpack it, or {CONVERT}"),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|7z\xbc\xaf|\x28\xb5\x2f\xfd", "a compressed file; unpack it"),
    (rb"lmgg|fmgg|tjgg|algg", "of a format before GGUF; fetch a newer file of the model"),
)
"""What files begin with that are given in place of a GGUF file, what they are, and what to do."""

PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
"""The end of a name that llama.cpp's gguf-split gives."""


def is_remote(name: str) -> bool:
    return name.startswith((HUB, WEB, PLAIN))


def is_gguf(name: str) -> bool:
    return (urlsplit(name).path if name.startswith(WEB) else name).lower().endswith(".gguf")


def hub_home() -> Path:
    """Return the folder of this user's fetched models, as huggingface_hub chooses it (HF_HOME)."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or f"{cache}/huggingface").expanduser().absolute()


def find_model(name: str, sha256: str = "") -> str:
    """Return the local file of `name`. A remote file that is not on this machine is fetched first.

    `sha256` is the required hash; empty allows any. Raises `UserError` for a file that is missing, is no GGUF
    or has another hash, `CapacityError` for a full disk, and `UnavailableError` for a silent server.
    """
    if name.startswith(PLAIN):
        raise UserError(
            f"{name} is not encrypted; use an https:// address, or fetch the file and name its path"
        )
    if not is_remote(name):
        path = Path(name).expanduser()
    elif name.startswith(HUB):
        path = _from_hub(name)
    else:
        path = _from_web(name, sha256)
    if not path.is_file():
        what = f"{path} is a folder; name a GGUF file" if path.is_dir() else f"there is no model at {path}"
        raise UserError(f"{what}; check the path, or use {HUB}org/repo/file.gguf")
    _check(path, str(path), sha256)
    _check_parts(path)
    return str(path)


def hash_of(path: Path) -> str:
    """Return a file's SHA-256 in hex. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(path: Path, name: str, sha256: str) -> None:
    """Raise `UserError` for a file that cannot be read, is no GGUF or has another hash."""
    try:
        with path.open("rb") as file:
            head = file.read(SMALLEST)
        actual = hash_of(path) if sha256 else ""
    except OSError as error:
        raise UserError(f"the model {name} cannot be read ({error}); check its permissions") from error
    if head[: len(GGUF_MAGIC)] != GGUF_MAGIC:
        what = next((words for start, words in OTHER_FILES if re.match(start, head)), "")
        raise UserError(f"{name} is {what}" if what else f"{name} is not a GGUF file; {CONVERT}")
    if len(head) < SMALLEST:
        raise UserError(f"the model {name} is cut off after {len(head)} bytes; fetch it again")
    if actual != sha256.lower():
        raise UserError(
            f"the model {name} has the SHA-256 {actual}, not {sha256}, and is not loaded; correct the hash, "
            "or replace the file"
        )


def size_of(path: str) -> int:
    """Return the bytes of a model that `find_model` found, with all its parts. Raises `OSError`."""
    return sum(Path(part).stat().st_size for part in _parts(path))


def _parts(name: str) -> list[str]:
    """Return the files of a model: all parts of one that is split, else `name` alone. Raises `UserError` for
    a part that is not the first."""
    part = PART.search(name)
    if part is None:
        return [name]
    count = max(1, int(part[2]))
    parts = [f"{name[: part.start()]}-{n:05}-of-{part[2]}.gguf" for n in range(1, count + 1)]
    if int(part[1]) != 1:
        raise UserError(f"{name} is part {int(part[1])} of {count}; name the first part, {parts[0]}")
    return parts


def _check_parts(path: Path) -> None:
    """Raise `UserError` for a split model's part that is not its first, or lies without the others."""
    _, *others = _parts(str(path))
    if missing := [other for other in others if not Path(other).is_file()]:
        raise UserError(
            f"{path} is part 1 of {len(others) + 1} and {Path(missing[0]).name} is not beside it; fetch all "
            "parts into one folder"
        )


def gguf_files(repository: str) -> dict[str, int]:
    """Return the names of a hub repository's GGUF files as `find_model` takes them, each with its bytes.

    Args: repository, as organisation/repository, with or without hf:// before it and @revision behind it.
    Raises `UserError` or `UnavailableError`.
    """
    name = HUB + repository.removeprefix(HUB).strip("/")
    uri = _hub_uri(name, "organisation/repository")
    from huggingface_hub import HfApi

    with _asking_the_hub(name):
        tree = HfApi().list_repo_tree(uri.id, recursive=True, revision=uri.revision)
        sizes = {each.path: each.size for each in tree if is_gguf(each.path) and hasattr(each, "size")}
    return {f"{name}/{path}": size for path, size in sorted(sizes.items())}


def _from_hub(name: str) -> Path:
    """Return the file from the hub's cache. The hub is asked only for a file that is not there."""
    uri = _hub_uri(name, "organisation/repository/file.gguf")
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    if not uri.path_in_repo:
        raise UserError(f"{name} names no file; write {HUB}organisation/repository/file.gguf")
    parts = _parts(uri.path_in_repo)
    cached = [try_to_load_from_cache(uri.id, each, revision=uri.revision) for each in parts]
    if all(isinstance(each, str) for each in cached):
        return Path(str(cached[0]))
    logger.info("> fetching %s", name)
    with _asking_the_hub(name):
        first, *_ = [hf_hub_download(uri.id, each, revision=uri.revision) for each in parts]
    return Path(first)


def _hub_uri(name: str, form: str) -> Any:
    """Read a name that begins with hf://. Raises `UserError`."""
    try:
        from huggingface_hub import parse_hf_uri
    except ImportError as error:
        raise UserError("huggingface_hub is not installed; run: pip install 'forerun[edge]'") from error
    try:
        uri = parse_hf_uri(name)
    except ValueError as error:
        raise UserError(f"{error}; write {HUB}{form}") from error
    if uri.type != "model":
        raise UserError(f"{name} is no model; write {HUB}{form}")
    return uri


@contextmanager
def _asking_the_hub(name: str) -> Iterator[None]:
    """Raise what the hub's or the disk's errors mean."""
    from huggingface_hub import errors

    logging.getLogger("huggingface_hub").handlers.clear()  # our log shows its warnings, too
    try:
        yield
    # HTTPError: of httpx, whose name changes. RuntimeError: of hf_xet
    except (OSError, ValueError, RuntimeError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else None
        raise _failure(name, cause or error) from error


def _from_web(url: str, sha256: str) -> Path:
    """Return the file of an https:// address from huggingface_hub's folder for the files of other programs.

    The file gets its name when it is whole and has the required hash.
    """
    from huggingface_hub import cached_assets_path
    from huggingface_hub.utils.tqdm import tqdm

    name = PurePosixPath(urlsplit(url).path).name
    if not name:
        raise UserError(f"{url} names no file; write for example https://host/path/file.gguf")
    if len(_parts(name)) > 1:
        raise UserError(
            f"{url} is a part of a split model; fetch all parts into one folder, and name the first"
        )
    web = request.OpenerDirector()  # without HTTPHandler: no redirect leads out of TLS
    for handler in (
        request.ProxyHandler,
        request.HTTPSHandler,
        request.HTTPRedirectHandler,
        request.HTTPDefaultErrorHandler,
        request.HTTPErrorProcessor,
        request.UnknownHandler,
    ):
        web.add_handler(handler())
    try:
        folder = cached_assets_path("forerun", "models", hashlib.sha256(url.encode()).hexdigest()[:16])
        if (folder / name).is_file():
            return folder / name
        logger.info("> fetching %s", url)
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:
            new = Path(unfinished) / name
            response: Any = web.open(url, timeout=SILENCE)
            bar = tqdm.wrapattr(response, "read", total=response.length, desc=name, disable=None)
            with response, new.open("wb") as file, bar as body:
                shutil.copyfileobj(body, file, BLOCK)
            if response.length:
                raise ConnectionError(f"it broke off {response.length:,} bytes before its end")
            _check(new, url, sha256)
            os.replace(new, folder / name)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _failure(url, error) from error
    return folder / name


def _failure(name: str, error: BaseException) -> ForerunError:
    """Return the error of a hub, a server or the disk in our terms, with what to do about it."""
    status = error.code if isinstance(error, HTTPError) else 0
    status = status or getattr(getattr(error, "response", None), "status_code", 0)
    if status in (401, 403):
        return UserError(
            f"{name} is gated, private or not there ({status}); check the name, accept the model's terms on "
            "its page, and run `hf auth login` or set HF_TOKEN"
        )
    if status in (404, 410):
        return UserError(f"{name} is not there ({status}); check organisation, repository, revision and file")
    number = getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return CapacityError(f"{name} does not fit on the disk; make room, or set HF_HOME to another folder")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(f"{name} cannot be stored ({error}); set HF_HOME to a folder that can be written")
    reason = str(getattr(error, "reason", None) or error).strip().splitlines() or [type(error).__name__]
    return UnavailableError(f"{name} cannot be fetched: {reason[0]}; check the network, and try again")
