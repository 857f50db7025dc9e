"""What Ray Serve's proxy costs: one verifier reached directly and one through Ray, in turn.

    python -m benchmarks.ray_proxy --json

Both serve the demo target over links of the same delay and write the same texts, once without drafts and once
with them. Drafter and verifier have a core each, where there are two; Ray's proxy has what they leave.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.rig_options import add_rig
from common.errors import ForerunError
from forerun.prompts import bundled
from forerun.rig import START_TIMEOUT, Child, Rig, RigSettings, check_models

POLICIES = ("off", "adaptive")


class RayRig(Rig):
    """A rig whose link goes to a Ray cluster. The verifier that any rig has is there and idle."""

    async def _reach(self, verifier: str) -> str:
        args: dict[str, Any] = {
            "model": self.settings.target,
            "step_floor": self.settings.step_floor_ms,
            "recall": False,
            "privacy": self.settings.privacy,
            "log_level": "warning",
        }
        if core := self._core(1):
            args["core"] = int(core[1])
        cluster = await Child.start("cluster", "--args", json.dumps(args), module="benchmarks.ray_cluster")
        self._stack.push_async_callback(cluster.stop, 60.0)
        address: str = (await cluster.read(2 * START_TIMEOUT))["listening"]
        return address


@dataclass(frozen=True, slots=True)
class Run:
    """One text, in milliseconds."""

    first: float
    token: float  # each of the others, on the average


async def measure(settings: RigSettings, prompts: Sequence[str], tokens: int) -> dict[str, Any]:
    """Medians over the prompts, and ratios of Ray to direct. Raises `ForerunError` if a part does not start,
    and if the texts differ."""
    async with contextlib.AsyncExitStack() as stack:
        rigs = [await stack.enter_async_context(kind(settings)) for kind in (Rig, RayRig)]
        found = dict[str, Any]()
        for policy in POLICIES:
            runs = [list[Run](), list[Run]()]
            for prompt in (prompts[0], *prompts):  # what comes first is slower, and is not counted
                texts = []
                for rig, own in zip(rigs, runs, strict=True):
                    done = await rig.complete(prompt, policy, {"max_tokens": tokens, "ignore_eos": True})
                    texts.append(done["tokens"])
                    own.append(_run(done["arrivals_ms"]))
                assert texts[0] == texts[1], "one target has one text"
            found[policy] = _compared(*(own[1:] for own in runs))
    return found


def _run(arrivals: Sequence[float]) -> Run:
    return Run(arrivals[0], (arrivals[-1] - arrivals[0]) / (len(arrivals) - 1))


def _compared(direct: Sequence[Run], ray: Sequence[Run]) -> dict[str, float]:
    found = dict[str, float]()
    for name, each in (("ttft_ms", "first"), ("ms_per_token", "token")):
        ours, rays = (median(getattr(run, each) for run in runs) for runs in (direct, ray))
        found |= {f"{name}_direct": round(ours, 2), f"{name}_ray": round(rays, 2)}
        found[f"{name}_ratio"] = round(rays / ours, 3)
    return found


def main() -> int:
    """Prints an object, with --json on one line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_rig(parser)
    option = parser.add_argument
    option("--prompts", type=int, default=6, metavar="N", help="(%(default)s)")
    option("--tokens", type=int, default=96, metavar="N", help="of each text (%(default)s)")
    option("--json", action="store_true", help="on one line")
    options = parser.parse_args()
    settings = RigSettings(
        str(options.target), str(options.draft), rtt_ms=options.rtt, step_floor_ms=options.step_floor
    )
    try:
        check_models(options.target, options.draft)
        found = asyncio.run(measure(settings, bundled()[: options.prompts], options.tokens))
    except ForerunError as error:
        print(error, file=sys.stderr)
        return 2
    told = {"rtt_ms": options.rtt, "step_floor_ms": options.step_floor, "tokens": options.tokens}
    print(json.dumps({**told, **found}, indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
