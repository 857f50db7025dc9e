"""Keep a user's files as one index of tokens, and read it for the daemon.

The file holds a header (JSON), the tokens and the order of their places (`common.suffix_index`), which are
mapped into memory, not read. It is its owner's alone, and nothing of it leaves the device but token ids that
are proposed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import mmap
import os
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.errors import UserError
from common.suffix_index import FIRST, GAP, START, UNIT, FrozenIndex, sort_places
from edge_client.formats.detokenizer import Words
from edge_client.process.paths import make_private, write_private

logger = logging.getLogger(__name__)

SUFFIX = ".index"
MAGIC, VERSION = b"forerunx", 2
HEAD = struct.Struct("<8sQ")  # the magic, and the bytes of the header
ALIGNED = 65_536  # bytes; a memory map may begin at a multiple of this on every system
LARGEST_HEADER = 2**20  # bytes

MOST_TOKENS = 10_000_000
"""Tokens of an index: 80 MB in the file. Sorting them takes some 600 MB and ten seconds."""

LARGEST_FILE = 2**20
"""Bytes of a file. Larger ones are mostly data or made by programs."""


class DamagedIndex(UserError):
    """The file is no index, or not as it was written."""


@dataclass(frozen=True, slots=True)
class Datastore:
    """Holds an index of files. `fingerprint` is that of the token table."""

    fingerprint: bytes
    roots: tuple[str, ...]  # folders and files that were given
    num_files: int
    index: FrozenIndex
    size: int  # bytes of its file


# Files ----------------------------------------------------------------------------------------------------


def place_of(name: str, folder: Path) -> Path:
    """Return the file of an index: `name` is a path, or the name of one in `folder`."""
    is_path = os.sep in name or name.endswith(SUFFIX)
    return Path(name).expanduser() if is_path else folder / f"{name}{SUFFIX}"


def write(
    path: Path, fingerprint: bytes, text: bytes, order: bytes, roots: Sequence[str] = (), num_files: int = 0
) -> None:
    """Write the index of a text and the order of its places, all or nothing. Raises `UserError`."""
    header = json.dumps(
        {
            "version": VERSION,
            "fingerprint": fingerprint.hex(),
            "roots": list(roots),
            "num_tokens": len(text) // UNIT,
            "num_places": len(order) // UNIT,
            "crc32": zlib.crc32(order, zlib.crc32(text)),
            "num_files": num_files,
        }
    ).encode()
    content = bytearray(HEAD.pack(MAGIC, len(header)) + header)
    for part in (text, order):
        content += bytes(-len(content) % ALIGNED)
        content += part
    make_private(path.parent)
    try:
        write_private(path, bytes(content))
    except OSError as error:
        raise UserError(f"the index {path} cannot be written: {error.strerror or error}") from error


def read(path: Path) -> Datastore:
    """Map an index into memory. Raises `UserError` for a file that cannot be read, `DamagedIndex` for one
    that is damaged."""
    try:
        with path.open("rb") as file:
            return _read(path, file.fileno(), file.read(HEAD.size), file.read)
    except OSError as error:
        words = (
            f"the index {path} cannot be read: {error.strerror or error}; make it with: forerun index PATH"
        )
        raise UserError(words) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedIndex(f"the index {path} is damaged ({error}); make it anew") from error


def _read(path: Path, descriptor: int, head: bytes, more: Callable[[int], bytes]) -> Datastore:
    magic, length = HEAD.unpack(head) if len(head) == HEAD.size else (b"", 0)
    if magic != MAGIC or length > LARGEST_HEADER:
        raise DamagedIndex(f"{path} is no index of forerun")
    header = json.loads(more(length))
    if header["version"] != VERSION:
        raise DamagedIndex(
            f"the index {path} has the format {header['version']}, not {VERSION}; make it anew"
        )
    num_tokens, num_places, size = header["num_tokens"], header["num_places"], os.fstat(descriptor).st_size
    text_at = _aligned(HEAD.size + length)
    order_at = _aligned(text_at + UNIT * num_tokens)
    if size != order_at + UNIT * num_places or num_tokens < FIRST:
        raise DamagedIndex(f"the index {path} is cut off or has been changed; make it anew")
    text = mmap.mmap(descriptor, UNIT * num_tokens, access=mmap.ACCESS_READ, offset=text_at)
    order = np.zeros(0, np.int32)
    if num_places:
        mapped = mmap.mmap(descriptor, UNIT * num_places, access=mmap.ACCESS_READ, offset=order_at)
        order = np.frombuffer(mapped, np.int32)
    if zlib.crc32(order.data, zlib.crc32(text)) != header["crc32"]:
        raise DamagedIndex(f"the index {path} has a wrong checksum; make it anew")
    roots, index = tuple(map(str, header["roots"])), FrozenIndex(text, order)
    return Datastore(bytes.fromhex(header["fingerprint"]), roots, int(header["num_files"]), index, size)


def _aligned(at: int) -> int:
    return -(-at // ALIGNED) * ALIGNED


# Building -------------------------------------------------------------------------------------------------


def build(path: Path, roots: Sequence[str], words: Words, fingerprint: bytes) -> int:
    """Make the index `path` of all text files under `roots`. Return how many did not fit. Raises
    `UserError`."""
    text, num_files, num_left_out = bytearray(START), 0, 0
    for place in _text_files(roots):
        content = _text_in(place)
        if content is None:
            continue
        tokens = words.tokenize(content, False)
        if len(text) // UNIT + len(tokens) > MOST_TOKENS:
            num_left_out += 1
            continue
        num_files += 1
        text += np.array(tokens, np.int32).tobytes() + START[:UNIT]
    places = np.flatnonzero(np.frombuffer(text, np.int32) != GAP)
    order = sort_places(bytes(text), places[places >= FIRST]).tobytes()
    write(path, fingerprint, bytes(text), order, roots, num_files)
    return num_left_out


def _text_in(path: Path) -> str | None:
    """Return a file's text; None for one that is no text or cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_FILE:
            return None
        content = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in content else content


def _text_files(roots: Sequence[str]) -> Iterator[Path]:
    """Yield the files under the roots, without hidden ones, links, and those that git ignores."""
    for root in map(Path, roots):
        if not root.is_dir():
            yield root
            continue
        for path in _listed_by_git(root) or _walked(root):
            hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
            if not hidden and not path.is_symlink():
                yield path


def _listed_by_git(root: Path) -> list[Path]:
    """Return the files that git knows or does not ignore; empty outside a repository."""
    command = ["git", "-C", str(root), "-c", "core.fsmonitor=false"]  # which could name a program to run
    command += ["ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        names = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [root / os.fsdecode(name) for name in sorted(set(names.split(b"\0"))) if name]


def _walked(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names))


# The daemon -----------------------------------------------------------------------------------------------


Opened = tuple[tuple[int, ...], Datastore | None]
"""The stamp of an index's file, and what was read from it."""


class IndexFiles:
    """Holds the indexes that a daemon looks up in. A file that was replaced is read anew.

    Args: paths of index files; fingerprint of the token table. Raises `UserError` for a file that is missing
    or belongs to another tokenizer; a damaged one is left out.
    """

    def __init__(self, paths: Sequence[Path], fingerprint: bytes) -> None:
        self._fingerprint = fingerprint
        self._read: Mapping[Path, Opened] = {path: (_stamp(path), self._open(path)) for path in paths}

    @property
    def indexes(self) -> tuple[FrozenIndex, ...]:
        return tuple(store.index for _, store in self._read.values() if store is not None)

    async def refresh(self) -> None:
        """Read the files that have changed. If one cannot be read, its last index stays in use."""
        for path, (stamp, last) in self._read.items():
            if (now := _stamp(path)) and now != stamp:
                try:
                    store = await asyncio.to_thread(self._open, path)
                except UserError as error:
                    logger.warning("%s; its last index stays in use", error)
                    store = last
                self._read = {**self._read, path: (now, store)}

    def _open(self, path: Path) -> Datastore | None:
        try:
            store = read(path)
        except DamagedIndex as error:
            logger.warning("%s; nothing of it is used", error)
            return None
        if store.fingerprint != self._fingerprint:
            raise UserError(
                f"the index {path} was made with another tokenizer than the draft model's; make it anew with "
                "forerun index PATH --draft FILE"
            )
        logger.info("index %s: %d files, %d tokens", path, store.num_files, len(store.index))
        return store


def _stamp(path: Path) -> tuple[int, ...]:
    """Return numbers that change when the file is replaced; empty if it is missing."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
