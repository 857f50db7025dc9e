"""Measures a draft step beyond the model: a `DraftGroup` of one beside a bare llama_decode of its batch.

    python -m lab.benchmarks.draft_step --draft lab/demo_models/draft/draft-q8_0.gguf --json

Both are timed in turn on the same rows, sequences and context, so that a change of the machine's speed falls
on both. `inside` is the llama_decode within the step, which finds the caches as a real step leaves them;
`bare` is the same batch again right after it, with warm caches. The step's cost is compared with both.

Shapes: `chain`, the rows stand below each other; `siblings`, they are children of one node, so each forks a
branch; `branches`, each extends a branch of its own, the usual step of a tree.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count, pairwise
from statistics import median
from typing import Any

from common.llama.model import LlamaSettings
from common.llama.runtime import ALL_SEQUENCES, LlamaRuntime
from edge_client.core.effects import DraftRow, Reroot
from edge_client.draft.group import DraftGroup, MemberDrafter
from lab.bench.report import carry_out, finish, parser_of, table
from lab.benchmarks.plans import SAMPLINGS
from lab.demo_models import DRAFT_GGUF

SHAPES = ("chain", "siblings", "branches")
WIDTHS = (1, 2, 4, 8)
NUM_WARM_UP = 5


@dataclass(frozen=True)
class StepTimes:
    """Holds medians in microseconds."""

    shape: str
    width: int  # rows in the batch
    sampling: str  # of `plans.SAMPLINGS`
    expand_us: float
    inside_us: float  # its llama_decode, as part of the step
    bare_us: float  # llama_decode of the same batch again, alone
    reroot_us: float  # freeing all of the step's nodes

    def as_json(self) -> dict[str, Any]:
        """Return the times, with the step's time over llama.cpp's."""
        inside, bare = self.expand_us / self.inside_us, self.expand_us / self.bare_us
        return {**asdict(self), "ratio_inside": round(inside, 3), "ratio_bare": round(bare, 3)}


class TimedRuntime(LlamaRuntime):
    """Records how long its last decode took."""

    last_decode = 0.0  # seconds

    def decode(self) -> int:
        start = time.perf_counter()
        code = super().decode()
        self.last_decode = time.perf_counter() - start
        return code


class StepBench:
    """Drafts on one context of `num_tokens`, its tip expanded."""

    def __init__(self, runtime: TimedRuntime, num_tokens: int) -> None:
        self._runtime = runtime
        self._drafter = MemberDrafter(DraftGroup(runtime, 1))
        self._prompt = [(7 * place + 3) % runtime.num_vocab for place in range(num_tokens)]
        self._ids = count(1)

    def measure(self, shape: str, width: int, sampling: str, num_steps: int) -> StepTimes:
        """Return medians over `num_steps` steps, after a few that only warm up."""
        self._tip = next(self._ids)
        self._drafter.start(self._prompt, self._tip, SAMPLINGS[sampling])
        tip = DraftRow(self._tip, None, self._prompt[-1], len(self._prompt) - 1)
        self._likely = self._drafter.expand([tip])[0].tokens
        samples = [self._step(shape, width) for _ in range(num_steps + NUM_WARM_UP)][NUM_WARM_UP:]
        columns = [round(median(column) * 1e6, 1) for column in zip(*samples, strict=True)]
        return StepTimes(shape, width, sampling, *columns)

    def _step(self, shape: str, width: int) -> tuple[float, float, float, float]:
        """Seconds of (expand, decode inside it, bare decode, reroot)."""
        stems = self._siblings(width) if shape == "branches" else []
        if stems:
            self._drafter.expand(stems)
        rows = self._rows(shape, width, stems)
        expand = _timed(lambda: self._drafter.expand(rows))
        inside = self._runtime.last_decode
        self._runtime.seq_remove(ALL_SEQUENCES, rows[0].position)
        decode = _timed(self._runtime.decode)  # the batch is still filled
        dead = Reroot((), tuple(row.id for row in [*stems, *rows]))
        return expand, inside, decode, _timed(lambda: self._drafter.reroot(dead))

    def _rows(self, shape: str, width: int, stems: list[DraftRow]) -> list[DraftRow]:
        if shape == "siblings":
            return self._siblings(width)
        if shape == "branches":
            return [DraftRow(next(self._ids), stem.id, 9, stem.position + 1) for stem in stems]
        ids = [self._tip, *(next(self._ids) for _ in range(width))]
        return [
            DraftRow(node, parent, 9, len(self._prompt) + depth)
            for depth, (parent, node) in enumerate(pairwise(ids))
        ]

    def _siblings(self, width: int) -> list[DraftRow]:
        """Return rows below the tip, of its likeliest tokens, which a grammar allows."""
        tokens = (self._likely[i % len(self._likely)] for i in range(width))
        return [DraftRow(next(self._ids), self._tip, token, len(self._prompt)) for token in tokens]


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure_all(options: argparse.Namespace) -> Iterator[StepTimes]:
    """Measure every shape, width and sampling on one loaded model; under a grammar siblings alone, since the
    tokens of other shapes would break it."""
    settings = LlamaSettings(str(options.draft), n_ctx=2048, threads=options.threads)
    with TimedRuntime(settings) as runtime:
        bench = StepBench(runtime, options.context)
        for name, sampling in SAMPLINGS.items():
            for shape in SHAPES if not sampling.grammar else ("siblings",):
                for width in WIDTHS:
                    yield bench.measure(shape, width, name, options.steps)


def _run(options: argparse.Namespace) -> None:
    rows = [times.as_json() for times in measure_all(options)]
    finish(options, rows, table(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of("draft_step", __doc__)
    option = parser.add_argument
    option("--draft", default=DRAFT_GGUF, help="GGUF file or hf://organisation/repository/file.gguf")
    option("--context", type=int, default=256, help="tokens before the tree (256)")
    option("--steps", type=int, default=200, help="steps per measurement (200)")
    option("--threads", type=int, default=0, help="threads of llama.cpp; 0 = one per processor")
    parser.set_defaults(run=_run)
    return carry_out("draft_step", parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
