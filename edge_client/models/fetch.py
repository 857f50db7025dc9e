"""Fetches a model's file into the store. A fetch resumes, checks the hash, and names only a whole file."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from common.errors import CapacityError, ForerunError, PeerError, UnavailableError, UserError
from common.llama.store import (
    GGUF_MAGIC,
    ModelManifest,
    ModelName,
    Progress,
    check_magic,
    hash_of,
    manifest_of,
    parts_of,
    write_json,
)
from edge_client.models.web import Credentials, FileSource, is_private, open_source

MOST_FAILURES = 4
"""Attempts in a row without a byte before the fetch fails. The next fetch resumes from its bytes."""

FIRST_PAUSE = 1.0
"""Seconds before the second attempt. Each further pause doubles."""

SPARE = 64 << 20
"""Bytes that a fetch leaves free on the disk."""

HANDED_OVER = 1 << 18
"""Bytes between two progress reports."""


@dataclass(frozen=True, slots=True)
class FetchSurroundings:
    """Holds the clock, the disk and the progress report that a fetch uses."""

    now: Callable[[], str]  # ISO 8601, UTC
    pause: Callable[[float], None]  # waits these seconds
    progress: Progress
    free_space: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free  # bytes


def fetch(
    name: ModelName, path: Path, credentials: Credentials, world: FetchSurroundings, sha256: str = ""
) -> ModelManifest:
    """Fetch the file of `name` to `path`. Return its manifest, which is written beside it.

    `sha256` is the required hash; empty means the hub's. Raises `UserError` for a file that is no GGUF or has
    another hash, `CapacityError` for a full disk, `UnavailableError` for a silent server. Bytes are kept.
    """
    if not is_private(name.url) and not sha256:
        raise UserError(f"{name.url} is not encrypted and can be changed on its way; give its --sha256")
    with _Part(path, name.text, sha256, world) as part:
        source = _all_of(name, part, credentials, world)
        found = hash_of(part.path, world.progress)
        expected, checked = (sha256, "given") if sha256 else (source.sha256, "hub" if source.sha256 else "")
        if expected and found != expected.lower():
            raise UserError(
                f"{name.text} has the SHA-256 {found}, not {expected}; it is not used and left as "
                f"{part.path}. Remove that file to fetch it again"
            )
        manifest = ModelManifest(name.text, name.url, found, part.size, world.now(), checked, source.commit)
        part.finish(manifest)
    return manifest


def _all_of(name: ModelName, part: _Part, credentials: Credentials, world: FetchSurroundings) -> FileSource:
    """Ask until the file is whole. Return the server's last `FileSource`."""
    failures, furthest = 0, part.size
    while True:
        misfits = part.num_misfits
        try:
            source = _some_of(name, part, credentials)
            if source is not None:
                return source
            problem: ForerunError = UnavailableError(f"{name.url} broke off after {part.size} bytes")
        except UnavailableError as error:
            problem = error
        failures = 0 if part.size > furthest else failures + 1
        furthest = max(furthest, part.size) if part.num_misfits == misfits else 0
        if max(failures, part.num_misfits) >= MOST_FAILURES:
            kept = f"; {part.size:,} bytes are kept, and the same command goes on from there"
            raise UnavailableError(f"{problem}{kept if part.size else ''}") from problem
        world.pause(FIRST_PAUSE * 2 ** max(0, failures - 1))


def _some_of(name: ModelName, part: _Part, credentials: Credentials) -> FileSource | None:
    """Ask once and keep the bytes. Return the source if the file is whole, else None."""
    source = open_source(name.url, part.resumable, credentials)
    with contextlib.closing(source.response):
        if not part.fits(source):
            part.num_misfits += 1
            part.clear()
            return None
        part.begin(source)
        if source.ends_before:
            return source
        try:
            while block := source.response.read(HANDED_OVER):
                part.add(block)
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"{name.url} broke off after {part.size} bytes: {error}") from error
    return source if source.size is None or part.size == source.size else None


class _Part:
    """FILE.part, locked against a second fetch, and the facts about the whole file in FILE.part.json."""

    def __init__(self, path: Path, name: str, sha256: str, world: FetchSurroundings) -> None:
        self.path, self._about = parts_of(path)
        self._whole, self._name, self._sha256, self._world = path, name, sha256.lower(), world
        self._total = 0
        self.num_misfits = 0  # answers that did not continue the file, so that it had to be fetched anew
        self._file: BinaryIO

    def __enter__(self) -> _Part:
        with _storing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.path.is_symlink():
                raise UserError(f"{self.path} is a symbolic link, which is not followed; remove it")
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            self._file = os.fdopen(os.open(self.path, flags, 0o644), "r+b")
            if not self._is_ours():
                self._file.close()
                raise UserError(f"{self._name} is being fetched by another command; wait for it")
            self.size = self._file.seek(0, os.SEEK_END)
        return self

    def __exit__(self, *_: object) -> None:
        with _storing(self.path):
            self._file.close()
            if not self.size:
                self.path.unlink(missing_ok=True)
                self._about.unlink(missing_ok=True)

    @property
    def resumable(self) -> int:
        """Return the bytes to resume after, if the server still has the same file."""
        return self.size if self._known_identity() else 0

    def fits(self, source: FileSource) -> bool:
        """Tell whether the source continues FILE.part. Raises `UserError` for a wrong hash."""
        if self._sha256 and source.sha256 and source.sha256 != self._sha256:
            raise UserError(
                f"{self._name} has the SHA-256 {source.sha256}, not {self._sha256}; nothing was fetched"
            )
        if not source.start:
            return not source.ends_before
        same = source.identity == self._known_identity()
        return same and source.start == self.size and not (source.ends_before and source.size != self.size)

    def begin(self, source: FileSource) -> None:
        """Make room for the file's rest. Raises `CapacityError` if the disk is full."""
        if not source.start:
            self.clear()
        self._total = source.size or 0
        free = self._world.free_space(self.path.parent)
        if self._total - self.size + SPARE > free:
            raise CapacityError(
                f"{self._name} needs {self._total - self.size:,} bytes more, and {self.path.parent} has "
                f"{free:,} free; make room, or set another folder"
            )
        with _storing(self._about):
            write_json(self._about, {"identity": source.identity, "size": source.size})

    def add(self, block: bytes) -> None:
        """Write the next bytes. Raises, and drops the file, if it is no GGUF or outgrows the disk."""
        if not self._total and self._world.free_space(self.path.parent) < SPARE + len(block):
            self.clear()
            raise CapacityError(
                f"{self._name} does not fit on the disk of {self.path.parent}, and its server does not say "
                "how large it is; make room, or set another folder"
            )
        with _storing(self.path):
            self._file.seek(self.size)
            self._file.write(block)
            self._file.flush()
        before, self.size = self.size, self.size + len(block)
        if before < len(GGUF_MAGIC) <= self.size:
            self._check_magic()
        if self._total and self.size > self._total:
            raise PeerError(f"{self._name}: the server sent more bytes than it announced ({self._total:,})")
        self._world.progress(self.size, self._total)

    def clear(self) -> None:
        with _storing(self.path):
            self._file.truncate(0)
            self._about.unlink(missing_ok=True)
        self.size = 0

    def finish(self, manifest: ModelManifest) -> None:
        self._check_magic()
        with _storing(self._whole):
            os.fsync(self._file.fileno())
            os.replace(self.path, self._whole)
            write_json(manifest_of(self._whole), asdict(manifest))
            self._about.unlink(missing_ok=True)

    def _check_magic(self) -> None:
        self._file.seek(0)
        try:
            check_magic(self._name, self._file.read(len(GGUF_MAGIC)))
        except UserError:
            self.clear()
            raise

    def _is_ours(self) -> bool:
        """Tell whether no other process has locked FILE.part or given it its final name."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except (BlockingIOError, FileNotFoundError):
            return False

    def _known_identity(self) -> str:
        try:
            found = json.loads(self._about.read_text(encoding="utf-8"))["identity"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return found if isinstance(found, str) else ""


@contextlib.contextmanager
def _storing(path: Path) -> Iterator[None]:
    """Raise a file system's error as `UserError`, so that it never counts as the network's."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
