"""What privacy on the wire costs, and what an observer still learns: the three levels side by side.

    python -m benchmarks.privacy --json > privacy.json

Three systems, one of each level, write the same texts in turn: some prompts, each with several seeds. Bytes
are those of the TCP connections, prompts included. Beside the costs stands how often somebody who has seen
texts of each prompt before names the prompt of another by its frames alone (`benchmarks.telling`): by their
sizes, by the times between them, by their number, and by all. Chance is what guessing gives.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from benchmarks.rig_options import add_rig
from benchmarks.tap import Talk, Tap
from benchmarks.telling import accuracy, gaps, of_numbers, of_sizes, of_times
from common.errors import ForerunError
from common.privacy import LEVELS
from forerun.prompts import bundled
from forerun.rig import Rig, RigSettings, check_models
from link.proxy import Counters

SETTLE = 3.0
"""Seconds for the last frames of a stream under a cadence to go by."""


class TappedRig(Rig):
    """A rig with somebody who listens in between link and verifier."""

    async def _reach(self, verifier: str) -> str:
        self.tap = await self._stack.enter_async_context(Tap(verifier))
        return self.tap.address


@dataclass(frozen=True)
class Work:
    """What is written."""

    prompts: int = 6
    seeds: int = 5
    tokens: int = 48
    temperature: float = 0.3
    policy: str = "adaptive"


@dataclass(frozen=True, slots=True)
class Level:
    """One level's figures."""

    privacy: str
    ms_per_token: float  # all tokens after each text's first
    ms_per_token_ratio: float  # to off, of the same run
    ttft_ms: float
    bytes_up_per_token: float
    bytes_down_per_token: float
    frames_up_per_token: float
    frames_down_per_token: float
    sizes_up: int  # how many different ones there were, the first message of each stream aside
    sizes_down: int
    largest_up: int
    largest_down: int
    gap_spread: float  # deviation of the time from frame to frame down, as a share of its mean
    told_by_sizes: float  # share of texts whose prompt is named rightly
    told_by_times: float
    told_by_numbers: float
    told_by_all: float
    chance: float


async def measure(settings: RigSettings, work: Work, levels: Sequence[str] = LEVELS) -> list[Level]:
    """All levels, the first of which the others are compared with. Raises `ForerunError` if a part does not
    start."""
    prompts = bundled()[: work.prompts]
    async with contextlib.AsyncExitStack() as stack:
        rigs = [TappedRig(replace(settings, privacy=level)) for level in levels]
        for rig in rigs:
            await stack.enter_async_context(rig)
            await rig.complete(prompts[0], work.policy, {"max_tokens": 16})  # what comes first is slower
        await asyncio.sleep(SETTLE)
        watches = [Watch(rig, len(rig.tap.talks()), rig.link.counters) for rig in rigs]
        for seed in range(work.seeds):
            sampling = {"max_tokens": work.tokens, "temperature": work.temperature, "seed": seed}
            for prompt in prompts:
                for watch in watches:
                    asked = {**sampling, "ignore_eos": True}
                    watch.runs.append(await watch.rig.complete(prompt, work.policy, asked))
        await asyncio.sleep(SETTLE)
        return [_level(watch, watches[0].pace, work.prompts) for watch in watches]


@dataclass(slots=True)
class Watch:
    """One system, and what it did since the measuring began."""

    rig: TappedRig
    num_before: int  # talks
    before: Counters
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def talks(self) -> list[Talk]:
        return self.rig.tap.talks()[self.num_before :]

    @property
    def num_tokens(self) -> int:
        return sum(len(run["tokens"]) for run in self.runs)

    @property
    def pace(self) -> float:
        """Ms per token, of all after each text's first."""
        took = sum(run["arrivals_ms"][-1] - run["arrivals_ms"][0] for run in self.runs)
        return float(took / (self.num_tokens - len(self.runs)))


def _level(watch: Watch, base: float, num_prompts: int) -> Level:
    """`base`: ms per token of off."""
    talks, count, after = watch.talks, watch.num_tokens, watch.rig.link.counters
    num_up = after.upstream.num_bytes - watch.before.upstream.num_bytes
    num_down = after.downstream.num_bytes - watch.before.downstream.num_bytes
    kinds = [str(index % num_prompts) for index in range(len(talks))]
    up = [size for talk in talks for _, size in talk.up[1:]]
    down = [size for talk in talks for _, size in talk.down]
    told = [_told(kinds, talks, [way]) for way in (of_sizes, of_times, of_numbers)]
    return Level(
        privacy=watch.rig.settings.privacy,
        ms_per_token=round(watch.pace, 2),
        ms_per_token_ratio=round(watch.pace / base, 3),
        ttft_ms=round(fmean(run["arrivals_ms"][0] for run in watch.runs), 1),
        bytes_up_per_token=round(num_up / count, 1),
        bytes_down_per_token=round(num_down / count, 1),
        frames_up_per_token=round(len(up) / count, 3),
        frames_down_per_token=round(len(down) / count, 3),
        sizes_up=len(set(up)),
        sizes_down=len(set(down)),
        largest_up=max(up),
        largest_down=max(down),
        gap_spread=round(fmean(map(_spread, talks)), 3),
        told_by_sizes=told[0],
        told_by_times=told[1],
        told_by_numbers=told[2],
        told_by_all=_told(kinds, talks, [of_sizes, of_times, of_numbers]),
        chance=round((len(talks) / num_prompts - 1) / (len(talks) - 1), 3),
    )


def _told(
    kinds: Sequence[str], talks: Sequence[Talk], ways: Sequence[Callable[[Talk], list[float]]]
) -> float:
    """How often the kind is named rightly by features that are looked for in these ways."""
    features = [[each for way in ways for each in way(talk)] for talk in talks]
    return round(accuracy(list(zip(kinds, features, strict=True))), 3)


def _spread(talk: Talk) -> float:
    between = gaps(talk.down)
    mean = fmean(between)
    return float(fmean((each - mean) ** 2 for each in between) ** 0.5 / mean)


def _print_table(levels: Sequence[Level]) -> None:
    names = list(asdict(levels[0]))
    print("| " + " | ".join(names) + " |")
    print("|" + "---|" * len(names))
    for level in levels:
        print("| " + " | ".join(map(str, asdict(level).values())) + " |")


def main() -> int:
    """Prints a table, or with --json an object with the settings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_rig(parser)
    option = parser.add_argument
    option("--prompts", type=int, default=Work.prompts, metavar="N", help="(%(default)s)")
    option("--seeds", type=int, default=Work.seeds, metavar="N", help="of each prompt (%(default)s)")
    option("--tokens", type=int, default=Work.tokens, metavar="N", help="of each text (%(default)s)")
    option("--json", action="store_true", help="an object instead of a table")
    options = parser.parse_args()
    work = Work(options.prompts, options.seeds, options.tokens)
    settings = RigSettings(
        str(options.target), str(options.draft), rtt_ms=options.rtt, step_floor_ms=options.step_floor
    )
    try:
        check_models(options.target, options.draft)
        levels = asyncio.run(measure(settings, work))
    except ForerunError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        told = {"rtt_ms": options.rtt, "step_floor_ms": options.step_floor, **asdict(work)}
        print(json.dumps({**told, "levels": [asdict(level) for level in levels]}, indent=2))
    else:
        _print_table(levels)
    return 0


if __name__ == "__main__":
    sys.exit(main())
