"""Three times as many texts as a verifier can serve, in open loop: what those feel that are let in.

Run `python -m benchmarks.overload --json`. First one text alone, again and again; then texts arrive by chance
(a Poisson process, by seed) at `--times` the rate at which the verifier's sessions become free, whatever
becomes of those before. Each is written without drafts. *Gaps* are between one commit and the next of a text,
at the client; *refusals* are the times until a client knows that it is turned away, and when to come again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults.recovery import percentile
from common.errors import CapacityError
from common.sampling import SamplingParams
from demo_models import TARGET_DIR
from edge_client.channel import VerifierChannel
from edge_client.core.config import SessionConfig
from edge_client.core.policies import make_policy
from edge_client.core.session import EdgeSession
from edge_client.generation import Generation
from forerun.rig import START_TIMEOUT, Child

SHARES = (0.5, 0.95, 0.99)


@dataclass(slots=True)
class Seen:
    """What the texts of one measurement were like; seconds."""

    gaps: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    num_told_when: int = 0  # refusals that said when to come again
    num_whole: int = 0


class Asker:
    """Asks the verifier at `address` for texts of `tokens` tokens."""

    def __init__(self, channel: VerifierChannel, fingerprint: bytes, tokens: int) -> None:
        self._channel, self._fingerprint, self._tokens = channel, fingerprint, tokens

    async def text(self, number: int, seen: Seen) -> None:
        """One, to its end or its refusal."""
        sampling = SamplingParams(max_tokens=self._tokens, ignore_eos=True, temperature=1.0, seed=number)
        prompt = tuple(20 + (number * 7 + place) % 200 for place in range(24))
        config = SessionConfig(prompt, sampling, self._fingerprint, max_attempts=0, patience=None)
        generation = Generation(EdgeSession(config, make_policy("off")), self._channel, None)
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


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One verifier, alone and then flooded."""
    verifier = await Child.start(
        "verifier", "verify", "--model", str(TARGET_DIR), "--listen", "127.0.0.1:0", "--json",
        "--threads", "1", "--step-floor", str(options.step_floor),
        "--max-sessions", str(options.sessions), "--no-recall",
    )  # fmt: skip
    try:
        address = (await verifier.read(START_TIMEOUT))["listening"]
        async with VerifierChannel(address) as channel:
            asker = Asker(channel, (await channel.describe()).fingerprint, options.tokens)
            alone = Seen()
            took = await _alone(asker, alone, options.alone)
            rate = options.times * options.sessions / took
            flooded = Seen()
            await _flood(asker, flooded, rate, options.seconds, options.seed)
    finally:
        await verifier.stop()
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
        "p99_ratio": _ratio(flooded.gaps, alone.gaps, 0.99),
    }


async def _alone(asker: Asker, seen: Seen, texts: int) -> float:
    """One after the other; seconds that a text takes."""
    began = time.monotonic()
    for number in range(texts):
        await asker.text(number, seen)
    return (time.monotonic() - began) / texts


async def _flood(asker: Asker, seen: Seen, rate: float, seconds: float, seed: int) -> None:
    chance, texts = random.Random(seed), set[asyncio.Task[None]]()
    at = began = time.monotonic()
    number = 1000
    while at < began + seconds:
        at += chance.expovariate(rate)
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        texts.add(asyncio.create_task(asker.text(number, seen)))
        number += 1
    await asyncio.gather(*texts)


def _shares(seconds: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(seconds)
    found = {f"p{share * 100:.0f}": percentile(ordered, share) for share in SHARES}
    found["longest"] = ordered[-1] if ordered else None
    return {name: None if value is None else round(value * 1e3, 2) for name, value in found.items()}


def _ratio(ours: Sequence[float], other: Sequence[float], share: float) -> float | None:
    one, two = percentile(sorted(ours), share), percentile(sorted(other), share)
    return None if one is None or not two else round(one / two, 3)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.overload", description=__doc__)
    option = parser.add_argument
    option("--sessions", type=int, default=8, metavar="N", help="that the verifier takes (%(default)s)")
    option("--times", type=float, default=3.0, metavar="N", help="of its capacity (%(default)s)")
    option("--tokens", type=int, default=60, metavar="N", help="of a text (%(default)s)")
    option("--seconds", type=float, default=20.0, metavar="S", help="of the flood (%(default)s)")
    option("--alone", type=int, default=5, metavar="N", help="texts before it (%(default)s)")
    option("--step-floor", type=float, default=30.0, metavar="MS", help="of the target (%(default)s)")
    option("--seed", type=int, default=1)
    option("--json", action="store_true", help="on one line")
    options = parser.parse_args(arguments)
    report = asyncio.run(measure(options))
    sys.stdout.write(json.dumps(report, indent=None if options.json else 1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
