"""Builds the wheel: all packages lie below `forerun` there, so that no name is another distribution's, too.

The folders of the repository stay as they are. A wheel is built from a copy in which `common` is
`forerun/common`, and each import and each string that names one of its modules says `forerun.common`.
An editable install, a source distribution and all requirements are setuptools' own.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

from forerun import PARTS

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
]

FILES = ("pyproject.toml", "README.md", "LICENSE")
IMPORT = re.compile(rf"^(\s*(?:from|import) )(?=(?:{'|'.join(PARTS)})[. ])", re.MULTILINE)
STRING = re.compile(rf"([\"'])((?:{'|'.join(PARTS)})(?:\.\w+)+)(?=(?::\w+)?\1)")


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel from a copy of the present folder. Return its file name."""
    out = str(Path(wheel_directory).resolve())
    with tempfile.TemporaryDirectory(prefix="forerun-wheel-") as folder:
        stage(Path.cwd(), Path(folder))
        with contextlib.chdir(folder):
            name: str = build_meta.build_wheel(out, config_settings)
            return name


def stage(root: Path, folder: Path) -> None:
    """Copy what a wheel holds from the repository at `root`, with all packages below `forerun`."""
    for name in FILES:
        shutil.copy(root / name, folder)
    for name in ("forerun", *PARTS):
        if (root / name).is_dir():  # an image has not all of them
            place = folder / "forerun" if name == "forerun" else folder / "forerun" / name
            shutil.copytree(root / name, place, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (folder / "pyproject.toml", *folder.rglob("*.py"), *folder.rglob("*.pyi")):
        text = path.read_text(encoding="utf-8")
        path.write_text(renamed(text, folder / "forerun"), encoding="utf-8")


def renamed(text: str, package: Path) -> str:
    """Return a source text with the names of modules as below `package`."""

    def name(match: re.Match[str]) -> str:
        quote, module = match.groups()
        below = package.joinpath(*module.split("."))
        known = below.is_dir() or any(path.with_suffix(".py").is_file() for path in (below, below.parent))
        return f"{quote}forerun.{module}" if known else match.group()

    return STRING.sub(name, IMPORT.sub(r"\1forerun.", text))
