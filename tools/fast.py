"""Compiles the two machines and the simulator with mypyc, for long sweeps; `make fast` runs this file.

    make fast
    PYTHONPATH=build/fast .venv/bin/forerun simulate sweep ...
    PYTHONSAFEPATH=1 PYTHONPATH=build/fast:. .venv/bin/python -m benchmarks.simulator_speed

`python -m` alone would take the sources, as it looks into the folder that it is called in first.

The compiled modules are made of the same sources and live in a copy of the packages below `build/fast`, so
that an edited source is never shadowed by an old compiled one. The copy gets its name only when it has
simulated a few worlds exactly as the sources do. Needs a C compiler.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.drafts import ReplayedDraft
    from simulator.world import World

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "fast"
STAMP = "sources.sha256"

PACKAGES = ("common", "cloud_verifier", "edge_client", "forerun", "link", "simulator")
LINKED = ("demo_models",)  # megabytes of weights
SETTINGS = ("pyproject.toml", "tools/fast.py")  # mypy's, and what is compiled and compared

COMPILED = (
    "cloud_verifier/core/admission.py",
    "cloud_verifier/core/alarms.py",
    "cloud_verifier/core/arrivals.py",
    "cloud_verifier/core/batching.py",
    "cloud_verifier/core/cost.py",
    "cloud_verifier/core/credit.py",
    "cloud_verifier/core/effects.py",
    "cloud_verifier/core/ledger.py",
    "cloud_verifier/core/margins.py",
    "cloud_verifier/core/memory.py",
    "cloud_verifier/core/prefix_cache.py",
    "cloud_verifier/core/relief.py",
    "cloud_verifier/core/report.py",
    "cloud_verifier/core/room.py",
    "cloud_verifier/core/scheduler.py",
    "cloud_verifier/core/session.py",
    "cloud_verifier/core/sharing.py",
    "cloud_verifier/core/slots.py",
    "cloud_verifier/core/target.py",
    "cloud_verifier/core/tenants.py",
    "common/estimators.py",
    "common/messages.py",
    "common/noise.py",
    "common/recall.py",
    "common/rpc/size.py",
    "common/tree.py",
    "edge_client/core/calibration.py",
    "edge_client/core/config.py",
    "edge_client/core/drafter.py",
    "edge_client/core/effects.py",
    "edge_client/core/growth.py",
    "edge_client/core/offline.py",
    "edge_client/core/policies/__init__.py",
    "edge_client/core/policies/adaptive.py",
    "edge_client/core/policies/base.py",
    "edge_client/core/policies/chain.py",
    "edge_client/core/policies/foresight.py",
    "edge_client/core/policies/governor.py",
    "edge_client/core/policies/off.py",
    "edge_client/core/policies/offline.py",
    "edge_client/core/policies/sync.py",
    "edge_client/core/policies/traffic.py",
    "edge_client/core/policies/tree.py",
    "edge_client/core/session.py",
    "edge_client/core/wire.py",
    "simulator/beta.py",
    "simulator/colocated.py",
    "simulator/draws.py",
    "simulator/events.py",
    "simulator/historical.py",
    "simulator/knowledge.py",
    "simulator/lane.py",
    "simulator/system.py",
    "simulator/timeline.py",
)
"""What a simulated event runs through. A class can extend a compiled one only if it is compiled, too. What
travels between processes (worlds, results) is not among it: compiled frozen values cannot be unpickled."""

FROZEN, THAWED = "@dataclass(frozen=True, slots=True)", "@dataclass(unsafe_hash=True, slots=True)"
"""What a compiled value is instead: mypy has made sure that nobody writes to it, and it is made sooner."""

HOW = """\
before an installed command a variable makes it take that:
  PYTHONPATH={folder} .venv/bin/forerun simulate ...
`python -m` in this folder takes the sources, unless a second one forbids it:
  PYTHONSAFEPATH=1 PYTHONPATH={folder}:. .venv/bin/python -m benchmarks.simulator_speed"""


class FastError(Exception):
    """The compiler failed, or what it made does not do what the sources do."""


def digest(root: Path = ROOT) -> str:
    """Of all sources that are copied, how they are compiled, and the Python that they are compiled for."""
    found = hashlib.sha256(sys.version.encode())
    sources = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    for path in (*(root / name for name in SETTINGS), *sources):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def build(out: Path = OUT) -> None:
    """Make the copy anew; without one, old or new, if that fails. Raises `FastError`, `OSError`."""
    part, log = out.with_name(f"{out.name}.part"), log_path(out)
    for old in (out, part):
        if old.exists():
            shutil.rmtree(old)
    part.mkdir(parents=True)
    try:
        stamp = digest()  # a source that is edited meanwhile makes it an old one
        _copy(part)
        _compile(part, log)
        if traces(part) != traces(ROOT):
            raise FastError(
                f"the compiled simulator gives other results than the sources; please report this, with {log}"
            )
        (part / STAMP).write_text(stamp, encoding="utf-8")
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def log_path(out: Path = OUT) -> Path:
    """Where the compiler's words are kept, whatever becomes of the copy."""
    return out.with_name(f"{out.name}-compile.log")


def _copy(folder: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for source in (folder / name for name in COMPILED):
        if source.exists():  # else the compiler says so
            source.write_text(source.read_text("utf-8").replace(FROZEN, THAWED), "utf-8")
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name, target_is_directory=True)
    shutil.copy(ROOT / "pyproject.toml", folder)  # mypy's settings


def _compile(folder: Path, log: Path) -> None:
    command = [sys.executable, "-m", "mypyc", *COMPILED]
    with log.open("w", encoding="utf-8") as words:
        if subprocess.run(command, cwd=folder, stdout=words, stderr=words, check=False).returncode:
            raise FastError(f"the compiler failed; its words are in {log}")


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
    """Print what every scheme comes to in worlds with everything in them, and one session step by step."""
    from simulator.historical import HISTORICAL
    from simulator.pool import Pool
    from simulator.schemes import policy_maker
    from simulator.timeline import timeline

    others = ("forerun", "chain", "sync:4", "clairvoyant", "colocated:tree", "device_only")
    runs = [(number, scheme) for number in range(2) for scheme in (*HISTORICAL, *others)]
    worlds = list(_worlds())
    with Pool(2) as pool:  # as sweeps do
        found = pool.map((scheme, worlds[number]) for number, scheme in runs)
        for (number, scheme), results in zip(runs, found, strict=True):
            for result in results:
                print(number, scheme, json.dumps(asdict(result)))
    for span in timeline(next(_worlds()), policy_maker("forerun")):
        print(json.dumps(asdict(span)))


def _worlds() -> Iterator[World]:
    """A drawn one and a recorded one; between them they have nearly all that a world can have."""
    from simulator.arrivals import Poisson
    from simulator.link import Handovers, LinkSpec, Outage
    from simulator.mahimahi import Schedule
    from simulator.traces import Trace
    from simulator.world import DeviceSpec, VerifierSpec, World

    drawn = LinkSpec(
        rtt=0.05, jitter=0.01, jitter_memory=0.2, jitter_law="exponential", loss=0.03, bandwidth_up=9e3,
        bandwidth_down=2e4, outages=(Outage(0.5, 0.2),), handovers=Handovers(1.0, 0.05, 0.02),
    )  # fmt: skip
    yield World(drawn, tokens=80, clients=3)
    rows = range(20)
    trace = Trace(
        "made up",
        times=tuple(0.1 * row for row in rows),
        rtts=tuple(0.03 + 0.005 * (row % 7) for row in rows),
        losses=tuple(row % 6 == 5 for row in rows),
        bandwidths=tuple(8e3 + 1e3 * (row % 5) for row in rows),
    )
    yield World(
        LinkSpec(trace=trace, schedule_up=Schedule("made up", tuple(range(3, 90, 7)))),
        DeviceSpec(max_draft_steps_per_second=90.0),
        VerifierSpec(step_time_per_context=2e-5, max_nodes_per_session=12, replicas=2),
        _recorded_draft(),
        tokens=60,
        arrivals=Poisson(rate=2.0, sessions=4),
    )


def _recorded_draft() -> ReplayedDraft:
    """Two texts with up to five candidates a place, of which the target takes the first, another or none."""
    from simulator.drafts import Replay, ReplayedDraft

    def place(number: int) -> tuple[tuple[float, ...], int | None]:
        scores = tuple(-0.1 * (number % 9 + 1) * rank for rank in range(1, 2 + number % 5))
        return scores, (1, 1, 2, 1, None, 1, 1)[number % 7]

    return ReplayedDraft(Replay("made up", [[place(number) for number in range(n)] for n in (70, 45)]))


def main() -> int:
    """0 if the copy is there and up to date in the end."""
    stamp, folder = OUT / STAMP, OUT.relative_to(ROOT)
    how = HOW.format(folder=folder)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest():
        print(f"{folder} is up to date; {how}")
        return 0
    print("compiling; this takes about a minute", file=sys.stderr)
    try:
        build()
    except (FastError, OSError) as error:
        print(f"forerun: {error}", file=sys.stderr)
        return 1
    print(f"{folder} is compiled; {how}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
