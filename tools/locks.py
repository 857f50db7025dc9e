"""Hash-locked requirements, `deploy/locks/*.txt`: `python -m tools.locks` makes them from pyproject.toml.

A lock names every distribution that an image installs, exactly, with the SHA-256 of each file that the
registry has of it, so that pip (`--require-hashes`) installs these bytes or nothing. One file serves every
platform: what only some need carries a marker. Direct requirements are at the releases of
`constraints/dev.txt`, those that the tests ran with; what they bring stays where the lock has it until
`--upgrade`.

uv resolves. It is a tool, so the project does not ask for it: `pip install uv==0.13.9` in an environment
of its own, and `--uv PATH`. torch without CUDA is not on PyPI: `verifier-cpu.txt` takes it from
`--torch-cpu`, an index or a folder of wheels.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "deploy" / "locks"
UV = "0.13.9"
"""Another release may write other comments."""

REGISTRY = "https://pypi.org/simple"
TORCH_CPU = "https://download.pytorch.org/whl/cpu"
PYTHON = "3.11"  # the oldest that must be able to use the locks


PIN = re.compile(
    r"(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>.+?))?"
    r"(?P<hashes>(?:\s+--hash=sha256:[0-9a-f]{64})+)\s*"
)


@dataclass(frozen=True, slots=True)
class Lock:
    """What goes into a lock."""

    extras: tuple[str, ...] = ()  # of pyproject.toml; none: `more` alone
    more: tuple[str, ...] = ()
    is_cpu: bool = False  # torch is the build without CUDA


LOCKS = {
    "edge": Lock(("edge",)),
    "verifier-cuda": Lock(("verifier",)),
    "verifier-cpu": Lock(("verifier",), ("torch==2.13.0+cpu",), is_cpu=True),
    # What builds llama.cpp and this project. pip checks no hashes of what an isolated build brings, so images
    # build without isolation, with these. setuptools also stands below torch: one release for both.
    "build": Lock((), ("scikit-build-core==1.1.2", "cmake==4.4.4", "ninja==1.13.2", "setuptools==84.2.1")),
    # Installs a Python that JetPack 6 has not (edge-jetson.Dockerfile).
    "jetson-python": Lock((), (f"uv=={UV}",)),
}
"""Name of the file -> what it holds."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A distribution of a lock."""

    name: str  # normalised
    version: str
    marker: str  # empty: everywhere
    hashes: tuple[str, ...]  # SHA-256 in hex
    brought_by: tuple[str, ...]  # names of distributions, and what stands in pyproject.toml


class LockError(Exception):
    """A lock cannot be made or read; the message says why."""


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.txt"


def read(path: Path) -> list[Pin]:
    """The pins of a lock, in its order. Raises `LockError` for a line that is none."""
    text = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
    return list(_pins(text.splitlines(), path.name))


def _pins(lines: list[str], file: str) -> Iterator[Pin]:
    """A pin's comments follow it: who brings it."""
    at = 0
    while at < len(lines):
        line, at = lines[at], at + 1
        comments = []
        while at < len(lines) and lines[at].lstrip().startswith("#"):
            comments.append(lines[at].strip().lstrip("# "))
            at += 1
        if line.strip() and not line.startswith("#"):
            yield _pin(line, comments, file)


def _pin(line: str, comments: list[str], file: str) -> Pin:
    found = PIN.fullmatch(line)
    if found is None:
        raise LockError(f"{file}: a line pins nothing by its hash: {line[:100]}")
    words = " ".join(comments).removeprefix("via").split()
    return Pin(
        name=re.sub(r"[._-]+", "-", found["name"]).lower(),
        version=found["version"],
        marker=found["marker"] or "",
        hashes=tuple(re.findall(r"sha256:([0-9a-f]{64})", found["hashes"])),
        brought_by=tuple(word for word in words if not word.startswith(("-r", "-c", "("))),
    )


def command(lock: Lock, inputs: list[str], out: Path, options: Mapping[str, str], upgrade: bool) -> list[str]:
    """uv's command line. `options`: uv, registry and torch_cpu."""
    where = options["torch_cpu"]
    is_index = where.startswith(("https://", "http://"))
    # torch's index has old copies of other projects, and uv would stop at the first index that has any.
    index = ["--extra-index-url", where, "--index-strategy", "unsafe-best-match"]
    cpu = (index if is_index else ["--find-links", where]) if lock.is_cpu else []
    # fmt: off
    return [
        options["uv"], "pip", "compile", *inputs, *(f"--extra={extra}" for extra in lock.extras),
        "--constraints", "constraints/dev.txt", "--universal", "--python-version", PYTHON,
        "--generate-hashes", "--no-header", "--quiet", "--default-index", options["registry"], *cpu,
        *(["--upgrade"] if upgrade else []), "--output-file", str(out),
    ]
    # fmt: on


def make(name: str, options: Mapping[str, str], upgrade: bool = False) -> Path:
    """Write a lock anew. Raises `LockError`."""
    lock, path = LOCKS[name], path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        inputs = ["pyproject.toml"] if lock.extras else []
        if lock.more:
            more = Path(folder) / "more.in"
            more.write_text("\n".join(lock.more) + "\n", encoding="utf-8")
            inputs.append(str(more))
        out = Path(folder) / path.name
        if path.exists() and not upgrade:
            out.write_bytes(path.read_bytes())  # what is pinned stays
        done = subprocess.run(
            command(lock, inputs, out, options, upgrade),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise LockError(f"{path.name}: {done.stderr.strip()}")
        path.write_text(_tidy(out.read_text(encoding="utf-8"), name), encoding="utf-8")
    read(path)
    return path


def _tidy(text: str, name: str) -> str:
    """Without places of the machine that made it."""
    head = f"# Made by `python -m tools.locks {name}` with uv {UV}; not to be edited.\n"
    kept = [line for line in text.splitlines() if not line.startswith("#")]
    lines = [re.sub(r"-r \S*more\.in", "-r tools/locks.py", line) for line in kept]
    return head + "\n".join(lines).strip() + "\n"


def _uv_is_right(uv: str) -> None:
    try:
        said = subprocess.run([uv, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise LockError(
            f"{uv} cannot be run ({error}): pip install uv=={UV}, and name it with --uv"
        ) from error
    if said.split()[1:2] != [UV]:
        raise LockError(f"{uv} is {said.strip()}, and the locks are made with {UV}: pip install uv=={UV}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.locks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="LOCK", help=f"of {', '.join(LOCKS)} (all)")
    parser.add_argument("--uv", default="uv", help="the program (%(default)s)")
    parser.add_argument("--registry", default=REGISTRY, help="(%(default)s)")
    parser.add_argument("--torch-cpu", default=TORCH_CPU, help="of torch without CUDA (%(default)s)")
    parser.add_argument("--upgrade", action="store_true", help="move also what direct requirements bring")
    options = parser.parse_args()
    if strange := set(options.names) - set(LOCKS):
        parser.error(f"there is no lock {strange.pop()!r}; there are {', '.join(LOCKS)}")
    try:
        _uv_is_right(options.uv)
        for name in options.names or LOCKS:
            path = make(name, vars(options), options.upgrade)
            print(f"{path.relative_to(ROOT)}: {len(read(path))} distributions")
    except LockError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
