"""Measures the gaps between a text's tokens while a newer draft is loaded, tried and kept.

    python -m lab.benchmarks.draft_switch --draft DRAFT.gguf --newer ADAPTER.gguf --threads 1

Four texts draft at a time, without a target and without a pause: three by the draft in force, and the other
by the newer draft, once it is there. `gap` is the time on the clock. `work` is the processor time of this
process in a gap: the gap on a core that has nothing else to do. Turns are planned by processor time, too.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from common.llama.load_trial import ModelTrials
from common.llama.model import LlamaSettings
from common.sampling import SamplingParams
from edge_client.draft import updated_draft
from edge_client.draft.group import DraftGroup
from edge_client.draft.seats import Turns
from edge_client.draft.shared_model import ModelState, SharedDraftModel
from edge_client.draft.updated_draft import UpdatedDraft
from edge_client.texts.alone import AloneRun
from lab.bench.report import Machine, carry_out, finish, parser_of, settings_of, table

TOGETHER = 4
PHASES = ("one draft", "loading", "both serve", "kept")


class TimedTurns(Turns):
    """Takes the processor time of each turn, by its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[tuple[int, float]] = []
        self._began = 0.0

    def __enter__(self) -> None:
        super().__enter__()
        self._began = time.thread_time()

    def __exit__(self, *why: object) -> None:
        self.times.append((threading.get_ident(), time.thread_time() - self._began))
        super().__exit__(*why)


class Switch:
    """Keeps texts going, and notes each gap under the phase and the draft that it belongs to."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.phase, self.is_over = options, PHASES[0], False
        self.gaps: dict[tuple[str, str], list[tuple[float, float]]] = {}
        self.own = SharedDraftModel(
            LlamaSettings(str(options.draft), threads=options.threads), 8, -1.0, ModelTrials()
        )
        self.own._group = partial(DraftGroup, clock=time.process_time)
        self.own._turns = self.turns = TimedTurns()
        self.draft = UpdatedDraft(self.own, str(folder), chance=lambda: 0.0)
        self._numbers = count()

    async def write(self, place: int) -> None:
        """Write one text after the other at a place until all is over."""
        while not self.is_over:
            number = next(self._numbers)
            model = self.draft.choose(alone=place > 0)
            prompt = [100 + (7 * number + 13 * at) % 200 for at in range(self.options.prompt)]
            sampling = SamplingParams(
                temperature=0.8, seed=number, max_tokens=40 + 16 * place, ignore_eos=True
            )
            seat, name = await model.acquire(prompt), "in force" if model is self.own else "newer"
            try:
                last = None
                async for _ in AloneRun(seat, prompt, sampling, ()).shown():
                    now = time.monotonic(), time.process_time()
                    if last is not None:
                        gap = now[0] - last[0], now[1] - last[1]
                        self.gaps.setdefault((self.phase, name), []).append(gap)
                    last = now
            finally:
                seat.release()

    async def until(self, holds: Callable[[], object]) -> None:
        while not holds():  # noqa: ASYNC110  a status has no event
            await asyncio.sleep(0.02)

    def num(self, name: str) -> int:
        return len(self.gaps.get((self.phase, name), ()))

    async def run(self, offers: Path) -> None:
        options = self.options
        self.draft.start()
        await self.own.load()
        texts = [asyncio.create_task(self.write(place)) for place in range(TOGETHER)]
        await self.until(lambda: self.num("in force") >= options.gaps)
        self.phase = "loading"
        shutil.copy(options.newer, offers / ".newer")
        (offers / ".newer").rename(offers / "newer.gguf")
        await self.until(self.draft.status)
        newer, self.phase = self.draft.choose(), "both serve"
        await self.until(lambda: self.num("newer") >= options.gaps)
        self.phase = "kept"
        while "trial" in self.draft.status():
            self.draft.judge(self.own, 70, 100)
            self.draft.judge(newer, 75, 100)
        await self.until(lambda: self.own.state is ModelState.UNLOADED)
        self.is_over = True
        await asyncio.gather(*texts)
        await self.draft.close()


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("draft_switch", __doc__)
    option = parser.add_argument
    option("--draft", type=Path, required=True, metavar="FILE", help="draft in force, GGUF")
    option(
        "--newer", type=Path, required=True, metavar="FILE", help="model of the same tokens, or an adapter"
    )
    option("--prompt", type=int, default=200, metavar="N", help="tokens of each prompt (%(default)s)")
    option("--gaps", type=int, default=300, metavar="N", help="least gaps of a phase (%(default)s)")
    option("--threads", type=int, default=1, metavar="N", help="threads of llama.cpp (%(default)s)")
    parser.set_defaults(run=_run)
    return parser


def _run(options: argparse.Namespace) -> None:
    updated_draft.LOOK_EVERY = 0.2
    with tempfile.TemporaryDirectory() as folder:
        switch = Switch(options, Path(folder))
        asyncio.run(switch.run(Path(folder)))
    rows = [
        {"phase": phase, "text": name, "gaps": len(gaps)} | _spread("gap", clock) | _spread("work", work)
        for (phase, name), gaps in switch.gaps.items()
        for clock, work in [zip(*gaps, strict=True)]
    ]
    threads = list(dict.fromkeys(thread for thread, _ in switch.turns.times))
    turns = [
        {"turns of": name} | _spread("work", [took for own, took in switch.turns.times if own == thread])
        for name, thread in zip(("in force", "newer"), threads, strict=True)
    ]
    report = {"settings": settings_of(options), "machine": Machine().told(), "results": rows, "turns": turns}
    finish(options, report, [*table(rows), "", *table(turns)])


def _spread(name: str, times: Sequence[float]) -> dict[str, Any]:
    """Return the median, the 99th percentile and the longest, ms."""
    values = 1e3 * np.quantile(times, (0.5, 0.99, 1.0))
    return {
        f"{name}_{key}": round(float(value), 1)
        for key, value in zip(("ms", "p99", "max"), values, strict=True)
    }


def main(arguments: Sequence[str] | None = None) -> int:
    return carry_out("draft_switch", make_parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
