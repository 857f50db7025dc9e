"""Loads a GGUF target that serves: load, allocate, probe."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloud_verifier.core.nouns import CPU_SLOTS, FloatArray
from cloud_verifier.engine.probe_script import (
    SHRUNK,
    ProbeLengths,
    ProbeScript,
    TokenPath,
    leaves_of,
    slots_for,
)
from cloud_verifier.llama.engine import LlamaEngine
from common.errors import UserError
from common.llama.library import library
from common.llama.model import MAX_SEQUENCES, LlamaModel, LlamaSettings
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingDefaults
from common.wire.describe import TokenTable

logger = logging.getLogger(__name__)

TOLERANCE = 0.05
"""Largest difference of a probe row, root mean square over the vocabulary, relative to the spread of its
logits. KV in float16 and products whose order depends on the number of rows give up to 0.01; a leak gives 0.1
to 1."""

ALL_LAYERS = -1

ADVICE = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
"""Names of sampling values in a file's metadata, below `general.sampling.`. llama.cpp's penalties look at a
window of the text, and ours at all of it, so they are left out."""


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """Says how a GGUF target is computed."""

    threads: int = 0  # 0 = one less than the processors of this process
    gpu_layers: int = ALL_LAYERS  # on accelerators, if llama.cpp was built for any
    tensor_split: tuple[float, ...] = ()  # as in `LlamaSettings`


@dataclass(frozen=True, slots=True)
class LlamaProbeReport:
    """Reports the probe's findings. `worst` is relative to the spread of a row's logits."""

    num_rows: int  # rows compared
    worst: float
    median: float
    probe_time: float  # seconds


def load_engine(
    path: str, num_slots: int | None, max_rows: int, max_step: int, options: LlamaOptions, name: str = ""
) -> tuple[LlamaEngine, TokenTable]:
    """Load the file `path`, check that steps of packed sessions equal texts alone, and serve `num_slots` KV
    slots.

    Args: num_slots, None for `CPU_SLOTS`; max_rows and max_step, the
    most nodes and the most rows of a step; name, of the target (default: the file's). Returns the engine and
    the token table of its fingerprint. Raises `UserError` that says what to change.
    """
    runtime = open_runtime(path, num_slots, max_rows, max_step, options)
    try:
        slots = num_slots or runtime.n_ctx
        engine = LlamaEngine(runtime, slots, name=name or Path(path).stem, advice=advice_of(runtime))
        report = probe(engine)
    except UserError:
        runtime.close()
        raise
    words = "target %s (%s): %d probe rows agree within %.1e of the logits' spread, %.1f s; %d KV slots"
    figures = report.num_rows, report.worst, report.probe_time, slots
    logger.info(words, engine.info.name, runtime.description, *figures)
    return engine, tuple(runtime.token_table())


def open_runtime(
    path: str, num_slots: int | None, max_rows: int, max_step: int, options: LlamaOptions
) -> LlamaRuntime:
    """Load the weights and allocate `num_slots` cells; arguments as in `load_engine`."""
    offload = library().llama_supports_gpu_offload()
    num_outputs = max(max_rows, MAX_SEQUENCES)  # llama.cpp reserves a row for every sequence anyway
    settings = LlamaSettings(
        path,
        n_ctx=num_slots or CPU_SLOTS,
        n_seq_max=MAX_SEQUENCES,
        n_batch=max(max_step, 2 * num_outputs),
        max_rows=num_outputs,
        threads=options.threads,
        gpu_layers=options.gpu_layers if offload else 0,
        tensor_split=options.tensor_split,
    )
    return LlamaRuntime(settings, with_states=False)


def advice_of(model: LlamaModel) -> SamplingDefaults:
    """Return the sampling values that the file's makers advise. A value that is no number in range is left
    out, with all others."""
    found = {field: model.metadata(f"general.sampling.{key}") for field, key in ADVICE.items()}
    try:
        numbers = {field: float(text) for field, text in found.items() if text}
        if "top_k" in numbers:
            return SamplingDefaults(**{**numbers, "top_k": int(numbers["top_k"])})  # type: ignore[arg-type]
        return SamplingDefaults(**numbers)  # type: ignore[arg-type]
    except (UserError, ValueError) as error:
        logger.warning("! %s: its sampling values are left out (%s)", model.path, error)
        return SamplingDefaults()


def probe(engine: LlamaEngine, lengths: ProbeLengths = SHRUNK) -> LlamaProbeReport:
    """Compare rows of packed sessions and trees with each text evaluated alone, by the same llama.cpp.

    All KV is empty afterwards. Raises `UserError` with the reason if the model cannot be served.
    """
    began, info = time.perf_counter(), engine.info
    longest = min(lengths.shortest, info.max_positions // 2)
    if info.num_slots < slots_for(longest):
        raise UserError(
            f"--slots {info.num_slots} is too small for the probe; take {slots_for(longest)} or more"
        )
    script = ProbeScript[FloatArray](info, engine.logits)
    packed = script.run(longest, lengths.chunk)
    engine.clear()
    differences = _differences(packed, _plain_rows(engine, packed))
    engine.clear()
    worst = max(differences)
    if not worst <= TOLERANCE:  # also refuses NaN
        raise UserError(
            f"model '{info.name}' cannot be served: its packed path differs from llama.cpp alone by "
            f"{worst:.2g} of the logits' spread ({TOLERANCE:g} is the most that rounding explains)"
        )
    return LlamaProbeReport(len(packed), worst, statistics.median(differences), time.perf_counter() - began)


def _plain_rows(engine: LlamaEngine, paths: Mapping[TokenPath, FloatArray]) -> dict[TokenPath, FloatArray]:
    """Return the logits of each path, in one sequence of its own."""
    found = dict[TokenPath, FloatArray]()
    runtime = engine.runtime
    for leaf in leaves_of(paths):
        runtime.clear()
        for start in range(0, len(leaf), runtime.max_rows):
            part = leaf[start : start + runtime.max_rows]
            positions = list(range(start, start + len(part)))
            runtime.batch.fill(list(part), positions, [0] * len(part), [1] * len(part))
            if code := runtime.decode():
                raise UserError(
                    f"llama.cpp cannot evaluate {len(part)} tokens of '{engine.info.name}' ({code})"
                )
            logits = runtime.logits(len(part)).copy()
            ends = (leaf[: start + 1 + row] for row in range(len(part)))
            found.update((path, row) for path, row in zip(ends, logits, strict=True) if path in paths)
    return found


def _differences(rows: Mapping[TokenPath, FloatArray], plain: Mapping[TokenPath, FloatArray]) -> list[float]:
    """Return each row's difference, root mean square, over the standard deviation of the plain row."""
    return [
        float(np.sqrt(np.square(row - plain[path]).mean()) / max(float(plain[path].std()), 1e-6))
        for path, row in rows.items()
    ]
