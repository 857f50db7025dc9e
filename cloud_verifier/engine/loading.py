"""From a folder or hub id to an engine that serves: load, probe, allocate."""

from __future__ import annotations

import logging

from cloud_verifier.engine.acceleration import accelerate, backend_of
from cloud_verifier.engine.attention import AttentionBackend
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.exact import ExactEngine
from cloud_verifier.engine.exact_attention import ExactBackend
from cloud_verifier.engine.exact_check import check_exact
from cloud_verifier.engine.probe import ProbeReport, probe
from cloud_verifier.engine.probe_script import SHRUNK, ProbeLengths
from cloud_verifier.engine.transformers_adapter import TargetModel, load_target
from common.rpc.describe import TokenTable
from common.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


def load_engine(
    source: str,
    num_slots: int,
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
) -> tuple[TorchEngine, TokenTable]:
    """Load the target model `source`, check that its packed path is right, and give it `num_slots` KV slots.

    Returns the engine and the target's token table, whose fingerprint the engine's `info` holds. `dtype`,
    `device`, `quantization` and `num_processes` as in `load_target`. With `exact_rows` above 0 the engine is
    the deterministic one, in tiles of so many rows, and is checked to be so; it brings its own attention in
    place of `backend`. Without a `backend`, `attention` names it, and the last two are as in
    `acceleration.accelerate`. Raises `UserError` that says what to change.
    """
    if exact_rows and dtype == "auto" and device == "cpu":
        dtype = "float32"
    model = load_target(
        source, dtype=dtype, device=device, quantization=quantization, num_processes=num_processes
    )
    backend = ExactBackend() if exact_rows else backend or backend_of(attention, model.device)
    check(model, backend)
    table = tuple(model.token_table())
    fingerprint = Vocabulary(table).fingerprint
    if exact_rows:
        return _exact_engine(model, num_slots, exact_rows, fingerprint), table
    engine = TorchEngine(model, num_slots, backend=backend, fingerprint=fingerprint)
    accelerate(engine, cuda_graphs=cuda_graphs, warm_rows=warm_rows)
    return engine, table


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


def _exact_engine(model: TargetModel, num_slots: int, tile_rows: int, fingerprint: bytes) -> ExactEngine:
    """The deterministic engine, once a row was seen to have the same bits alone and in company."""

    def make(target: TargetModel, slots: int) -> ExactEngine:
        return ExactEngine(target, slots, tile_rows=tile_rows, fingerprint=fingerprint)

    report = check_exact(model, make, tile_rows=tile_rows, longest=num_slots)
    logger.info(
        "target %s: %d rows have the same bits alone and in company, %.1f s",
        model.name,
        report.num_rows,
        report.check_time,
    )
    return make(model, num_slots)
