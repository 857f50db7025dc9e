"""The training text: the source of Python's own standard library, split by whole modules.

Nothing is downloaded: the text is what `sysconfig` says this interpreter carries, so two Python versions
train on slightly different text. Python is distributed under the PSF licence; see README.md.
"""

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Third-party code, tests, and the tables and user interfaces that would fill a large part of a short run.
EXCLUDED_PARTS: Final = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "encodings",
        "idle_test",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "test",
        "tests",
        "tkinter",
        "turtledemo",
    }
)
EXCLUDED_PREFIXES: Final = ("_sysconfigdata", "turtle.py", "this.py", "entities.py")

# Whole modules, named so that the split does not move when a Python release adds or drops a file. They are
# ordinary library code of several kinds: parsing, files, networking, data structures, text.
HELD_OUT: Final = (
    "bisect.py",
    "cmd.py",
    "concurrent/futures/thread.py",
    "configparser.py",
    "csv.py",
    "fileinput.py",
    "fractions.py",
    "graphlib.py",
    "gzip.py",
    "html/parser.py",
    "http/cookies.py",
    "json/decoder.py",
    "sched.py",
    "shutil.py",
    "textwrap.py",
    "wsgiref/handlers.py",
)


@dataclass(frozen=True)
class Module:
    """One source file: `name` is its path below the library root, with forward slashes, `text` its source."""

    name: str
    text: str


@dataclass(frozen=True)
class Split:
    """The two disjoint halves of the corpus, each in name order."""

    train: tuple[Module, ...]
    held_out: tuple[Module, ...]


def library_root() -> Path:
    """Return the directory of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def load_split(root: Path | None = None) -> Split:
    """Read the library below `root` (default: this interpreter's) and split it by `HELD_OUT`."""
    modules = tuple(iter_modules(root or library_root()))
    return Split(
        train=tuple(module for module in modules if module.name not in HELD_OUT),
        held_out=tuple(module for module in modules if module.name in HELD_OUT),
    )


def iter_modules(root: Path) -> Iterator[Module]:
    """Yield the modules below `root` in name order, leaving out what is excluded, empty or not UTF-8."""
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        if is_excluded(relative):
            continue
        text = read_source(path)
        if text.strip():
            yield Module(relative.as_posix(), text)


def is_excluded(relative: Path) -> bool:
    """Tell whether `relative` (a path below the library root) stays out of both halves."""
    return not EXCLUDED_PARTS.isdisjoint(relative.parts) or relative.name.startswith(EXCLUDED_PREFIXES)


def read_source(path: Path) -> str:
    """Return the text of `path` with `\\n` line ends, or nothing when it is not UTF-8 (a few are Latin-1)."""
    try:
        return path.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return ""
