"""What a draft step costs beyond the model: `LlamaDrafter.expand` beside a bare llama_decode of its batch.

    python -m benchmarks.draft_step --draft demo_models/draft/draft-q8_0.gguf --json

Both are timed in turn on the same rows, sequences and context, so that a change of the machine's speed falls
on both. `inside` is the llama_decode within the step, which finds the caches as a real step leaves them;
`bare` is the same batch again right after it, with warm caches. The step's cost is told against both.

Shapes: `chain`, the rows stand below each other; `siblings`, they are children of one node, so each forks a
branch; `branches`, each extends a branch of its own, which is the usual step of a tree.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count, pairwise
from pathlib import Path
from statistics import median

from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.drafter import DraftRow, Reroot
from edge_client.llama.drafter import LlamaDrafter
from edge_client.llama.runtime import ALL_SEQUENCES, LlamaRuntime
from edge_client.llama.settings import LlamaSettings

DEFAULT_DRAFT = Path(__file__).resolve().parent.parent / "demo_models" / "draft" / "draft-q8_0.gguf"
SHAPES = ("chain", "siblings", "branches")
WIDTHS = (1, 2, 4, 8)
NUM_WARM_UP = 5


@dataclass(frozen=True)
class StepTimes:
    """Medians in microseconds."""

    shape: str
    width: int  # rows in the batch
    temperature: float
    expand_us: float
    inside_us: float  # its llama_decode, as part of the step
    bare_us: float  # llama_decode of the same batch again, alone
    reroot_us: float  # freeing all of the step's nodes

    @property
    def ratios(self) -> dict[str, float]:
        """The step's time over llama.cpp's."""
        return {
            "ratio_inside": round(self.expand_us / self.inside_us, 3),
            "ratio_bare": round(self.expand_us / self.bare_us, 3),
        }


class TimedRuntime(LlamaRuntime):
    """Remembers how long its last decode took."""

    last_decode = 0.0  # seconds

    def decode(self) -> int:
        start = time.perf_counter()
        code = super().decode()
        self.last_decode = time.perf_counter() - start
        return code


class StepBench:
    """One drafter on one context of `num_tokens`, its tip expanded."""

    def __init__(self, runtime: TimedRuntime, num_tokens: int) -> None:
        self._runtime = runtime
        self._drafter = LlamaDrafter(runtime)
        self._prompt = [(7 * place + 3) % runtime.num_vocab for place in range(num_tokens)]
        self._ids = count(1)

    def measure(self, shape: str, width: int, temperature: float, num_steps: int) -> StepTimes:
        """Medians over `num_steps` steps, after a few that only warm up."""
        self._tip = next(self._ids)
        self._drafter.start(self._prompt, self._tip, SamplingParams(temperature=temperature, seed=1))
        self._drafter.expand([DraftRow(self._tip, None, self._prompt[-1], len(self._prompt) - 1)])
        samples = [self._step(shape, width) for _ in range(num_steps + NUM_WARM_UP)][NUM_WARM_UP:]
        columns = [round(median(column) * 1e6, 1) for column in zip(*samples, strict=True)]
        return StepTimes(shape, width, temperature, *columns)

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
        return [DraftRow(next(self._ids), self._tip, 9 + i, len(self._prompt)) for i in range(width)]


def _timed(action: object) -> float:
    assert callable(action)
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure_all(arguments: argparse.Namespace) -> Iterator[StepTimes]:
    """Every shape, width and temperature on one loaded model."""
    settings = LlamaSettings(str(arguments.draft), n_ctx=2048, threads=arguments.threads)
    with TimedRuntime(settings) as runtime:
        bench = StepBench(runtime, arguments.context)
        for temperature in (0.0, 0.8):
            for shape in SHAPES:
                for width in WIDTHS:
                    yield bench.measure(shape, width, temperature, arguments.steps)


def main() -> None:
    """Parse, measure, print: a table, or with --json one array."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--draft", default=DEFAULT_DRAFT, help="GGUF file or hf://organisation/repository/file.gguf"
    )
    parser.add_argument("--context", type=int, default=256, help="tokens before the tree (256)")
    parser.add_argument("--steps", type=int, default=200, help="steps a measurement (200)")
    parser.add_argument("--threads", type=int, default=0, help="of llama.cpp; 0 = one per processor")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    arguments = parser.parse_args()
    try:
        times = list(measure_all(arguments))
    except UserError as error:
        parser.error(str(error))
    if arguments.json:
        print(json.dumps([asdict(each) | each.ratios for each in times], indent=1))
        return
    print("shape     width  temp  expand us  inside us    bare us  x inside  x bare  reroot us")
    for each in times:
        micros = (each.expand_us, each.inside_us, each.bare_us)
        ratios = (each.ratios["ratio_inside"], each.ratios["ratio_bare"])
        print(
            f"{each.shape:<9} {each.width:>5} {each.temperature:>5} "
            + " ".join(f"{value:>10.0f}" for value in micros)
            + "{:>10.2f} {:>7.2f}".format(*ratios)
            + f" {each.reroot_us:>10.1f}"
        )


if __name__ == "__main__":
    main()
