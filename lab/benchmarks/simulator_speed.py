"""Measures how fast the simulator is.

    python -m lab.benchmarks.simulator_speed [--trace FILE] [--json]

Two worlds. One client under the chain policy: committed tokens per minute of one core's computing. And a
crowd: 500 clients, each of which asks for a text every 60 seconds on average (`--every`), ten minutes long;
with --trace over a measured network, else over the profile lte: seconds by the clock. The crowd is served by
one verifier, simulated by one process, or by `--replicas` of it, each simulated by a process of its own as
far as there are processors.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import UserError
from forerun.terminal import note
from lab.bench.report import carry_out, finish, parser_of, table
from simulator.arrivals import MAX_SESSIONS, Poisson
from simulator.drafts import BetaDraft
from simulator.experiment import Pool
from simulator.files import experiment_from
from simulator.schemes import run_scheme
from simulator.world import World

CLIENTS, MINUTES = 500, 10
TOKENS = 200  # of each text of the crowd


def one_client(tokens: int, repeats: int) -> dict[str, Any]:
    """Return the best of `repeats` runs: the others had less of the machine."""
    world = World(tokens=tokens, draft=BetaDraft(mean=0.85))
    run_scheme("chain", replace(world, tokens=100))  # tables are made now
    seconds = min(_timed("chain", world) for _ in range(repeats))
    return {"tokens": tokens, "seconds": round(seconds, 3), "tokens_per_minute": round(60 * tokens / seconds)}


def crowd(scheme: str, world: World, clients: int) -> dict[str, Any]:
    """Time one run of the crowd."""
    with Pool(0, world.num_verifiers) as pool:
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
    """Make `clients` that ask for a text every `every` seconds, for all the minutes. Raises `UserError`."""
    sessions = round(clients * 60 * MINUTES / every)
    if not 1 <= sessions <= MAX_SESSIONS:
        raise UserError(
            f"{clients} clients with a text every {every:g} s ask for {sessions} in {MINUTES} minutes; "
            f"change --share or --every so that it is 1 to {MAX_SESSIONS}"
        )
    verifier = {"replicas": replicas}
    document = {"link": link, "tokens": TOKENS, "draft": {"mean": 0.8}, "verifier": verifier}
    return replace(experiment_from(document).world, arrivals=Poisson(clients / every, sessions))


def _timed(scheme: str, world: World) -> float:
    """Seconds of this process, so that others on the machine count less."""
    began = time.process_time()
    run_scheme(scheme, world)
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("simulator_speed", __doc__)
    option = parser.add_argument
    option("--tokens", type=int, default=6000, metavar="N", help="tokens of the client's text (%(default)s)")
    option("--repeats", type=int, default=3, metavar="N", help="client runs; the best counts (%(default)s)")
    option("--scheme", action="append", metavar="NAME", help="crowd's scheme (server_streaming, forerun)")
    option("--share", type=float, default=1.0, metavar="X", help="share of the crowd, 0.1 = 50 (%(default)s)")
    option("--every", type=float, default=60.0, metavar="S", help="gap between texts (%(default)s)")
    option("--replicas", type=int, default=1, metavar="N", help="replicas of the verifier (%(default)s)")
    option("--trace", type=Path, metavar="FILE", help="a CSV with time_s,rtt_ms for the crowd's network")
    option("--floor", type=float, default=40.0, metavar="MS", help="RTT floor below the trace (%(default)s)")
    parser.set_defaults(run=_run)
    return carry_out("simulator_speed", parser.parse_args(arguments))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure both worlds, after a check of the options. Raises `UserError`."""
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
    report: dict[str, Any] = {"crowd_network": network, "every_s": options.every}
    report["replicas"] = options.replicas
    report |= {"one_client": one_client(options.tokens, options.repeats), "crowd": []}
    for scheme in schemes:
        note(f"{clients} clients, {scheme}")
        report["crowd"].append(crowd(scheme, world, clients))
    return report


def _run(options: argparse.Namespace) -> None:
    report = measure(options)
    alone = report["one_client"]["tokens_per_minute"]
    lines = [
        f"Python {platform.python_version()}",
        f"one client, chain: {alone:,} committed tokens per minute of one core",
        f"crowd over {MINUTES} minutes, {report['crowd_network']}, {report['replicas']} verifiers:",
    ]
    finish(options, report, [*lines, *table(report["crowd"])])


if __name__ == "__main__":
    sys.exit(main())
