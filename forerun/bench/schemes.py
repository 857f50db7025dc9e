"""What is compared in a load, by name, and how each is run on a stage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.sampling import SamplingParams
from forerun.bench.figures import Figures, latencies, load_figures
from forerun.bench.job import LIVE, OFF, Drafts, Job, TextRun
from forerun.bench.stage import Stage
from forerun.bench.texts import Text, first_difference
from forerun.rig import Child

SEQUENTIAL, CONTINUOUS, PADDED = "sequential", "transformers_continuous", "transformers_padded"
STREAMING = "streaming"
"""Plain streaming of the same engine, N at a time."""

RIVALS = {"continuous": CONTINUOUS, "padded": PADDED}

MOST_LIVE = 8
"""Draft models that one process of clients runs side by side; their steps take turns on its core."""


def scheme_name(drafts: Drafts) -> str:
    """As it stands in reports and plots."""
    return STREAMING if drafts.kind == OFF else str(drafts).replace("=", " ")


@dataclass(frozen=True, slots=True)
class Load:
    """What every scheme is asked for at one point: these texts, by so many clients."""

    texts: tuple[Text, ...]
    clients: int
    sampling: SamplingParams
    times: tuple[float, ...] = ()  # of opening, seconds; empty for a closed loop

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(text.number for text in self.texts)


@dataclass(frozen=True, slots=True)
class Edges:
    """Forerun with drafts of one kind."""

    drafts: Drafts
    policy: str
    draft_time: float
    seed: int

    @property
    def name(self) -> str:
        return scheme_name(self.drafts)

    def suits(self, load: Load) -> bool:
        return self.drafts.kind != LIVE or load.clients <= MOST_LIVE

    async def run(self, stage: Stage, load: Load) -> Figures:
        job = self._job(stage, load)
        return load_figures(await stage.run(job), job.clients)

    def _job(self, stage: Stage, load: Load) -> Job:
        return Job(
            address=stage.verifier.address,
            numbers=load.numbers,
            drafts=self.drafts,
            policy=self.policy,
            sampling=load.sampling,
            clients=load.clients,
            times=load.times,
            draft_time=self.draft_time,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class Sequential:
    """The same texts by the same verifier, one after the other, without drafts."""

    most: int  # texts that are written; the pace does not depend on how many there are
    name: str = SEQUENTIAL

    def suits(self, load: Load) -> bool:
        return not load.times

    async def run(self, stage: Stage, load: Load) -> Figures:
        edges = Edges(Drafts(OFF), OFF, 0.0, 0)
        return await edges.run(stage, replace(load, texts=load.texts[: self.most], clients=1))


@dataclass(frozen=True, slots=True)
class Rival:
    """One of transformers' ways, in the process `child` (`forerun.bench.rivals`)."""

    child: Child
    kind: str  # a key of `RIVALS`

    @property
    def name(self) -> str:
        return RIVALS[self.kind]

    def suits(self, load: Load) -> bool:
        return not load.times

    async def run(self, stage: Stage, load: Load) -> Figures:
        began_at = time.monotonic()
        told = await ask_rivals(self.child, self.kind, load)
        runs = [
            TextRun(text.number, began_at, arrivals, self._difference(text, written, load), finished=True)
            for text, written, arrivals in zip(load.texts, told["texts"], told["arrivals"], strict=True)
        ]
        tokens = sum(map(len, told["texts"]))
        felt = latencies(runs)
        if len(runs) > load.clients:  # all are handed over at once: the later ones only waited for their turn
            felt |= {"ttft_ms_p50": None, "ttft_ms_p95": None}
        return {
            "tokens_per_second": round(tokens / told["seconds"], 3),
            "seconds": round(told["seconds"], 3),
            **felt,
            "target_steps": told["target_steps"],
            "texts": len(runs),
            "texts_compared": len(runs) if load.sampling.greedy else 0,
            "texts_different": sum(run.difference is not None for run in runs),
            "refused": 0,
            "failed": 0,
        }

    @staticmethod
    def _difference(text: Text, written: Sequence[int], load: Load) -> int | None:
        """Sampled texts are each library's own."""
        return first_difference(written, text.reference) if load.sampling.greedy else None


async def ask_rivals(child: Child, do: str, load: Load) -> dict[str, Any]:
    """See `forerun.bench.rivals`. Raises `UnavailableError` if that process ended."""
    await child.write(
        {
            "do": do,
            "prompts": [text.prompt for text in load.texts],
            "max_tokens": load.sampling.max_tokens,
            "at_once": load.clients,
            "temperature": load.sampling.temperature,
            "seed": load.sampling.seed,
        }
    )
    return await child.read()


Scheme = Edges | Sequential | Rival
