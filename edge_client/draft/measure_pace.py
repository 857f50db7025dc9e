"""Measures the time of a loaded draft model by rows and by tokens read, and keeps it in a file."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.errors import LocalError, UserError
from common.llama.load_trial import KeptTable, release
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

BUDGET = 2.0
"""Seconds for measuring beyond the smallest widths: about as long as loading a 0.5B model."""


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

    def teach(self, pace: DraftTimes) -> None:
        """Initialise `pace` from these tables."""
        pace.rows.measured(self.rows)
        pace.reads.measured(self.reads)


def measure_pace(
    runtime: LlamaRuntime, budget: float = BUDGET, clock: Callable[[], float] = time.perf_counter
) -> PaceTables:
    """Time steps in an unused context, twice each, until `budget` seconds have passed.

    Rows of a recurrent model are in copies of the context's sequence, as those of a draft step are.
    The context is empty afterwards. Raises `UserError` if llama.cpp cannot evaluate the steps.
    """
    ends_at = clock() + budget
    context = min(CONTEXT, runtime.n_ctx // 2, runtime.n_batch)
    room = min(runtime.n_ctx - context, runtime.n_batch)

    def timed(size: int, outputs: int) -> float:
        best, num_copies = float("inf"), (outputs if runtime.is_recurrent else 0)
        for _ in range(2):
            for copy in range(1, num_copies + 1):
                runtime.seq_copy(0, copy, 0, context)
            best = min(best, _decode(runtime, context, size, outputs, clock, num_copies))
            for copy in range(1, num_copies + 1):
                runtime.seq_remove(copy, 0)
            if not num_copies:
                runtime.seq_remove(0, context)
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
        _decode(runtime, 0, context, 1, clock)
        rows = table((size for size in ROWS if size <= min(room, runtime.max_rows)), lambda size: size)
        batches = table((size + 1 for size in READS if size < room), lambda size: 1)
    finally:
        runtime.clear()
    logger.info(
        "a draft step takes %s ms by rows", {size: round(1e3 * took, 1) for size, took in rows.items()}
    )
    return PaceTables(rows, batches)


def _decode(
    runtime: LlamaRuntime,
    start: int,
    size: int,
    num_outputs: int,
    clock: Callable[[], float],
    num_copies: int = 0,
) -> float:
    """Time one batch of `size` tokens after `start` others, the last `num_outputs` with logits.

    They are in sequence 0, or spread evenly over the sequences 1 to `num_copies`.
    """
    tokens = [(7 * place + 3) % runtime.num_vocab for place in range(start, start + size)]
    outputs = [0] * (size - num_outputs) + [1] * num_outputs
    length = size // num_copies if num_copies else size
    positions = [start + place % length for place in range(size)]
    sequences = [place // length + bool(num_copies) for place in range(size)]
    runtime.batch.fill(tokens, positions, sequences, outputs)
    began = clock()
    code = runtime.decode()
    if code:
        raise UserError(f"llama.cpp cannot evaluate {size} tokens of {runtime.path} (code {code})")
    runtime.logits(num_outputs)[:, 0].sum()  # a read waits until the accelerator is done
    return clock() - began


class KeptPaces:
    """Keeps tables by model and settings in the JSON file `path`; None keeps nothing. `SharedDraftModel`
    forgets tables from which a text's steps differ much, such as those of a busy machine."""

    def __init__(self, path: Path | None) -> None:
        self._table = KeptTable(path)

    def ensure(self, runtime: LlamaRuntime) -> PaceTables:
        """Return this model's kept tables for this machine. Without any, call `measure_pace`."""
        name = _name_of(runtime)
        tables = _tables(self._table.load().get(name))
        if tables is not None:
            return tables
        logger.info("> measuring the draft's steps, which takes %g s or little more", BUDGET)
        tables = measure_pace(runtime)
        self._table.keep(name, asdict(tables), "the draft is measured again next time")
        return tables

    def forget(self, runtime: LlamaRuntime) -> None:
        """Drop this model's kept tables, so that its steps are measured at the next loading."""
        self._table.drop(_name_of(runtime), "the draft's steps are not measured again")


def _name_of(runtime: LlamaRuntime) -> str:
    """Return a name that covers all known influences on the times."""
    settings, file = runtime.settings, os.stat(runtime.path)
    parts = (
        runtime.path, file.st_size, file.st_mtime_ns, settings.threads, settings.gpu_layers, settings.exact,
        os.cpu_count(), release(),
    )  # fmt: skip
    return json.dumps(parts)


def _tables(kept: Any) -> PaceTables | None:
    """Return the tables that were `kept`; None without usable ones."""
    try:
        rows, batches = (
            {int(size): float(took) for size, took in kept[name].items()} for name in ("rows", "batches")
        )
        tables = PaceTables(rows, batches)
        tables.teach(DraftTimes())
    except (KeyError, ValueError, AttributeError, TypeError, ArithmeticError, LocalError):
        return None
    return tables
