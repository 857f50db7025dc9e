"""This machine: Python, packages, disk, and how llama.cpp uses its processor."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from edge_client.llama.library import extra_bufts_are_safe
from forerun.doctor.finding import Finding, fail, ok, warn

OLDEST_PYTHON = (3, 11)
NEEDED = ("numpy", "grpcio", "protobuf")
OF_THE_EDGE = ("llama-cpp-python", "starlette", "uvicorn", "jinja2", "platformdirs")
WORTH_HAVING = ("AVX2", "NEON")
"""Features without which llama.cpp computes several times slower."""

GIBIBYTE = 1 << 30
LITTLE_DISK = GIBIBYTE  # bytes; a log and a journal fit, another draft model may not


def check_python() -> Finding:
    """The interpreter and the packages."""
    found = {name: _version(name) for name in (*NEEDED, *OF_THE_EDGE)}
    words = f"{platform.python_version()}; " + ", ".join(
        f"{name} {each}" for name, each in found.items() if each
    )
    if sys.version_info[:2] < OLDEST_PYTHON:
        return fail("python", words, "Python 3.11 or newer is needed")
    if missing := [name for name, each in found.items() if each is None]:
        return fail("python", f"{words}; missing: {', '.join(missing)}", "pip install 'forerun[edge]'")
    return ok("python", words)


def check_disk(folder: Path) -> Finding:
    """Room where state and models are; the folder need not exist yet."""
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    free = shutil.disk_usage(there).free
    words = f"{free / GIBIBYTE:.1f} GiB free at {there}"
    if free < LITTLE_DISK:
        return warn("disk", words, "make room: `forerun pull` and logs need some")
    return ok("disk", words)


def check_processor(system_info: str) -> Finding:
    """By llama.cpp's own words (`llama_print_system_info`)."""
    found = [part.split("=")[0].strip() for part in system_info.split("|") if part.strip().endswith("= 1")]
    words = (
        f"llama.cpp uses {', '.join(each.rpartition(' ')[2] for each in found) or 'no special instructions'}"
    )
    if not extra_bufts_are_safe(system_info):
        return warn(
            "processor",
            f"{words}; repacked weights stay off, because builds with AMX may crash",
            "a build of llama-cpp-python without AMX may draft faster",
        )
    if not any(each in words for each in WORTH_HAVING):
        return warn("processor", words, "a build for this processor drafts several times faster")
    return ok("processor", words)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
