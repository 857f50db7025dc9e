"""How fast the simulator is: `python -m benchmarks.simulator_speed [--trace FILE] [--json]`.

Two worlds. One client under the chain policy: committed tokens per minute of one core's computing. And a
crowd: 500 clients, each of which asks for a text every 60 seconds on average (`--every`), ten minutes long;
with --trace over a measured network, else over the profile lte: seconds by the clock. The crowd is served by
one verifier, simulated by one process, or by `--replicas` of it, each simulated by a process of its own as
far as there are processors. What is timed are the sources, or the compiled copy where Python finds that first
(`make fast` tells how); the report says which.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import simulator.system
from common.errors import UserError
from simulator.arrivals import MAX_SESSIONS, Poisson
from simulator.drafts import BetaDraft
from simulator.files import experiment_from
from simulator.pool import Pool
from simulator.schemes import run_scheme
from simulator.world import World

CLIENTS, MINUTES = 500, 10
TOKENS = 200  # of each text of the crowd


def one_client(tokens: int, repeats: int) -> dict[str, Any]:
    """The best of `repeats` runs: the others had less of the machine."""
    world = World(tokens=tokens, draft=BetaDraft(mean=0.85))
    run_scheme("chain", replace(world, tokens=100))  # tables are made now
    seconds = min(_timed("chain", world) for _ in range(repeats))
    return {"tokens": tokens, "seconds": round(seconds, 3), "tokens_per_minute": round(60 * tokens / seconds)}


def crowd(scheme: str, world: World, clients: int) -> dict[str, Any]:
    """One run of it."""
    with Pool(0, world.verifier.replicas) as pool:
        began = time.perf_counter()
        (results,) = pool.map([(scheme, world)])
        seconds = time.perf_counter() - began
    committed = sum(len(result.tokens) for result in results)
    return {
        "scheme": scheme,
        "clients": clients,
        "processes": pool.workers,
        "texts": len(results),
        "tokens": committed,
        "seconds": round(seconds, 1),
        "tokens_per_minute": round(60 * committed / seconds),
    }


def crowd_world(link: dict[str, Any], clients: int, every: float, replicas: int = 1) -> World:
    """`clients` that ask for a text every `every` seconds, for all of the minutes. Raises `UserError`."""
    sessions = round(clients * 60 * MINUTES / every)
    if not 1 <= sessions <= MAX_SESSIONS:
        raise UserError(
            f"{clients} clients with a text every {every:g} s ask for {sessions} in {MINUTES} minutes; "
            f"change --share or --every so that it is 1 to {MAX_SESSIONS}"
        )
    verifier = {"replicas": replicas}
    document = {"link": link, "tokens": TOKENS, "draft": {"mean": 0.8}, "verifier": verifier}
    return replace(experiment_from(document).world, arrivals=Poisson(clients / every, sessions))


def is_compiled() -> bool:
    """Whether it is the copy of `make fast` that runs here."""
    return simulator.system.__file__.endswith(tuple(EXTENSION_SUFFIXES))


def _timed(scheme: str, world: World) -> float:
    """Seconds of this process, so that others on the machine count less."""
    began = time.process_time()
    run_scheme(scheme, world)
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator_speed")
    option = parser.add_argument
    option("--tokens", type=int, default=6000, metavar="N", help="of the one client's text (%(default)s)")
    option("--repeats", type=int, default=3, metavar="N", help="runs of it; the best counts (%(default)s)")
    option("--scheme", action="append", metavar="NAME", help="of the crowd (server_streaming and forerun)")
    option("--share", type=float, default=1.0, metavar="X", help="of the crowd: 0.1 = 50 (%(default)s)")
    option(
        "--every",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="between a client's texts, on average (%(default)s)",
    )
    option("--replicas", type=int, default=1, metavar="N", help="of the crowd's verifier (%(default)s)")
    option("--trace", type=Path, metavar="FILE", help="a CSV with time_s,rtt_ms for the crowd's network")
    option("--floor", type=float, default=40.0, metavar="MS", help="put below the trace (%(default)s)")
    option("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        report = measure(options)
    except UserError as error:
        parser.error(str(error))
    print(json.dumps(report, indent=2) if options.json else _in_words(report))
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All of it; what is asked for is checked before anything is timed. Raises `UserError`."""
    for name in ("tokens", "repeats"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} is {getattr(options, name)}; it must be at least 1")
    for name in ("share", "every"):
        if not 1e-6 <= getattr(options, name) <= 1e6:
            raise UserError(f"--{name} is {getattr(options, name):g}; it must lie in 1e-6 to 1e6")
    clients = round(CLIENTS * options.share)
    network, link = "profile lte", dict[str, Any](profile="lte")
    if options.trace is not None:
        network = options.trace.name
        link = {"trace": str(options.trace.resolve()), "trace_floor_ms": options.floor}
    world = crowd_world(link, clients, options.every, options.replicas)
    schemes = options.scheme or ["server_streaming", "forerun"]
    for scheme in schemes:
        run_scheme(scheme, World(tokens=1))  # a name that is wrong is refused now
    report: dict[str, Any] = {"compiled": is_compiled(), "crowd_network": network, "every_s": options.every}
    report["replicas"] = options.replicas
    report |= {"one_client": one_client(options.tokens, options.repeats), "crowd": []}
    for scheme in schemes:
        print(f"… {clients} clients, {scheme}", file=sys.stderr, flush=True)
        report["crowd"].append(crowd(scheme, world, clients))
    return report


def _in_words(report: dict[str, Any]) -> str:
    alone = report["one_client"]
    kind = "compiled simulator" if report["compiled"] else "simulator as it is in the sources, not compiled"
    lines = [
        f"{kind}, Python {platform.python_version()}",
        f"one client, chain: {alone['tokens_per_minute']:,} committed tokens per minute of one core",
    ]
    lines += [
        f"{_counted(row['clients'], 'client')} with a text every {report['every_s']:g} s, "
        f"over {MINUTES} minutes "
        f"({row['texts']} texts, {row['tokens']:,} tokens, "
        f"{report['crowd_network']}, {_counted(report['replicas'], 'verifier')}), {row['scheme']}: "
        f"{row['seconds']:.0f} s in {_counted(row['processes'], 'process')}"
        for row in report["crowd"]
    ]
    return "\n".join(lines)


def _counted(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


if __name__ == "__main__":
    sys.exit(main())
