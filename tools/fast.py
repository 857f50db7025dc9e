"""Compiles the two machines and the simulator with mypyc, for long sweeps; `make fast` runs this file.

    make fast
    PYTHONPATH=build/fast .venv/bin/forerun simulate sweep ...

The compiled modules are made of the same sources and live in a copy of the packages below `build/fast`, so
that an edited source is never shadowed by an old compiled one. The copy is kept only if it simulates a few
worlds exactly as the sources do. Needs a C compiler.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "fast"
STAMP = "sources.sha256"

PACKAGES = ("common", "cloud_verifier", "edge_client", "forerun", "link", "simulator")
LINKED = ("demo_models",)  # megabytes of weights

COMPILED = (
    "cloud_verifier/core/scheduler.py",
    "cloud_verifier/core/session.py",
    "common/estimators.py",
    "common/noise.py",
    "common/tree.py",
    "edge_client/core/confidence.py",
    "edge_client/core/policies/__init__.py",
    "edge_client/core/policies/base.py",
    "edge_client/core/policies/chain.py",
    "edge_client/core/policies/off.py",
    "edge_client/core/policies/sync.py",
    "edge_client/core/policies/tree.py",
    "edge_client/core/session.py",
    "edge_client/core/wire.py",
    "simulator/colocated.py",
    "simulator/draws.py",
    "simulator/events.py",
    "simulator/historical.py",
    "simulator/link.py",
    "simulator/system.py",
    "simulator/timeline.py",
)
"""What a simulated event runs through. A class can extend a compiled one only if it is compiled, too; the
class variables of `simulator/knowledge.py` are more than mypyc takes."""


class FastError(Exception):
    """The compiler failed, or what it made does not do what the sources do."""


def digest(root: Path = ROOT) -> str:
    """Of all sources that are copied, and of the Python that they are compiled for."""
    found = hashlib.sha256(sys.version.encode())
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def build(out: Path = OUT) -> None:
    """Make the copy anew. Raises `FastError`."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, out / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in LINKED:
        (out / name).symlink_to(ROOT / name, target_is_directory=True)
    shutil.copy(ROOT / "pyproject.toml", out)  # mypy's settings
    compiler = [sys.executable, "-m", "mypyc", *COMPILED]
    with (out / "compile.log").open("w", encoding="utf-8") as log:
        if subprocess.run(compiler, cwd=out, stdout=log, stderr=log, check=False).returncode:
            raise FastError(f"the compiler failed; its words are in {out / 'compile.log'}")
    if traces(out) != traces(ROOT):
        raise FastError("the compiled simulator gives other results than the sources; please report this")
    (out / STAMP).write_text(digest(), encoding="utf-8")


def traces(folder: Path) -> str:
    """What a few worlds come to with the packages of `folder`, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-P", "-c", "from tools.fast import show_traces; show_traces()"]
    if folder != ROOT:
        environment["PYTHONPATH"] += os.pathsep + str(ROOT)  # for `tools`
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise FastError(f"the simulator of {folder} failed; its words stand above")
    return done.stdout


def show_traces() -> None:
    """Print results of every kind of scheme over a link with everything in it."""
    from simulator.link import Handovers, LinkSpec
    from simulator.schemes import run_scheme
    from simulator.world import World

    handovers = Handovers(every=1.0, duration=0.05, rtt_step=0.02)
    link = LinkSpec(0.05, 0.01, 0.2, loss=0.03, bandwidth_up=9e3, handovers=handovers)
    world = World(link, tokens=80, clients=3)
    for scheme in ("forerun", "chain", "sync:4", "clairvoyant", "saguaro", "pearl", "colocated:tree"):
        for result in run_scheme(scheme, world):
            print(scheme, json.dumps(asdict(result)))


def main() -> int:
    """0 if the copy is there and up to date in the end."""
    stamp = OUT / STAMP
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest():
        print(f"{OUT.relative_to(ROOT)} is up to date")
        return 0
    print("compiling; this takes about a minute", file=sys.stderr)
    try:
        build()
    except (FastError, OSError) as error:
        print(f"forerun: {error}", file=sys.stderr)
        return 1
    print(f"compiled: put PYTHONPATH={OUT.relative_to(ROOT)} before a command")
    return 0


if __name__ == "__main__":
    sys.exit(main())
