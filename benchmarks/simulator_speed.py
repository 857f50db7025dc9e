"""How fast the simulator is, on one core: `python -m benchmarks.simulator_speed [--trace FILE] [--json]`.

Two worlds. One client under the chain policy: committed tokens per minute of computing. And a crowd: 500
clients with a text about once a minute each, ten minutes long, on one verifier; with --trace over a measured
network, else over the profile lte: seconds of computing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.arrivals import Poisson
from simulator.files import experiment_from
from simulator.knowledge import BetaDraft
from simulator.schemes import run_scheme
from simulator.system import SessionResult
from simulator.world import World

CLIENTS, MINUTES = 500, 10
TOKENS = 200  # of each text of the crowd


def one_client(tokens: int, repeats: int) -> dict[str, Any]:
    """The best of `repeats` runs: the others had less of the machine."""
    world = World(tokens=tokens, draft=BetaDraft(mean=0.85))
    run_scheme("chain", replace(world, tokens=100))  # tables are made now
    seconds = min(_timed("chain", world)[0] for _ in range(repeats))
    return {"tokens": tokens, "seconds": round(seconds, 3), "tokens_per_minute": round(60 * tokens / seconds)}


def crowd(scheme: str, link: dict[str, Any], share: float) -> dict[str, Any]:
    """`share` of the clients, all of the minutes."""
    sessions = round(CLIENTS * MINUTES * share)
    document = {"link": link, "tokens": TOKENS, "draft": {"mean": 0.8}}
    arrivals = Poisson(sessions / (60.0 * MINUTES), sessions)
    world = replace(experiment_from(document).world, arrivals=arrivals)
    seconds, results = _timed(scheme, world)
    committed = sum(len(result.tokens) for result in results)
    return {
        "scheme": scheme,
        "clients": round(CLIENTS * share),
        "texts": sessions,
        "tokens": committed,
        "seconds": round(seconds, 1),
        "tokens_per_minute": round(60 * committed / seconds),
    }


def _timed(scheme: str, world: World) -> tuple[float, list[SessionResult]]:
    """Seconds of this process, so that others on the machine count less."""
    began = time.process_time()
    results = run_scheme(scheme, world)
    return time.process_time() - began, results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator_speed")
    option = parser.add_argument
    option("--tokens", type=int, default=6000, metavar="N", help="of the one client's text (%(default)s)")
    option("--repeats", type=int, default=3, metavar="N", help="runs of it; the best counts (%(default)s)")
    option("--scheme", action="append", metavar="NAME", help="of the crowd (server_streaming and forerun)")
    option("--share", type=float, default=1.0, metavar="X", help="of the crowd: 0.1 = 50 (%(default)s)")
    option("--trace", type=Path, metavar="FILE", help="a CSV with time_s,rtt_ms for the crowd's network")
    option("--floor", type=float, default=40.0, metavar="MS", help="put below the trace (%(default)s)")
    option("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    measured = options.trace is not None
    link = (
        {"trace": str(options.trace.resolve()), "trace_floor_ms": options.floor}
        if measured
        else {"profile": "lte"}
    )
    report: dict[str, Any] = {"one_client": one_client(options.tokens, options.repeats), "crowd": []}
    report["crowd_network"] = options.trace.name if measured else "profile lte"
    for scheme in options.scheme or ["server_streaming", "forerun"]:
        print(f"… {CLIENTS * options.share:g} clients, {scheme}", file=sys.stderr, flush=True)
        report["crowd"].append(crowd(scheme, link, options.share))
    print(json.dumps(report, indent=2) if options.json else _in_words(report))
    return 0


def _in_words(report: dict[str, Any]) -> str:
    alone = report["one_client"]
    lines = [f"one client, chain: {alone['tokens_per_minute']:,} committed tokens per minute of one core"]
    lines += [
        f"{row['clients']} clients over {MINUTES} minutes ({row['texts']} texts, {row['tokens']:,} tokens, "
        f"{report['crowd_network']}), {row['scheme']}: {row['seconds']:.0f} s of one core"
        for row in report["crowd"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
