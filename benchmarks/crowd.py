"""What a crowd costs those in it: devices that draft beside devices that only stream; simulated.

    python -m benchmarks.crowd --json

In each world half of the devices, or all of them, draft; the same world in which all only stream is the
baseline. Reported are ms per token of both kinds, and how much longer those who only stream take than in the
baseline, the worst of them included. `liar` sends wrong nodes and says that each is certain.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from benchmarks.wins import pace
from common.errors import UserError
from common.tree import Node
from edge_client.core.policies import Candidate, GrowthPolicy, GrowthView, TreePolicy, make_policy
from simulator.drafts import BetaDraft
from simulator.knowledge import Knowledge
from simulator.link import LinkSpec
from simulator.results import SessionResult
from simulator.system import simulate
from simulator.world import VerifierSpec, World

STREAMING, LIAR = "off", "liar"


class LiarPolicy:
    """Eight nodes a step, the worst candidates of each place, all of them called certain."""

    name = LIAR
    fill = True

    def __init__(self) -> None:
        self._tree = TreePolicy()  # no base class: an interpreted class cannot extend a compiled one

    def branch(self, view: GrowthView, node: Node, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return [Candidate(candidate.token, 0.0) for candidate in candidates[-4:]]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        return self._tree.expand(view)

    def send(self, view: GrowthView) -> Sequence[Node]:
        return self._tree.send(view)


def policy_named(name: str) -> GrowthPolicy:
    return LiarPolicy() if name == LIAR else make_policy(name)


@dataclass(slots=True)
class Crowd:
    """Gives every device its policy in turn, and remembers which. Every `every`-th one drafts; 0 = none."""

    policy: str
    every: int
    given: list[str] = field(default_factory=list)

    def __call__(self, knowledge: Knowledge) -> GrowthPolicy:
        drafts = self.every > 0 and len(self.given) % self.every == 0
        self.given.append(self.policy if drafts else STREAMING)
        return policy_named(self.given[-1])


def world_of(clients: int, per_row: float, options: argparse.Namespace, seed: int) -> World:
    """Rows and nodes are limited as `forerun verify` does."""
    verifier = VerifierSpec(step_time_per_node=per_row, max_slowdown=options.max_slowdown)
    return World(
        LinkSpec(rtt=options.rtt * 1e-3),
        verifier=verifier.with_product_limits(),
        draft=BetaDraft(mean=options.acceptance),
        tokens=options.tokens,
        clients=clients,
        seed=seed,
    )


def run(world: World, policy: str, every: int) -> list[tuple[str, SessionResult]]:
    """Every device's policy and what came of it."""
    crowd = Crowd(policy, every)
    results = simulate(world, crowd)
    return list(zip(crowd.given, results, strict=True))


def compared(make: Callable[[int], World], policy: str, every: int, seeds: int) -> dict[str, Any]:
    """One crowd, over all seeds, beside the same where all stream."""
    baseline, drafting, streaming, slower = [], [], [], []
    rows = tokens = steps = sent = 0
    for seed in range(1, seeds + 1):
        alone = [pace(result) for _, result in run(make(seed), policy, 0)]
        baseline += alone
        for place, (given, result) in enumerate(run(make(seed), policy, every)):
            if given == STREAMING:
                streaming.append(pace(result))
                slower.append(streaming[-1] / alone[place] - 1.0)
            else:
                drafting.append(pace(result))
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


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All crowds, one after the other."""
    found = []
    for per_row_ms in options.row:
        for clients in options.clients:
            for policy in options.policy:
                for every in (2, 1):
                    make = partial(world_of, clients, per_row_ms * 1e-3, options)
                    figures = compared(make, policy, every, options.seeds)
                    row = {"row_ms": per_row_ms, "clients": clients, "policy": policy, "drafting": 1 / every}
                    found.append(row | figures)
                    print(f"… {line(found[-1])}", file=sys.stderr, flush=True)
    return found


def line(row: dict[str, Any]) -> str:
    """For people."""
    text = (
        f"{row['clients']} devices, a row {row['row_ms']:g} ms, {row['drafting']:.0%} of them "
        f"{row['policy']}: {row['drafting_ms']:.1f} ms, {row['drafting_sent_per_token']:.1f} nodes a token"
    )
    if "slower_by" in row:
        text += f", the others {row['slower_by']:+.1%} (at worst {row['slower_by_at_worst']:+.1%})"
    return f"{text}; all streaming {row['all_streaming_ms']:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd", description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--clients", type=int, nargs="+", default=[4, 16, 32, 64], metavar="N")
    option(
        "--row", type=float, nargs="+", default=[0.05, 0.3], metavar="MS", help="of the target, each further"
    )
    option("--policy", nargs="+", default=["adaptive", LIAR], metavar="NAME")
    option("--rtt", type=float, default=60.0, metavar="MS")
    option("--acceptance", type=float, default=0.8, metavar="MEAN")
    option("--tokens", type=int, default=200, metavar="N", help="of each text (%(default)s)")
    option("--seeds", type=int, default=2, metavar="N", help="of each world (%(default)s)")
    option("--max-slowdown", type=float, default=0.02, metavar="SHARE", help="as of forerun verify")
    option("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if min(options.seeds, *options.clients) < 1:
        parser.error("--seeds and --clients must be at least 1")
    try:
        found = measure(options)
    except UserError as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps({"settings": vars(options), "crowds": found}, indent=1))
    else:
        print("\n".join(map(line, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
