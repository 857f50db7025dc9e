"""Keep a user's files as one index of tokens, update it when they change, and read it for the daemon.

The file holds a header (JSON), the tokens and the order of their places (`common.suffix_index`), which are
mapped into memory, not read. It is its owner's alone, and nothing of it leaves the device but token ids that
are proposed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import mmap
import os
import struct
import subprocess
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from common.errors import UserError
from common.suffix_index import FIRST, GAP, START, UNIT, FrozenIndex, sort_places
from edge_client.formats.detokenizer import Words
from edge_client.process.paths import make_private, write_private

logger = logging.getLogger(__name__)

SUFFIX = ".index"
MAGIC, VERSION = b"forerunx", 1
HEAD = struct.Struct("<8sQ")  # the magic, and the bytes of the header
ALIGNED = 65_536  # bytes; a memory map may begin at a multiple of this on every system
LARGEST_HEADER = 2**28  # bytes; a million files

MOST_TOKENS = 10_000_000
"""Tokens of an index: 80 MB in the file. Sorting them takes some 600 MB and ten seconds."""

LARGEST_FILE = 2**20
"""Bytes of a file. Larger ones are mostly data or made by programs."""


LOOK_AFTER = 60.0
"""Seconds between two looks for changed files, while texts are asked for. 10,000 files take a thread some
0.1 s."""


class DamagedIndex(UserError):
    """The file is no index, or not as it was written."""


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """Describes a file in an index, and where its tokens stand."""

    path: str
    size: int  # bytes
    mtime_ns: int
    sha256: str
    first: int  # place of the first token
    count: int  # tokens


@dataclass(frozen=True, slots=True)
class Datastore:
    """Holds an index of files. `fingerprint` is that of the token table."""

    fingerprint: bytes
    roots: tuple[str, ...]  # folders and files that were given
    files: tuple[IndexedFile, ...]
    index: FrozenIndex
    size: int  # bytes of its file


# Files ----------------------------------------------------------------------------------------------------


def place_of(name: str, folder: Path) -> Path:
    """Return the file of an index: `name` is a path, or the name of one in `folder`."""
    is_path = os.sep in name or name.endswith(SUFFIX)
    return Path(name).expanduser() if is_path else folder / f"{name}{SUFFIX}"


def write(
    path: Path,
    fingerprint: bytes,
    text: bytes,
    order: bytes,
    roots: Sequence[str] = (),
    files: Sequence[IndexedFile] = (),
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
            "files": [asdict(file) for file in files],
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


def read_or_set_aside(path: Path) -> Datastore | None:
    """Read an index as `read` does; set a damaged one aside, with a line in the log, and return None."""
    try:
        return read(path)
    except DamagedIndex as error:
        aside = path.with_name(f"{path.name}.damaged")
        os.replace(path, aside)
        logger.warning("%s; it is set aside as %s", error, aside)
        return None


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
    told = json.loads(more(length))
    if told["version"] != VERSION:
        raise DamagedIndex(f"the index {path} has the format {told['version']}, not {VERSION}; make it anew")
    num_tokens, num_places, size = told["num_tokens"], told["num_places"], os.fstat(descriptor).st_size
    text_at = _aligned(HEAD.size + length)
    order_at = _aligned(text_at + UNIT * num_tokens)
    if size != order_at + UNIT * num_places or num_tokens < FIRST:
        raise DamagedIndex(f"the index {path} is cut off or has been changed; make it anew")
    text = mmap.mmap(descriptor, UNIT * num_tokens, access=mmap.ACCESS_READ, offset=text_at)
    order = np.zeros(0, np.int32)
    if num_places:
        mapped = mmap.mmap(descriptor, UNIT * num_places, access=mmap.ACCESS_READ, offset=order_at)
        order = np.frombuffer(mapped, np.int32)
    if zlib.crc32(order.data, zlib.crc32(text)) != told["crc32"]:
        raise DamagedIndex(f"the index {path} has a wrong checksum; make it anew")
    files = tuple(IndexedFile(**file) for file in told["files"])
    roots = tuple(map(str, told["roots"]))
    return Datastore(bytes.fromhex(told["fingerprint"]), roots, files, FrozenIndex(text, order), size)


def _aligned(at: int) -> int:
    return -(-at // ALIGNED) * ALIGNED


# Updates --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Update:
    """Counts the files of an update."""

    num_new: int = 0
    num_changed: int = 0
    num_gone: int = 0
    num_left_out: int = 0  # beyond `MOST_TOKENS`

    @property
    def has_changed(self) -> bool:
        return bool(self.num_new or self.num_changed or self.num_gone)


def update(path: Path, roots: Sequence[str], words: Words, fingerprint: bytes) -> Update:
    """Make the index `path` of all text files under `roots`, or tokenize what has changed since. Raises
    `UserError`."""
    known, done, files, text = _known(path, fingerprint), Update(), list[IndexedFile](), bytearray(START)
    before = {} if known is None else {file.path: file for file in known.files}
    for place in _text_files(roots):
        found = _tokens(place, known, before.get(str(place)), words)
        if found is None:
            continue
        file, tokens = found
        if len(text) // UNIT + file.count > MOST_TOKENS:
            done.num_left_out += 1
            continue
        old = before.pop(file.path, None)
        done.num_new += old is None
        done.num_changed += old is not None and old.sha256 != file.sha256
        files.append(IndexedFile(**{**asdict(file), "first": len(text) // UNIT}))
        text += tokens + START[:UNIT]
    done.num_gone = len(before)
    if done.has_changed or known is None or tuple(roots) != known.roots:
        write(path, fingerprint, bytes(text), _ordered(bytes(text)), roots, files)
    return done


def state_of(roots: Sequence[str]) -> bytes:
    """Return a digest of names, sizes and times of all files under the roots; empty if a root is missing."""
    digest = hashlib.sha256()
    if not all(map(os.path.exists, roots)):
        return b""
    for place in _text_files(roots):
        with contextlib.suppress(OSError):
            stat = place.stat()
            digest.update(f"{place}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return digest.digest()


def _ordered(text: bytes) -> bytes:
    """Return the order of all places of a text."""
    places = np.flatnonzero(np.frombuffer(text, np.int32) != GAP)
    return sort_places(text, places[places >= FIRST]).tobytes()


def _known(path: Path, fingerprint: bytes) -> Datastore | None:
    """Return the index as it is, if it can be built on."""
    try:
        found = read(path) if path.exists() else None
    except DamagedIndex as error:
        logger.warning("%s", error)
        return None
    return found if found is not None and found.fingerprint == fingerprint else None


def _tokens(
    path: Path, known: Datastore | None, before: IndexedFile | None, words: Words
) -> tuple[IndexedFile, bytes] | None:
    """Return the file and its tokens; None for one that is no text or cannot be read."""
    try:
        stat = path.stat()
        if before is not None and (before.size, before.mtime_ns) == (stat.st_size, stat.st_mtime_ns):
            return before, _tokens_in(known, before)
        if not path.is_file() or stat.st_size > LARGEST_FILE:
            return None
        data = path.read_bytes()
        content = data.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if "\0" in content:
        return None
    sha256 = hashlib.sha256(data).hexdigest()
    if before is not None and before.sha256 == sha256:
        tokens = _tokens_in(known, before)
    else:
        tokens = np.array(words.tokenize(content, False), np.int32).tobytes()
    found = IndexedFile(str(path), len(data), stat.st_mtime_ns, sha256, 0, len(tokens) // UNIT)
    return found, tokens


def _tokens_in(known: Datastore | None, file: IndexedFile) -> bytes:
    """Return the tokens of a file that stands in `known`."""
    assert known is not None, "it was found there"
    found: bytes = known.index.text[UNIT * file.first : UNIT * (file.first + file.count)]
    return found


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
        found = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [root / os.fsdecode(name) for name in sorted(set(found.split(b"\0"))) if name]


def _walked(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names))


# The daemon -----------------------------------------------------------------------------------------------


Opened = tuple[tuple[int, ...], Datastore | None]
"""The stamp of an index's file, and what was read from it."""


class IndexFiles:
    """Holds the indexes that a daemon looks up in. A file that was replaced is read anew.

    Args: paths of index files; fingerprint of the token table; renew, which updates an index whose user's
    files have changed (None: only the user does). Raises `UserError` for a file that is missing or belongs to
    another tokenizer; a damaged one is set aside.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        fingerprint: bytes,
        renew: Callable[[Path], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fingerprint, self._renew, self._clock = fingerprint, renew, clock
        self._read: Mapping[Path, Opened] = {path: (_stamp(path), self._open(path)) for path in paths}
        self._renewing: asyncio.Task[None] | None = None
        self._looked_at = -math.inf
        self._states = dict[Path, bytes]()  # of the user's files, when an index was last updated

    @property
    def indexes(self) -> tuple[FrozenIndex, ...]:
        return tuple(found.index for _, found in self._read.values() if found is not None)

    async def settled(self) -> None:
        """Wait until changes that are being looked for have been found and read."""
        if self._renewing is not None:
            await asyncio.wait([self._renewing])

    async def refresh(self) -> None:
        """Read the files that have changed. If one cannot be read, its last index stays in use. Now and then
        begin to look for changes of the user's files."""
        for path, (stamp, _) in self._read.items():
            if (now := _stamp(path)) and now != stamp:
                try:
                    found = await asyncio.to_thread(self._open, path)
                except UserError as error:
                    logger.warning("%s; its last index stays in use", error)
                    found = self._read[path][1]
                self._read = {**self._read, path: (now, found)}
        is_busy = self._renewing is not None and not self._renewing.done()
        if self._renew is not None and not is_busy and self._clock() >= self._looked_at + LOOK_AFTER:
            self._looked_at = self._clock()
            self._renewing = asyncio.create_task(self._look(self._renew))

    async def close(self) -> None:
        """End an update that is under way; its index stays as it was."""
        if self._renewing is not None:
            self._renewing.cancel()
        await self.settled()

    async def _look(self, renew: Callable[[Path], Awaitable[None]]) -> None:
        for path, (_, found) in self._read.items():
            if found is None or not found.roots:
                continue
            state = await asyncio.to_thread(state_of, found.roots)
            if state in (b"", self._states.get(path)):
                continue
            self._states[path] = state
            try:
                await renew(path)
            except (OSError, UserError) as error:
                logger.warning("the index %s is not updated: %s", path, error)

    def _open(self, path: Path) -> Datastore | None:
        found = read_or_set_aside(path)
        if found is None:
            return None
        if found.fingerprint != self._fingerprint:
            raise UserError(
                f"the index {path} was made with another tokenizer than the draft model's; make it anew with "
                "forerun index PATH --draft FILE"
            )
        logger.info("index %s: %d files, %d tokens", path, len(found.files), len(found.index))
        return replace(found, files=())


def _stamp(path: Path) -> tuple[int, ...]:
    """Return numbers that change when the file is replaced; empty if it is missing."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
