"""The adaptive policy against the best fixed setting, and in worlds drawn at random; simulated.

    python -m benchmarks.adaptation best --json     # fixed round trips, changes, measured traces
    python -m benchmarks.adaptation settled --json  # how soon is it at home after a change?
    python -m benchmarks.adaptation random --json   # is it ever slower than server streaming?
    python -m benchmarks.adaptation wins --json     # which other scheme is ever faster, and where?

`best` searches a grid of chains and trees in each world, on the seeds that it reports on, so the best fixed
setting is chosen with hindsight; the adaptive policy has one setting for all of them. `random` draws worlds
of every kind, useless ones among them, and compares with a verifier that streams alone. `wins` meets every
published scheme, in the ten steady worlds and in drawn ones.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.wins import ADAPTIVE, STREAMING, in_words, pace, wins
from common.errors import UserError
from simulator.drafts import BetaDraft
from simulator.files import experiment_from
from simulator.link import LinkSpec
from simulator.pool import Pool
from simulator.traces import Trace
from simulator.world import DeviceSpec, StepChange, VerifierSpec, World

FIXED = [
    *(f"chain:cut={cut}" for cut in (0.005, 0.02, 0.1)),
    *(
        f"tree:width={width},max_children={children},cut={cut}"
        for width, children, cut in itertools.product((1, 2, 4, 8), (2, 4), (0.0005, 0.002, 0.01))
    ),
    STREAMING,
]
RTT_PHASES = ((0.0, 0.020), (6.0, 0.300), (12.0, 0.020))
"""From when on a round trip takes how long, seconds; after 18 s it begins again."""

STEP_PHASES = ((0.0, 0.010), (6.0, 0.060), (12.0, 0.010))
SETTLED = 1.5  # seconds after a change; from then on a policy should be as fast as if nothing had changed


def fixed_worlds(folder: Path | None) -> dict[str, World]:
    """Names and worlds: steady ones, one whose link changes, one whose verifier does, measured traces."""
    base, found = World(tokens=600, draft=BetaDraft(mean=0.8)), steady_worlds()
    found["rtt 20 to 300 to 20 ms"] = changing_rtt(base)
    found["step 10 to 60 to 10 ms"] = changing_step(base)
    for path in sorted(folder.glob("*.csv")) if folder is not None else ():
        document = {"link": {"trace": str(path.resolve()), "trace_floor_ms": 40}}
        found[f"trace {path.stem}"] = replace(base, link=experiment_from(document).world.link)
    return found


def steady_worlds() -> dict[str, World]:
    """Those of docs/simulation.md's table."""
    return {
        f"rtt {rtt} ms, acceptance {mean}": World(
            link=LinkSpec(rtt=rtt * 1e-3), draft=BetaDraft(mean=mean), tokens=600
        )
        for rtt in (10, 30, 60, 100, 200)
        for mean in (0.7, 0.85)
    }


def changing_rtt(base: World) -> World:
    """It changes in the midst of the text."""
    trace = Trace("changes", tuple(at for at, _ in RTT_PHASES), tuple(rtt for _, rtt in RTT_PHASES))
    return replace(base, link=LinkSpec(trace=trace), tokens=1700)


def changing_step(base: World) -> World:
    """The verifier changes its pace."""
    changes = tuple(StepChange(at, step) for at, step in STEP_PHASES[1:])
    verifier = VerifierSpec(STEP_PHASES[0][1], step_changes=changes)
    return replace(base, verifier=verifier, tokens=2800)


def settled(pool: Pool, seeds: int) -> list[dict[str, Any]]:
    """Tokens per second from `SETTLED` after a change until the next, over those of a steady world."""
    base, found = World(draft=BetaDraft(mean=0.8), tokens=900), list[dict[str, Any]]()
    cases = [("rtt", changing_rtt(base), at, value) for at, value in RTT_PHASES[1:]]
    cases += [("step", changing_step(base), at, value) for at, value in STEP_PHASES[1:]]
    for kind, world, at, value in cases:
        steady = replace(base, link=LinkSpec(rtt=value)) if kind == "rtt" else _steady_step(base, value)
        numbers = range(1, seeds + 1)
        changed, same = (
            [result[0] for result in pool.map((ADAPTIVE, replace(w, seed=seed)) for seed in numbers)]
            for w in (world, steady)
        )
        window = (at + SETTLED, min(at + 6.0, *(result.arrivals[-1] for result in changed)))
        rates = [sum(window[0] <= when < window[1] for when in result.arrivals) for result in changed]
        reached = fmean(rates) / (window[1] - window[0]) * fmean(map(pace, same)) / 1e3
        found.append({"change": f"{kind} to {1e3 * value:g} ms", "share_of_steady_rate": round(reached, 3)})
    return found


def _steady_step(base: World, step: float) -> World:
    return replace(base, verifier=VerifierSpec(step_time=step))


def random_world(number: int) -> World:
    """World `number` of all that may be drawn: useless links, slow drafts, wrong drafts among them."""
    draw = random.Random(number)  # not security

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    step, draft = between(0.004, 0.120), between(0.002, 0.150)
    link = LinkSpec(
        rtt=draw.uniform(0.0, 0.4),
        jitter=draw.choice((0.0, 0.0, 0.002, 0.010, 0.030)) * draw.random(),
        loss=draw.choice((0.0, 0.0, 0.005, 0.02)),
    )
    per_node = draft * draw.uniform(0.03, 0.9)
    verifier = VerifierSpec(step, step * draw.choice((0.0005, 0.002, 0.01, 0.03)))
    agreement = BetaDraft(mean=draw.uniform(0.0, 0.98))
    second = draw.choice((0.0, 3.7)) * draft  # kernels for several rows may be dear for two
    rows = ((1, draft), (2, second), (4, 1.5 * second), (8, 1.6 * second)) if second else ()
    read = draw.choice((0.0, 0.1, 0.3)) * draft  # a token of a long prompt
    device = DeviceSpec(
        draft,
        per_node,
        draft_times=rows,
        read_times=((1, draft), (32, draft + 31 * read)) if read else (),
        wake_time=draw.choice((0.0, 0.5)) * draft,
    )
    return World(link, device, verifier, agreement, tokens=400, seed=number + 1)


def best(pool: Pool, folder: Path | None, seeds: int) -> list[dict[str, Any]]:
    """Each world: what the adaptive policy takes, and the fixed setting that is best in it."""
    worlds, policies = fixed_worlds(folder), [ADAPTIVE, *FIXED]
    jobs = (
        (policy, replace(world, seed=seed))
        for world in worlds.values()
        for policy in policies
        for seed in range(1, seeds + 1)
    )
    results, found = pool.map(jobs), list[dict[str, Any]]()
    for name in worlds:
        paces = {policy: fmean(pace(next(results)[0]) for _ in range(seeds)) for policy in policies}
        fixed = min(FIXED, key=paces.__getitem__)
        found.append(
            {
                "world": name,
                "adaptive_ms": round(paces[ADAPTIVE], 3),
                "best_fixed": fixed,
                "best_fixed_ms": round(paces[fixed], 3),
                "streaming_ms": round(paces[STREAMING], 3),
                "ratio": round(paces[ADAPTIVE] / paces[fixed], 4),
            }
        )
        print(f"… {name}: {found[-1]['ratio']}", file=sys.stderr, flush=True)
    return found


def drawn(pool: Pool, policies: Sequence[str], num_worlds: int) -> dict[str, Any]:
    """For each policy: ms per token over server streaming's, in every world."""
    worlds = [random_world(number) for number in range(num_worlds)]
    names = [STREAMING, *policies]
    results = pool.map((policy, world) for policy in names for world in worlds)
    runs = {policy: [next(results)[0] for _ in worlds] for policy in names}
    base = [pace(result) for result in runs[STREAMING]]
    report = {}
    for policy in policies:
        ratios = [pace(result) / slow for result, slow in zip(runs[policy], base, strict=True)]
        worst = max(range(num_worlds), key=ratios.__getitem__)
        whole = [a.arrivals[-1] / b.arrivals[-1] for a, b in zip(runs[policy], runs[STREAMING], strict=True)]
        report[policy] = {
            "geometric_mean": round(math.exp(fmean(map(math.log, ratios))), 4),
            "worst": round(ratios[worst], 4),
            "worst_world": worst,
            "worst_with_first_token": round(max(whole), 4),
            "slower_by_2_percent": sum(ratio > 1.02 for ratio in ratios),
            "draft_steps_per_s": round(fmean(r.stats.draft_steps / r.arrivals[-1] for r in runs[policy]), 2),
        }
    return {"worlds": num_worlds, "policies": report}


def against_all(pool: Pool, seeds: int, num_worlds: int) -> dict[str, Any]:
    """`wins` in the steady worlds, `seeds` each, and in as many drawn ones, one seed each."""
    many = {str(number): random_world(number) for number in range(num_worlds)}
    return {"steady": wins(pool, steady_worlds(), seeds, seeds), "random": wins(pool, many, 1, seeds)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.adaptation", description=__doc__.splitlines()[0]
    )
    option = parser.add_argument
    option("what", choices=("best", "settled", "random", "wins"))
    option("--seeds", type=int, default=6, metavar="N", help="of each world of `best`, `wins` (%(default)s)")
    option("--worlds", type=int, default=1000, metavar="N", help="of `random`, `wins` (%(default)s)")
    option("--policy", action="append", metavar="NAME", help="of `random` (adaptive)")
    option("--traces", type=Path, metavar="FOLDER", help="CSV files with time_s,rtt_ms, for `best`")
    option("--workers", type=int, default=0, metavar="N", help="processes; 0 = one per processor")
    option("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if min(options.seeds, options.worlds) < 1:
        parser.error("--seeds and --worlds must be at least 1")
    try:
        with Pool(options.workers) as pool:
            report: Any
            if options.what == "best":
                report = best(pool, options.traces, options.seeds)
            elif options.what == "settled":
                report = settled(pool, options.seeds)
            elif options.what == "wins":
                report = against_all(pool, options.seeds, options.worlds)
            else:
                report = drawn(pool, options.policy or [ADAPTIVE], options.worlds)
    except UserError as error:
        parser.error(str(error))
    print(json.dumps(report, indent=2) if options.json else _in_words(report))
    return 0


def _in_words(report: Any) -> str:
    if isinstance(report, list) and "change" in report[0]:
        return "\n".join(
            f"{row['change']}: {row['share_of_steady_rate']:.3f} of the rate of a world that was always so, "
            f"from {SETTLED} s after it"
            for row in report
        )
    if isinstance(report, list):
        return "\n".join(
            f"{row['world']}: {row['adaptive_ms']:.2f} ms per token, {row['ratio']:.3f} times the best fixed "
            f"setting's ({row['best_fixed']})"
            for row in report
        )
    if "steady" in report:
        return "\n\n".join(f"{kind} worlds\n{in_words(part)}" for kind, part in report.items())
    return "\n".join(
        f"{policy}: {row['geometric_mean']:.3f} of server streaming's time per token on average, at worst "
        f"{row['worst']:.3f} (world {row['worst_world']}) of {report['worlds']}"
        for policy, row in report["policies"].items()
    )


if __name__ == "__main__":
    sys.exit(main())
