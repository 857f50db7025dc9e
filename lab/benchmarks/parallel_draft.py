"""Measures a parallel draft beside a plain one where a draft step is slow, on the real stack.

    python -m lab.benchmarks.parallel_draft --draft PARALLEL.gguf --json

Each prompt is written by streaming, with the plain draft and with the parallel one, in turn. Both have an
edge of their own behind the same link and verifier. A draft step takes at least `--draft-step`, whatever its
rows, as on an accelerator that waits for its memory.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from forerun.terminal import note
from lab.bench.report import Machine, carry_out, finish, parser_of, table
from lab.demo_models import DRAFT_GGUF, TARGET_DIR
from lab.demo_models.corpus import held_out_functions
from lab.rig import Rig, RigEdge, RigProcess, RigSettings
from simulator.figures import as_json, figures

SCHEMES = {"streaming": "off", "plain draft": "adaptive", "parallel draft": "adaptive"}
PROMPT_SEED = 5


class SlowRig(Rig):
    """Runs a verifier and two edges with slow draft steps: of a plain draft, and of a parallel one."""

    def __init__(self, settings: RigSettings, parallel: str, draft_step_ms: float) -> None:
        super().__init__(settings)
        self._parallel, self._draft_step_ms = parallel, draft_step_ms
        self._edges: dict[str, RigEdge] = {}

    async def _begin(self) -> None:
        await super()._begin()
        assert self._edge is not None, "started just now"
        self._edges = dict.fromkeys(SCHEMES, self._edge)
        self.settings = replace(self.settings, draft=self._parallel)
        self._edges["parallel draft"] = await self.start_linked_edge()

    async def start(self, name: str, *arguments: str, module: str = "forerun", **more: Any) -> RigProcess:
        if name == "edge":
            module, arguments = "lab.rig_slow_edge", (f"{self._draft_step_ms:g}", *arguments)
        return await super().start(name, *arguments, module=module, **more)

    def use(self, scheme: str) -> None:
        """Select the edge that writes the next text."""
        self._edge = self._edges[scheme]


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of("parallel_draft", __doc__)
    option = parser.add_argument
    option("--target", default=str(TARGET_DIR), metavar="PATH", help="target (%(default)s)")
    option("--plain", type=Path, default=DRAFT_GGUF, metavar="FILE", help="plain draft (%(default)s)")
    option("--draft", type=Path, required=True, metavar="FILE", help="parallel draft of forerun align")
    option("--texts", type=int, default=16, metavar="N", help="held out functions (%(default)s)")
    option("--tokens", type=int, default=96, metavar="N", help="most tokens of a text (%(default)s)")
    option("--temperatures", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    option("--target-step", type=float, default=30.0, metavar="MS", help="least time (%(default)s)")
    option("--draft-step", type=float, default=60.0, metavar="MS", help="least time (%(default)s)")
    option("--rtt", type=float, default=60.0, metavar="MS", help="(%(default)s)")
    option("--ignore-eos", action="store_true", help="write on behind end tokens")
    parser.set_defaults(run=_run)
    return parser


def _run(options: argparse.Namespace) -> None:
    prompts = [prompt for _, prompt in islice(held_out_functions(PROMPT_SEED), options.texts)]
    rows = asyncio.run(_measured(options, prompts))
    settings = {
        name: str(value) for name, value in vars(options).items() if name not in ("run", "out", "json")
    }
    shown = ("temperature", "scheme", "ms_per_token", "ttft_ms", "target_steps_per_token")
    report = {"settings": settings, "machine": Machine().told(), "results": rows}
    finish(options, report, table(rows, (*shown, "draft_tokens_per_token", "identical")))


async def _measured(options: argparse.Namespace, prompts: Sequence[str]) -> list[dict[str, Any]]:
    settings = RigSettings(options.target, str(options.plain), options.rtt, step_floor_ms=options.target_step)
    rows = list[dict[str, Any]]()
    async with SlowRig(settings, str(options.draft), options.draft_step) as rig:
        for temperature in options.temperatures:
            runs: dict[str, list[dict[str, Any]]] = {scheme: [] for scheme in SCHEMES}
            for number, prompt in enumerate(prompts):
                sampling = {"temperature": temperature, "seed": number, "max_tokens": options.tokens}
                for scheme, policy in SCHEMES.items():
                    rig.use(scheme)
                    run = await rig.complete(prompt, policy, {**sampling, "ignore_eos": options.ignore_eos})
                    runs[scheme].append(run)
                note(f"temperature {temperature:g}: {number + 1} of {len(prompts)} texts")
            texts = [run["text"] for run in runs["streaming"]]
            for scheme, own in runs.items():
                modes = sorted({f"{mode['mode']}: {mode['why']}" for run in own for mode in run["modes"]})
                row = {"temperature": temperature, "scheme": scheme, **as_json(figures(own, texts))}
                rows.append({**row, "modes": modes})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    return carry_out("parallel_draft", make_parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
