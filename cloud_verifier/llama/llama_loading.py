"""Loads a GGUF target that serves: load, allocate, probe."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cloud_verifier.core.limits import slots_that_fit
from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.llama.llama_probe import LlamaProbeReport, probe_once
from cloud_verifier.progress import Progress, no_progress
from common.errors import UserError
from common.llama.library import free_memory, offloaded_layers
from common.llama.load_trial import ModelTrials
from common.llama.model import MAX_SEQUENCES, LlamaModel, LlamaSettings
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingDefaults
from common.wire.describe import TokenTable

logger = logging.getLogger(__name__)

ADVICE = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
"""Names of sampling values in a file's metadata, below `general.sampling.`. llama.cpp's penalties look at a
window of the text, and ours at all of it, so they are left out."""


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """Says how a GGUF target is computed."""

    threads: int = 0  # 0 = one less than the processors of this process
    gpu_layers: int | None = None  # on accelerators; None = all, if llama.cpp was built for any
    tensor_split: tuple[float, ...] = ()  # as in `LlamaSettings`
    deterministic: bool | None = None
    """Whether equal requests get equal texts. None: on a processor, apart from replies that a later prompt of
    the conversation contains, whose KV is used again. False: as fast as possible."""


TRIED, PROBED = "tried.json", "probed.json"
"""Names of the records: of files that a child has loaded, and of those whose packed steps were right."""

SPARE_CELLS, SPARE_SHARE = 512, 8
"""KV cells beyond the slots: so many, and one for so many slots. Dead cells stay in them for a while
(`llama.sequences`)."""


def load_engine(
    path: str,
    num_slots: int | None,
    max_rows: int,
    max_step: int,
    options: LlamaOptions,
    name: str = "",
    progress: Progress = no_progress,
    records: Path | None = None,
) -> tuple[LlamaEngine, TokenTable, LlamaProbeReport]:
    """Load the file `path`, check that steps of packed sessions equal texts alone, and serve `num_slots` KV
    slots.

    A child tries the file first, since llama.cpp may crash on a damaged one. Args: num_slots, None for
    what memory holds; max_rows and max_step, the most nodes and the most rows of a step; name, of the target
    (default: the file's); progress, of the load; records, the folder that remembers files which have passed
    (None: nothing is remembered). Returns the engine, the token table of its fingerprint and the findings.
    Raises `UserError` that says what to change.
    """
    tried = LlamaSettings(path, **_computed(options))
    slots = _try(tried, num_slots, max_rows, progress, None if records is None else records / TRIED)
    progress("loading the weights")
    runtime = open_runtime(path, slots, max_rows, max_step, options)
    try:
        engine = LlamaEngine(runtime, slots, name=name or Path(path).stem, advice=advice_of(runtime))
        report = probe_once(engine, progress, None if records is None else records / PROBED)
        if options.deterministic and not report.shapes.repeats:
            remedy = ", or serve with --gpu-layers 0" if runtime.settings.gpu_layers else ""
            raise UserError(
                f"--deterministic: here llama.cpp rounds '{engine.info.name}' otherwise in each decode, so "
                f"that no text repeats itself; leave --deterministic out{remedy}"
            )
        engine.info = replace(engine.info, apart=report.apart and options.deterministic is True)
    except UserError:
        runtime.close()
        raise
    texts = "equal texts" if report.shapes.repeats else "equal texts but for near ties"
    logger.info(
        "target %s (%s): %d of %d checked rows equal to the bit, %.1f s; %d KV slots; equal requests get %s",
        engine.info.name,
        runtime.description,
        report.num_equal,
        report.num_rows,
        report.seconds,
        slots,
        texts,
    )
    return engine, tuple(runtime.token_table()), report


def _try(
    settings: LlamaSettings,
    num_slots: int | None,
    max_rows: int,
    progress: Progress,
    record: Path | None,
) -> int:
    """Let a child try the file: its tokens, then its weights. Return the number of KV slots to serve."""
    progress(f"trying {settings.path} in a process of its own")
    trials = ModelTrials(record)
    trials.ensure(settings, weights=False)
    with LlamaModel(settings, weights=False) as model:
        model.refuse_unsuited(with_states=False)
        slots = num_slots or _slots_that_fit(model, max_rows, settings.gpu_layers)
    trials.ensure(settings, weights=True)
    return slots


def _computed(options: LlamaOptions) -> dict[str, Any]:
    """Return the fields of `LlamaSettings` that choose llama.cpp's kernels."""
    layers = offloaded_layers(options.gpu_layers)
    invariant = not layers if options.deterministic is None else options.deterministic
    return {"gpu_layers": layers, "batch_invariant": invariant}


def _slots_that_fit(model: LlamaModel, max_rows: int, layers: int) -> int:
    """Return the KV slots that fit into memory beside the weights, dead cells included."""
    kv_bytes = model.kv_bytes * (SPARE_SHARE + 1) // SPARE_SHARE
    free = free_memory(layers)
    left = max(free - os.stat(model.path).st_size, 1) if free else 0
    return slots_that_fit(kv_bytes, model.context_length, left, max_rows)


def open_runtime(
    path: str, num_slots: int, max_rows: int, max_step: int, options: LlamaOptions
) -> LlamaRuntime:
    """Load the weights and allocate cells for `num_slots`; arguments as in `load_engine`."""
    num_outputs = max(max_rows, MAX_SEQUENCES)  # llama.cpp reserves a row for every sequence anyway
    settings = LlamaSettings(
        path,
        n_ctx=num_slots + SPARE_CELLS + num_slots // SPARE_SHARE,
        n_seq_max=MAX_SEQUENCES,
        n_batch=max(max_step, 2 * num_outputs),
        max_rows=num_outputs,
        threads=options.threads,
        tensor_split=options.tensor_split,
        **_computed(options),
    )
    return LlamaRuntime(settings, with_states=False)


def advice_of(model: LlamaModel) -> SamplingDefaults:
    """Return the sampling values that the file's makers advise. A value that is no number in range is left
    out, with all others."""
    advice = {field: model.metadata(f"general.sampling.{key}") for field, key in ADVICE.items()}
    try:
        numbers = {field: float(text) for field, text in advice.items() if text}
        if "top_k" in numbers:
            return SamplingDefaults(**{**numbers, "top_k": int(numbers["top_k"])})  # type: ignore[arg-type]
        return SamplingDefaults(**numbers)  # type: ignore[arg-type]
    except (UserError, ValueError) as error:
        logger.warning("! %s: its sampling values are left out (%s)", model.path, error)
        return SamplingDefaults()
