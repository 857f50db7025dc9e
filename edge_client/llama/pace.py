"""Measures how long a loaded draft model takes by rows and by tokens read, and keeps the result in a file."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from common.errors import LocalError, UserError
from edge_client.core.pace import DraftPace
from edge_client.llama.runtime import LlamaRuntime
from edge_client.llama.trial import release
from edge_client.model_store import write_json
from edge_client.paths import make_private

logger = logging.getLogger(__name__)

ROWS = (1, 2, 4, 8, 3, 6)
READS = (32, 1, 2, 4, 8, 16)
"""What is measured, the most telling first."""

FAR = 1024
"""Tokens of a long prompt: reading one takes as long a token as the largest batch that was measured."""

CONTEXT = 32
"""Tokens before what is measured: a step over a short context. Longer ones are learnt on the way."""

BUDGET = 2.0
"""Seconds that measuring may take, but for the smallest widths: about what loading a 0.5B model takes."""

MAX_KEPT = 16
MAX_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class PaceTables:
    """Seconds by number, rising numbers."""

    rows: dict[int, float]  # of a step by its rows, each with logits
    batches: dict[int, float]  # of a batch by its tokens, the last with logits

    @property
    def reads(self) -> dict[int, float]:
        """Seconds that reading so many committed tokens adds to a step of one row."""
        found = {size - 1: max(took - self.rows[1], 1e-6) for size, took in self.batches.items()}
        largest = max(found)
        return {**found, FAR: found[largest] * FAR / largest}

    def teach(self, pace: DraftPace) -> None:
        """Let `pace` begin from these tables."""
        pace.rows.measured(self.rows)
        pace.reads.measured(self.reads)


def measure_pace(
    runtime: LlamaRuntime, budget: float = BUDGET, clock: Callable[[], float] = time.perf_counter
) -> PaceTables:
    """Time steps in a context that no session uses yet, twice each until `budget` seconds have passed. The
    context is empty afterwards.

    Raises `UserError` if llama.cpp cannot evaluate them.
    """
    ends_at = clock() + budget
    context = min(CONTEXT, runtime.n_ctx // 2, runtime.n_batch)
    room = min(runtime.n_ctx - context, runtime.n_batch)

    def timed(size: int, outputs: int) -> float:
        best = float("inf")
        for _ in range(2):
            best = min(best, _decode(runtime, context, size, outputs, clock))
            runtime.seq_remove(0, context)
            if clock() >= ends_at:
                break
        return best

    def table(sizes: Iterator[int], outputs: Callable[[int], int]) -> dict[int, float]:
        found = dict[int, float]()
        for size in sizes:
            if len(found) < 2 or clock() < ends_at:
                found[size] = timed(size, outputs(size))
        return dict(sorted(found.items()))

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
    runtime: LlamaRuntime, start: int, size: int, num_outputs: int, clock: Callable[[], float]
) -> float:
    """Seconds of one batch of `size` tokens behind `start` others, the last `num_outputs` with logits."""
    tokens = [(7 * place + 3) % runtime.num_vocab for place in range(start, start + size)]
    outputs = [0] * (size - num_outputs) + [1] * num_outputs
    runtime.batch.fill(tokens, list(range(start, start + size)), [0] * size, outputs)
    began = clock()
    code = runtime.decode()
    if code:
        raise UserError(f"llama.cpp cannot evaluate {size} tokens of {runtime.path} (code {code})")
    runtime.logits(num_outputs)[:, 0].sum()  # accelerators compute until somebody reads
    return clock() - began


class KeptPaces:
    """Tables by model and settings, kept at `path` (JSON), whose folder is made; None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def ensure(self, runtime: LlamaRuntime) -> PaceTables:
        """The kept tables of this model with these settings on this machine, or new ones. Slow when new.

        Raises `UserError` if llama.cpp cannot evaluate the steps.
        """
        name, kept = _name_of(runtime), self._kept()
        tables = _tables(kept.get(name))
        if tables is None:
            tables = measure_pace(runtime)
            kept.pop(name, None)
            self._keep({**kept, name: asdict(tables)})
        return tables

    def _kept(self) -> dict[str, object]:
        """The kept tables by name. An unreadable file counts as empty, and costs another measurement."""
        if self._path is None:
            return {}
        try:
            with self._path.open("rb") as file:
                found = json.loads(file.read(MAX_BYTES))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _keep(self, kept: dict[str, object]) -> None:
        if self._path is None:
            return
        try:
            make_private(self._path.parent)
            write_json(self._path, dict(list(kept.items())[-MAX_KEPT:]))
        except (OSError, UserError) as error:
            logger.warning(
                "%s cannot be written (%s); the draft is measured again next time", self._path, error
            )


def _name_of(runtime: LlamaRuntime) -> str:
    """A name of everything known that the times depend on."""
    settings, file = runtime.settings, os.stat(runtime.path)
    parts = (
        runtime.path, file.st_size, file.st_mtime_ns, settings.threads, settings.threads_batch,
        settings.gpu_layers, settings.use_extra_bufts, settings.kv_type, settings.flash_attention,
        os.cpu_count(), release(),
    )  # fmt: skip
    return json.dumps(parts)


def _tables(found: object) -> PaceTables | None:
    """The tables in `found`; None if it holds none that can be used."""
    if not isinstance(found, dict):
        return None
    try:
        rows, batches = (
            {int(size): float(took) for size, took in found[name].items()} for name in ("rows", "batches")
        )
        tables = PaceTables(rows, batches)
        tables.teach(DraftPace())
    except (KeyError, ValueError, AttributeError, TypeError, ArithmeticError, LocalError):
        return None
    return tables
