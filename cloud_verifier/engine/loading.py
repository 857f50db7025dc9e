"""From a folder or hub id to an engine that serves: load, probe, allocate."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cloud_verifier.core.batching import LONE_CHUNKS
from cloud_verifier.core.target import StepPlan
from cloud_verifier.engine.acceleration import accelerate, backend_of, replays
from cloud_verifier.engine.attention import AttentionBackend
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.exact import ExactEngine
from cloud_verifier.engine.exact_attention import ExactBackend
from cloud_verifier.engine.exact_check import check_exact
from cloud_verifier.engine.memory import (
    CPU_SLOTS,
    GRAPHS,
    Room,
    choose_slots,
    free_memory,
    largest_step,
    peak_of,
    release,
    take_memory,
)
from cloud_verifier.engine.probe import ProbeReport, probe
from cloud_verifier.engine.probe_script import SHRUNK, ProbeLengths
from cloud_verifier.engine.transformers_adapter import TargetModel, load_target
from common.rpc.describe import TokenTable
from common.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


def load_engine(
    source: str,
    num_slots: int | None,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    quantization: str | None = None,
    num_processes: int = 1,
    backend: AttentionBackend | None = None,
    exact_rows: int = 0,
    attention: str = "auto",
    cuda_graphs: bool = True,
    warm_rows: int = 0,
    max_rows: int = 256,
    prefill_chunk: int = 256,
    agree: Callable[[int], int] | None = None,
) -> tuple[TorchEngine, TokenTable]:
    """Load the target model `source`, check that its packed path is right, and give it `num_slots` KV slots.

    None gives it as many as the device has memory for (`memory.choose_slots`), beside a step of `max_rows`
    nodes and `prefill_chunk` tokens of prompts. `agree` makes this process's free memory the group's.
    Returns the engine and the target's token table, whose fingerprint the engine's `info` holds. `dtype`,
    `device`, `quantization` and `num_processes` as in `load_target`. With `exact_rows` above 0 the engine is
    the deterministic one, in tiles of so many rows, and is checked to be so; it brings its own attention in
    place of `backend`. Without a `backend`, `attention` names it; `cuda_graphs` and `warm_rows` are as in
    `acceleration.accelerate`. Raises `UserError` that says what to change.
    """
    if exact_rows and dtype == "auto" and device == "cpu":
        dtype = "float32"
    model = load_target(
        source, dtype=dtype, device=device, quantization=quantization, num_processes=num_processes
    )
    if quantization is not None and model.device.type == "cuda":
        logger.warning(
            "! --quantize %s halves the weights' memory and slows steps down on a GPU: each product first "
            "writes its weights in %s",
            quantization,
            model.dtype_name,
        )
    backend = ExactBackend() if exact_rows else backend or backend_of(attention, model.device)
    report = check(model, backend)
    table = tuple(model.token_table())
    fingerprint = Vocabulary(table).fingerprint

    def make(target: TargetModel, slots: int) -> TorchEngine:
        if exact_rows:
            return ExactEngine(target, slots, tile_rows=exact_rows, fingerprint=fingerprint)
        return TorchEngine(target, slots, backend=backend, fingerprint=fingerprint)

    if exact_rows:
        _check_exact(model, make, exact_rows, num_slots or CPU_SLOTS)
    reserve = 0
    if model.device.type == "cuda":
        step = largest_step(max_rows, LONE_CHUNKS * prefill_chunk, model.max_positions)
        reserve = _reserve(make(model, step.num_rows), step, report, cuda_graphs)
    release()
    free = free_memory(model.device)
    if free is not None:
        free = agree(free - reserve) if agree is not None else free - reserve
    slots = choose_slots(num_slots, Room(free, report.kv_bytes), model.device)
    logger.info("target %s: %d KV slots of %d bytes", model.name, slots, report.kv_bytes)
    engine = make(model, slots)
    take_memory(engine)
    if not exact_rows:
        accelerate(engine, cuda_graphs=cuda_graphs, warm_rows=warm_rows)
    return engine, table


def _reserve(engine: TorchEngine, step: StepPlan, report: ProbeReport, cuda_graphs: bool) -> int:
    """Bytes that serving takes beside weights and KV: a step's at its peak, and as much once more for graphs,
    whose memory is their own."""
    if not isinstance(engine, ExactEngine):
        accelerate(engine, cuda_graphs=False)
    peak = peak_of(lambda: engine.evaluate(step), engine.model.device)
    if not (cuda_graphs and replays(engine)):
        return peak
    from cloud_verifier.engine.graphs import most_partial_bytes

    partial = max(most_partial_bytes(shape.num_heads, shape.value_depth) for shape in report.shapes)
    return 2 * peak + GRAPHS + partial


def check(model: TargetModel, backend: AttentionBackend, lengths: ProbeLengths = SHRUNK) -> ProbeReport:
    """Probe `model` and say in the log what was found. Raises as `probe`."""
    if model.shrinkage is not None:
        logger.info("target %s: %s", model.name, model.shrinkage)
    report = probe(model, backend=backend, lengths=lengths)
    logger.info(
        "target %s: %d probe rows agree within %.1e of the logits' spread, %.1f s",
        model.name,
        report.num_rows,
        report.worst,
        report.probe_time,
    )
    return report


def _check_exact(
    model: TargetModel, make: Callable[[TargetModel, int], TorchEngine], tile_rows: int, num_slots: int
) -> None:
    """Let a deterministic engine show that a row has the same bits alone and in company."""
    report = check_exact(model, make, tile_rows=tile_rows, longest=num_slots)
    logger.info(
        "target %s: %d rows have the same bits alone and in company, %.1f s",
        model.name,
        report.num_rows,
        report.check_time,
    )
