"""From a folder or hub id to an engine that serves: load, probe, allocate."""

from __future__ import annotations

import logging

from cloud_verifier.engine.attention import AttentionBackend
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.probe import probe
from cloud_verifier.engine.transformers_adapter import load_target
from common.rpc.describe import TokenTable
from common.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


def load_engine(
    source: str,
    num_slots: int,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    backend: AttentionBackend | None = None,
) -> tuple[TorchEngine, TokenTable]:
    """Load the target model `source`, check that its packed path is right, and give it `num_slots` KV slots.

    Returns the engine and the target's token table, whose fingerprint the engine's `info` holds. `dtype` and
    `device` as in `load_target`. Raises `UserError` that says what to change.
    """
    model = load_target(source, dtype=dtype, device=device)
    report = probe(model, backend=backend)
    logger.info(
        "target %s: %d probe rows agree within %.1e of the logits' spread, %.1f s",
        source,
        report.num_rows,
        report.worst,
        report.probe_time,
    )
    table = tuple(model.token_table())
    fingerprint = Vocabulary(table).fingerprint
    return TorchEngine(model, num_slots, backend=backend, fingerprint=fingerprint), table
