"""From a folder or hub id to an engine that serves: load, probe, allocate."""

from __future__ import annotations

import logging

from cloud_verifier.engine.attention import AttentionBackend
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.probe import ProbeReport, probe
from cloud_verifier.engine.probe_script import SHRUNK, ProbeLengths
from cloud_verifier.engine.transformers_adapter import TargetModel, load_target
from common.rpc.describe import TokenTable
from common.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


def default_dtype(dtype: str, device: str) -> str:
    """What "auto" means on `device`: a CPU gains nothing from bfloat16 and loses exactness."""
    return "float32" if dtype == "auto" and device == "cpu" else dtype


def load_engine(
    source: str,
    num_slots: int,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    quantization: str | None = None,
    backend: AttentionBackend | None = None,
    num_processes: int = 1,
) -> tuple[TorchEngine, TokenTable]:
    """Load the target model `source`, check that its packed path is right, and give it `num_slots` KV slots.

    Returns the engine and the target's token table, whose fingerprint the engine's `info` holds. `dtype`,
    `device`, `quantization` and `num_processes` as in `load_target`. Raises `UserError` that says what to
    change.
    """
    model, _ = load_checked(
        source,
        dtype=dtype,
        device=device,
        quantization=quantization,
        backend=backend,
        num_processes=num_processes,
    )
    table = tuple(model.token_table())
    fingerprint = Vocabulary(table).fingerprint
    return TorchEngine(model, num_slots, backend=backend, fingerprint=fingerprint), table


def load_checked(
    source: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    quantization: str | None = None,
    backend: AttentionBackend | None = None,
    lengths: ProbeLengths = SHRUNK,
    num_processes: int = 1,
) -> tuple[TargetModel, ProbeReport]:
    """Load the target model `source` and probe it. Raises as `load_target` and `probe`."""
    model = load_target(
        source, dtype=dtype, device=device, quantization=quantization, num_processes=num_processes
    )
    if model.shrinkage is not None:
        logger.info("target %s: %s", source, model.shrinkage)
    report = probe(model, backend=backend, lengths=lengths)
    logger.info(
        "target %s: %d probe rows agree within %.1e of the logits' spread, %.1f s",
        source,
        report.num_rows,
        report.worst,
        report.probe_time,
    )
    return model, report
