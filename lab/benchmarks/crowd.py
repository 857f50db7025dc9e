"""Measures a crowd: simulated devices that draft beside devices that stream, or an overloaded real verifier.

    python -m lab.benchmarks.crowd simulated --json
    python -m lab.benchmarks.crowd overload --json --seconds 10

`simulated`: in each world half of the devices, or all of them, draft; the same world with streams only
is the baseline. Reported are ms per token of both kinds, and how much longer the streaming devices take than
in the baseline, the worst of them included. `liar` sends wrong nodes and calls each of them certain.

`overload`: first one text alone, again and again; then texts arrive in a Poisson process at `--times` the
rate at which the verifier's sessions become free. Each is written without drafts. Gaps lie between successive
commits of a text, at the client; refusal times end when a client has its refusal.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from common.errors import CapacityError, UserError
from common.sampling import SamplingParams
from common.tree import Node
from edge_client.core.nouns import SessionConfig
from edge_client.core.policies import GrowthPolicy, GrowthView, TokenCandidate, TreePolicy, make_policy
from edge_client.core.session import EdgeSession
from edge_client.network.channel import VerifierChannel
from edge_client.network.generation import Generation
from forerun.rig import Processes
from lab.bench.report import add_report, finish, settings_of, table
from lab.benchmarks.reports import carry_out, plain_parser_of
from lab.demo_models import TARGET_DIR
from simulator.drafts import BetaDraft
from simulator.figures import SessionResult, pace, percentile
from simulator.knowledge import Knowledge
from simulator.link import LinkSpec
from simulator.system import simulate
from simulator.world import VerifierSpec, World

STREAMING, LIAR = "off", "liar"


# Simulated --------------------------------------------------------------------------------------------------


class LiarPolicy:
    """Sends eight nodes a step, the worst candidates of each place, all of them called certain."""

    name = LIAR
    fill = True

    def __init__(self) -> None:
        self._tree = TreePolicy()

    def branch(
        self, view: GrowthView, node: Node, candidates: Sequence[TokenCandidate]
    ) -> Sequence[TokenCandidate]:
        return [TokenCandidate(candidate.token, 0.0) for candidate in candidates[-4:]]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        return self._tree.expand(view)

    def send(self, view: GrowthView) -> Sequence[Node]:
        return self._tree.send(view)


@dataclass(slots=True)
class Crowd:
    """Gives devices their policies in turn and records them. Every `every`-th device drafts; 0 = none."""

    policy: str
    every: int
    given: list[str] = field(default_factory=list)

    def __call__(self, knowledge: Knowledge) -> GrowthPolicy:
        drafts = self.every > 0 and len(self.given) % self.every == 0
        self.given.append(self.policy if drafts else STREAMING)
        return LiarPolicy() if self.given[-1] == LIAR else make_policy(self.given[-1])


def run(world: World, policy: str, every: int) -> list[tuple[str, SessionResult]]:
    """Return every device's policy and result."""
    crowd = Crowd(policy, every)
    results = simulate(world, crowd)
    return list(zip(crowd.given, results, strict=True))


def compared(make: Callable[[int], World], policy: str, every: int, seeds: int) -> dict[str, Any]:
    """Compare a crowd, over all seeds, with the same crowd of streaming devices."""
    baseline, drafting, streaming, slower = [], [], [], []
    rows = tokens = steps = sent = 0
    for seed in range(1, seeds + 1):
        alone = [pace([result.as_run()]) for _, result in run(make(seed), policy, 0)]
        baseline += alone
        for place, (given, result) in enumerate(run(make(seed), policy, every)):
            own = pace([result.as_run()])
            if given == STREAMING:
                streaming.append(own)
                slower.append(own / alone[place] - 1.0)
            else:
                drafting.append(own)
                rows += result.stats.evaluated
                steps += result.stats.target_steps
                tokens += len(result.tokens)
                sent += result.stats.proposed
    found = {
        "all_streaming_ms": round(fmean(baseline), 2),
        "drafting_ms": round(fmean(drafting), 2),
        "drafting_worst_ms": round(max(drafting), 2),
        "drafting_rows_per_step": round(rows / steps, 2),
        "drafting_tokens_per_step": round(tokens / steps, 2),
        "drafting_sent_per_token": round(sent / tokens, 2),
    }
    if streaming:
        found |= {
            "streaming_ms": round(fmean(streaming), 2),
            "slower_by": round(fmean(slower), 4),
            "slower_by_at_worst": round(max(slower), 4),
        }
    return found


def _simulated(options: argparse.Namespace) -> None:
    if min(options.seeds, *options.clients) < 1:
        raise UserError("--seeds and --clients must be at least 1")
    found = []
    for row_ms, clients, policy, every in itertools.product(
        options.row, options.clients, options.policy, (2, 1)
    ):

        def world_of(seed: int, clients: int = clients, row_ms: float = row_ms) -> World:
            verifier = VerifierSpec(step_time_per_node=row_ms * 1e-3, max_slowdown=options.max_slowdown)
            return World(
                LinkSpec(rtt=options.rtt * 1e-3),
                verifier=verifier.with_product_limits(),
                draft=BetaDraft(mean=options.acceptance),
                tokens=options.tokens,
                clients=clients,
                seed=seed,
            )

        row = {"row_ms": row_ms, "clients": clients, "policy": policy, "drafting": 1 / every}
        found.append(row | compared(world_of, policy, every, options.seeds))
        print(f"… {found[-1]}", file=sys.stderr, flush=True)
    finish(options, {"settings": settings_of(options), "crowds": found}, table(found))


# Overload ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SeenSteps:
    """Holds what one measurement saw of its texts; seconds."""

    gaps: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    num_told_when: int = 0  # refusals that said when to come again
    num_whole: int = 0


async def write(
    channel: VerifierChannel, fingerprint: bytes, tokens: int, number: int, seen: SeenSteps
) -> None:
    """Write one text to its end or its refusal."""
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=1.0, seed=number)
    prompt = tuple(20 + (number * 7 + place) % 200 for place in range(24))
    config = SessionConfig(prompt, sampling, fingerprint, max_attempts=0, patience=None)
    generation = Generation(EdgeSession(config, make_policy(STREAMING)), channel, None)
    began, before = time.monotonic(), 0.0
    try:
        async for _ in generation:
            now = time.monotonic()
            if before:
                seen.gaps.append(now - before)
            before = now
        seen.num_whole += 1
    except CapacityError as error:
        seen.refusals.append(time.monotonic() - began)
        seen.num_told_when += error.retry_after is not None


async def overloaded(options: argparse.Namespace) -> dict[str, Any]:
    """Measure one verifier alone and then flooded."""
    alone, flooded, chance = SeenSteps(), SeenSteps(), random.Random(options.seed)
    given = ["--model", str(TARGET_DIR), "--threads", "1", "--step-floor", str(options.step_floor)]
    given += ["--max-sessions", str(options.sessions), "--no-recall"]
    async with Processes(pin=False) as processes:
        _, address = await processes.start_verifier(*given)
        async with VerifierChannel(address) as channel:
            text = partial(write, channel, (await channel.describe()).fingerprint, options.tokens)
            began = time.monotonic()
            for number in range(options.alone):
                await text(number, alone)
            rate = options.times * options.sessions * options.alone / (time.monotonic() - began)
            async with asyncio.TaskGroup() as texts:
                at = began = time.monotonic()
                for number in itertools.count(1000):
                    if at >= began + options.seconds:
                        break
                    at += chance.expovariate(rate)
                    await asyncio.sleep(max(0.0, at - time.monotonic()))
                    texts.create_task(text(number, flooded))
    ours, other = percentile(flooded.gaps, 99), percentile(alone.gaps, 99)
    return {
        "step_floor_ms": options.step_floor,
        "sessions": options.sessions,
        "times_capacity": options.times,
        "arrivals_per_s": round(rate, 2),
        "alone": {"texts": alone.num_whole, "gap_ms": _shares(alone.gaps)},
        "flooded": {
            "texts": flooded.num_whole,
            "gap_ms": _shares(flooded.gaps),
            "refused": len(flooded.refusals),
            "told_when_to_come_again": flooded.num_told_when,
            "refusal_ms": _shares(flooded.refusals),
        },
        "p99_ratio": round(ours / other, 3) if ours and other else None,
    }


def _shares(seconds: Sequence[float]) -> dict[str, float | None]:
    values = {f"p{share}": percentile(seconds, share) for share in (50, 95, 99, 100)}
    return {name: None if value is None else round(1e3 * value, 2) for name, value in values.items()}


def _overload(options: argparse.Namespace) -> None:
    report = asyncio.run(overloaded(options))
    finish(options, report, [f"{name}: {value}" for name, value in report.items()])


# The command line -------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = plain_parser_of("crowd", __doc__)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    simulated = actions.add_parser("simulated", help="devices that draft beside devices that stream")
    option = simulated.add_argument
    option("--clients", type=int, nargs="+", default=[4, 16, 32, 64], metavar="N")
    option("--row", type=float, nargs="+", default=[0.05, 0.3], metavar="MS", help="time per target row")
    option("--policy", nargs="+", default=["adaptive", LIAR], metavar="NAME")
    option("--rtt", type=float, default=60.0, metavar="MS")
    option("--acceptance", type=float, default=0.8, metavar="MEAN")
    option("--tokens", type=int, default=200, metavar="N", help="tokens of each text (%(default)s)")
    option("--seeds", type=int, default=2, metavar="N", help="seeds of each world (%(default)s)")
    option("--max-slowdown", type=float, default=0.02, metavar="SHARE", help="as in forerun verify")
    simulated.set_defaults(run=_simulated)
    overload = actions.add_parser("overload", help="more texts than a real verifier can serve")
    option = overload.add_argument
    option("--sessions", type=int, default=8, metavar="N", help="verifier's sessions (%(default)s)")
    option("--times", type=float, default=3.0, metavar="N", help="load over capacity (%(default)s)")
    option("--tokens", type=int, default=60, metavar="N", help="tokens of a text (%(default)s)")
    option("--seconds", type=float, default=20.0, metavar="S", help="length of the flood (%(default)s)")
    option("--alone", type=int, default=5, metavar="N", help="texts before the flood (%(default)s)")
    option("--step-floor", type=float, default=30.0, metavar="MS", help="target step time (%(default)s)")
    option("--seed", type=int, default=1)
    overload.set_defaults(run=_overload)
    for each in (simulated, overload):
        add_report(each)
    return carry_out("crowd", parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
