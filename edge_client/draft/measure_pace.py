"""Measures the time of a loaded draft model by rows and by tokens read."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from common.errors import UserError
from common.llama.runtime import LlamaRuntime
from edge_client.core.draft_times import DraftTimes

logger = logging.getLogger(__name__)

ROWS = (1, 2, 4, 8, 3, 6)
READS = (32, 1, 2, 4, 8, 16)
"""Widths to measure, the most informative first."""

FAR = 1024
"""Tokens of a long prompt. Reading it takes as long per token as the largest measured batch."""

CONTEXT = 32
"""Tokens before a measured step: a short context. Longer ones are learnt during texts."""

LEAST = 0.1
"""Part of a batch's time that its reading takes at least."""

BUDGET = 1.0
"""Seconds for measuring beyond the smallest widths: about half as long as loading a 0.5B model."""


@dataclass(frozen=True, slots=True)
class PaceTables:
    """Holds measured seconds by number of rows and of tokens, in increasing order."""

    rows: dict[int, float]  # of a step by its rows, each with logits
    batches: dict[int, float]  # of a batch by its tokens, the last with logits

    @property
    def reads(self) -> dict[int, float]:
        """Return the seconds that reading committed tokens adds to a one-row step, by their number.

        A token takes at least as long as in the largest batch, and reading that at least `LEAST` of its time:
        the difference of two short times may be noise, and corrections of it also hold for long prompts.
        """
        added = {size - 1: max(took - self.rows[1], LEAST * took) for size, took in self.batches.items()}
        largest = max(added)
        per_token = added[largest] / largest
        return {**{size: max(took, size * per_token) for size, took in added.items()}, FAR: FAR * per_token}

    def teach(self, pace: DraftTimes, levels: int = 1) -> None:
        """Initialise `pace` from these tables, for a draft whose step buys so many levels of a tree. A step
        that reads buys all of them for the next ones."""
        pace.rows.measured({rows: took / levels for rows, took in self.rows.items()})
        rest = self.rows[1] * (1 - 1 / levels)
        pace.reads.measured({size: took + rest for size, took in self.reads.items()})


def measure_pace(
    runtime: LlamaRuntime, budget: float = BUDGET, clock: Callable[[], float] = time.perf_counter
) -> PaceTables:
    """Time steps in an unused context, twice each, until `budget` seconds have passed.

    The rows of a step are in copies of one text's sequence, as siblings of a draft step are.
    The context is empty afterwards. Raises `UserError` if llama.cpp cannot evaluate the steps.
    """
    ends_at = clock() + budget
    context = min(CONTEXT, runtime.n_ctx // 2, runtime.n_batch)
    room = min(runtime.n_ctx - context, runtime.n_batch)
    most_rows = min(room, runtime.max_rows, runtime.n_seq_max - 1)

    def timed(size: int, outputs: int) -> float:
        best, copies = float("inf"), range(1, outputs + 1)
        for _ in range(2):
            for copy in copies:
                runtime.seq_copy(0, copy, 0, context)
            best = min(best, _decode(runtime, context, size, copies, clock))
            for copy in copies:
                runtime.seq_remove(copy, 0)
            if clock() >= ends_at:
                break
        return best

    def table(sizes: Iterator[int], outputs: Callable[[int], int]) -> dict[int, float]:
        times = dict[int, float]()
        for size in sizes:
            if len(times) < 2 or clock() < ends_at:
                times[size] = timed(size, outputs(size))
        return dict(sorted(times.items()))

    try:
        _decode(runtime, 0, context, range(1), clock)
        rows = table((size for size in ROWS if size <= most_rows), lambda size: size)
        batches = table((size + 1 for size in READS if size < room), lambda size: 1)
    finally:
        runtime.clear()
    logger.info(
        "a draft step takes %s ms by rows", {size: round(1e3 * took, 1) for size, took in rows.items()}
    )
    return PaceTables(rows, batches)


def _decode(
    runtime: LlamaRuntime, start: int, size: int, sequences: range, clock: Callable[[], float]
) -> float:
    """Time one batch of `size` tokens after `start` others, spread evenly over `sequences`. As many of the
    last ones get logits."""
    num_outputs = len(sequences)
    length = size // num_outputs
    tokens = [(7 * place + 3) % runtime.num_vocab for place in range(start, start + size)]
    outputs = [0] * (size - num_outputs) + [1] * num_outputs
    positions = [start + place % length for place in range(size)]
    runtime.batch.fill(tokens, positions, [sequences[place // length] for place in range(size)], outputs)
    began = clock()
    code = runtime.decode()
    if code:
        raise UserError(f"llama.cpp cannot evaluate {size} tokens of {runtime.path} (code {code})")
    runtime.logits(num_outputs)[:, 0].sum()  # a read waits until the accelerator is done
    return clock() - began
