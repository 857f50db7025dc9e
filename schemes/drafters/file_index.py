"""Indexes a user's files, from which a daemon proposes (REST, arXiv 2311.08252)."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from common.errors import UserError
from common.suffix_index import FIRST, GAP, START, UNIT, SuffixIndex, sort_places
from edge_client.formats.detokenizer import Words
from edge_client.texts.index_file import SUFFIX, DamagedIndex, IndexFile, read_index, write_index

logger = logging.getLogger(__name__)

MOST_TOKENS = 4_000_000
"""Tokens of an index: 32 MB in memory. Sorting them takes some 1.2 GB and ten seconds."""

LARGEST_FILE = 2**20
"""Bytes of a file. Larger ones are mostly data or made by programs."""

GIT_TIMEOUT = 60.0
"""Seconds for git to list a repository's files; a million of them take some seconds."""

OF_ONE_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")
"""Environment variables that git sets in hooks. With them it would list another repository."""


def place_of(name: str, folder: Path) -> Path:
    """Return the file of an index: `name` is a path, or the name of one in `folder`."""
    is_path = os.sep in name or name.endswith(SUFFIX)
    return Path(name).expanduser() if is_path else folder / f"{name}{SUFFIX}"


# Building ---------------------------------------------------------------------------------------------------


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
    order = sort_places(text, places[places >= FIRST]).tobytes()
    write_index(path, fingerprint, bytes(text), order, {"roots": list(roots), "num_files": num_files})
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
        folder = root if root.is_dir() else root.parent
        is_of_git = any(map(_is_repository, (folder, *folder.parents)))
        for path in _listed_by_git(folder, root) if is_of_git else _walked(root):
            hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
            if not hidden and not path.is_symlink():
                yield path


def _is_repository(folder: Path) -> bool:
    """Tell whether git takes this folder for a repository, a damaged one included."""
    return os.path.lexists(folder / ".git")


def _walked(root: Path) -> Iterator[Path]:
    """Yield `root` or the files below, which no repository holds, and what git lists of repositories."""
    if not root.is_dir():
        yield root
    for folder, folders, names in os.walk(root):
        yield from (Path(folder, name) for name in sorted(names))
        shown = [Path(folder, name) for name in sorted(folders) if not name.startswith(".")]
        repositories = [each for each in shown if _is_repository(each) and not each.is_symlink()]
        folders[:] = [each.name for each in shown if each not in repositories]
        for repository in repositories:
            yield from _of_nested(repository)


def _of_nested(repository: Path) -> Iterator[Path]:
    """Yield what git lists of a repository below a root. If git fails, leave the repository out."""
    try:
        yield from _listed_by_git(repository, repository)
    except UserError as error:
        logger.warning("%s; it is left out", error)


def _listed_by_git(folder: Path, root: Path) -> Iterator[Path]:
    """Yield the files at or below `root` that git knows or does not ignore, those of nested repositories
    included. `folder` is in a repository and holds `root`. Raises `UserError` if git fails."""
    for name in _git_list(folder, root):
        path = folder / os.fsdecode(name)
        if not name.endswith(b"/") and not path.is_dir():
            yield path
        elif _is_repository(path) and not path.is_symlink():
            yield from _of_nested(path)


def _git_list(folder: Path, root: Path) -> list[bytes]:
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false"]  # which could name a program to run
    command += ["--literal-pathspecs", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    command += ["--", "." if root == folder else root.name]
    around = {name: value for name, value in os.environ.items() if name not in OF_ONE_REPOSITORY}
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=GIT_TIMEOUT, env=around)
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().partition("\n")[0]
    except subprocess.TimeoutExpired:
        reason = f"it took longer than {GIT_TIMEOUT:g} s"
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        return [name for name in sorted(set(done.stdout.split(b"\0"))) if name]
    raise UserError(
        f"git cannot list the files of {folder} ({reason}), so which of them it ignores is unknown; make "
        f"`git -C {folder} ls-files` work, or name folders outside of the repository"
    )


# The daemon -------------------------------------------------------------------------------------------------

Opened = tuple[tuple[int, ...], IndexFile | None]
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
    def indexes(self) -> tuple[SuffixIndex, ...]:
        """Return the present indexes."""
        return tuple(file.index for _, file in self._read.values() if file is not None)

    async def refresh(self) -> None:
        """Read the files that have changed. If one cannot be read, its last index stays in use."""
        for path, (stamp, last) in self._read.items():
            if (now := _stamp(path)) and now != stamp:
                try:
                    file = await asyncio.to_thread(self._open, path)
                except UserError as error:
                    logger.warning("%s; its last index stays in use", error)
                    file = last
                self._read = {**self._read, path: (now, file)}

    def _open(self, path: Path) -> IndexFile | None:
        try:
            file = read_index(path)
        except DamagedIndex as error:
            logger.warning("%s; nothing of it is used", error)
            return None
        except UserError as error:
            raise UserError(f"{error}; make it with: forerun index PATH") from error
        if file.fingerprint != self._fingerprint:
            raise UserError(
                f"the index {path} was made with another tokenizer than the draft model's; make it anew with "
                "forerun index PATH --draft FILE"
            )
        logger.info("index %s: %d files, %d tokens", path, file.about["num_files"], len(file.index))
        return file


def _stamp(path: Path) -> tuple[int, ...]:
    """Return numbers that change when the file is replaced; empty if it is missing."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
