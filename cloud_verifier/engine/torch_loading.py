"""Loads an engine that serves, from a folder or hub id: load, probe, allocate."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from cloud_verifier.core.batching import LONE_CHUNKS
from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.core.limits import slots_that_fit
from cloud_verifier.engine.attention.backend import AttentionBackend
from cloud_verifier.engine.attention.torch_ref import TorchRefBackend
from cloud_verifier.engine.conformance_probe import ProbeReport, probe
from cloud_verifier.engine.deterministic.exact_check import MakeEngine, check_exact
from cloud_verifier.engine.deterministic.exact_engine import ExactBackend, ExactEngine
from cloud_verifier.engine.deterministic.tiles import TILE_ROWS
from cloud_verifier.engine.model.checkpoint import UNBOUNDED_POSITIONS, read_settings
from cloud_verifier.engine.model.transformers_adapter import TargetModel, load_target
from cloud_verifier.engine.packing import item_of
from cloud_verifier.engine.torch_engine import OwnDraft, TorchEngine
from cloud_verifier.model_source import DRAFTERS, drafter_kind
from cloud_verifier.progress import Progress, no_progress
from common.child import available_memory
from common.errors import UserError
from common.offers import offer
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from common.wire.describe import TokenTable

logger = logging.getLogger(__name__)

LEAST_CAPABILITY = (8, 0)
"""Of a GPU that computes Triton's attention. On 7.5 a prefill tile needs more shared memory than there is,
smaller ones spill registers, and bfloat16 is emulated."""

SHARE = 0.9
"""Share of a device's free memory that KV may take. The rest is for fragments and for the libraries' own
buffers."""

GRAPHS = 1 << 30
"""Bytes of CUDA graphs beside the tensors that they hold: some 100 graphs of 1,300 kernels each."""

SPARE_STATES = 64
"""States beside those of two steps' rows (one step may begin before the other is booked): one for each of the
64 sessions that a verifier takes by default."""

STATE_SHARE = 0.25
"""Share of the free memory that states may take; KV and steps need the rest."""

LEAST_STATES = 34
"""States of two steps of one session with 16 rows, and of what it continues from."""

NUMBER_BYTES = 1 << 16
"""Memory reckoned for a slot of a model without keys and values, which is only a number: `--slots auto` then
gives a million slots to a large device, which the scheduler's lists can hold."""

NODES = 8
"""Rows of a session in `largest_step`, beside its prompt's chunk."""


def load_engine(
    source: str,
    num_slots: int | None,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    num_processes: int = 1,
    backend: AttentionBackend | None = None,
    deterministic: bool = False,
    attention: str = "auto",
    cuda_graphs: bool = True,
    max_rows: int = 256,
    prefill_chunk: int = 256,
    agree: Callable[[int], int] | None = None,
    drafter: str | None = None,
    progress: Progress = no_progress,
) -> tuple[TorchEngine, TokenTable]:
    """Load the target model `source`, check that its packed path is right, and give it `num_slots` KV slots.

    None gives it as many as the device has memory for (`choose_slots`), beside a step of `max_rows`
    nodes and `prefill_chunk` tokens of prompts. `agree` makes this process's free memory the group's.
    Returns the engine and the target's token table, whose fingerprint the engine's `info` holds. `dtype`,
    `device` and `num_processes` as in `load_target`. A `deterministic` engine is checked to
    be so, and brings its own attention in place of `backend`. Without a `backend`, `attention` names it;
    `cuda_graphs` as in `accelerate`. `drafter` as in `load_draft`. Raises `UserError` that says what to
    change.
    """
    progress(f"loading the weights of {source}")
    model = _load_model(source, dtype, device, num_processes, deterministic, drafter)
    backend = ExactBackend() if deterministic else backend or backend_of(attention, model.device)
    progress("checking packed steps against the plain model")
    report = check(model, backend)
    num_states = choose_states(max_rows, free_memory(model.device), report.state_bytes, model.device)
    vocabulary = Vocabulary(table := tuple(model.token_table()))
    make = _EngineMaker(model, backend, vocabulary.fingerprint, num_states, deterministic)
    longest_text = 0 if model.max_positions == UNBOUNDED_POSITIONS else model.max_positions
    choose = partial(
        choose_slots, num_slots, device=model.device, longest_text=longest_text, max_rows=max_rows
    )
    if deterministic:
        progress("checking that a row has the same bits alone and in company")
        _check_exact(model, make, choose(free_memory(model.device), report.kv_bytes or NUMBER_BYTES))
    if drafter is not None:
        progress(f"loading the drafter {drafter}")
        make.draft = load_draft(drafter, model, vocabulary)
    slot_bytes = _slot_bytes(make, report)
    reserve = num_states * report.state_bytes
    if make.draft is not None:
        reserve += make.draft.num_scratch * slot_bytes
    if model.device.type == "cuda":
        progress("measuring the memory of the largest step")
        step = largest_step(max_rows, LONE_CHUNKS * prefill_chunk, model.max_positions)
        reserve += _step_bytes(make(step.num_rows), step, report, cuda_graphs)
    release()
    free = free_memory(model.device)
    if free is not None:
        free = agree(free - reserve) if agree else free - reserve
    slots = choose(free, slot_bytes)
    logger.info("target %s: %d KV slots of %d bytes", model.name, slots, slot_bytes)
    progress(f"allocating {slots} KV slots")
    engine = make(slots)
    take_memory(engine)
    accelerate(engine, cuda_graphs=cuda_graphs, warm_rows=max_rows, progress=progress)
    return engine, table


def _load_model(
    source: str,
    dtype: str,
    device: str,
    num_processes: int,
    deterministic: bool,
    drafter: str | None,
) -> TargetModel:
    """Load the target, and suit it to its device. Arguments as in `load_engine`."""
    if deterministic and dtype == "auto" and device == "cpu":
        dtype = "float32"
    model = load_target(source, dtype=dtype, device=device, num_processes=num_processes)
    if model.state_layers and (deterministic or drafter is not None):
        option = "--deterministic" if deterministic else "--drafter"
        raise UserError(f"model '{model.name}' has layers that keep a state; serve it without {option}")
    if model.device.type == "cuda" and num_processes == 1 and not deterministic:
        # A CPU gains nothing in float32, and in bfloat16 less the larger the model is.
        model.merge_projections()
    return model


@dataclass(slots=True)
class _EngineMaker:
    """Makes engines on one loaded target, each with KV of its own."""

    model: TargetModel
    backend: AttentionBackend
    fingerprint: bytes
    num_states: int
    deterministic: bool
    draft: OwnDraft | None = None

    def __call__(self, num_slots: int) -> TorchEngine:
        if self.deterministic:
            return ExactEngine(self.model, num_slots, fingerprint=self.fingerprint, draft=self.draft)
        return TorchEngine(
            self.model,
            num_slots,
            backend=self.backend,
            fingerprint=self.fingerprint,
            draft=self.draft,
            num_states=self.num_states,
        )


LoadDraft = Callable[[str, TargetModel, Vocabulary], OwnDraft]
"""Loads what `--drafter` names for a target with this vocabulary. Raises `UserError` if it does not fit."""


def load_draft(source: str, target: TargetModel, vocabulary: Vocabulary) -> OwnDraft:
    """Load a file of `forerun heads train`, a folder or hub id of EAGLE-3 heads or of a small model, or an
    offered kind such as `exit:K`. Raises `UserError` if there is none, or if it does not fit the target."""
    kind = drafter_kind(source)
    if kind is None:
        if Path(source).expanduser().is_file():
            kind = "heads"
        elif "draft_vocab_size" in (settings := read_settings(source)):  # heads with an output of their own
            kind = str(settings.get("speculators_model_type", "eagle3"))
        else:
            kind = "model"
    missing = UserError(f"--drafter {source}: no installed package offers drafters of kind {kind}")
    load: LoadDraft = offer(DRAFTERS, kind, missing)
    return load(source, target, vocabulary)


def _slot_bytes(make: _EngineMaker, report: ProbeReport) -> int:
    """Return the bytes of a slot: the target's, and the drafter's, measured on an engine of one slot."""
    slot_bytes = report.kv_bytes or NUMBER_BYTES
    if make.draft is None:
        return slot_bytes
    engine = make(1)
    take_memory(engine)
    return slot_bytes + (0 if engine.drafter is None else engine.drafter.slot_bytes)


def _check_exact(model: TargetModel, make: MakeEngine, longest: int) -> None:
    began_at = time.perf_counter()
    num_rows = check_exact(model, make, tile_rows=TILE_ROWS, longest=longest)
    message = "target %s: %d rows have the same bits alone and in company, %.1f s"
    logger.info(message, model.name, num_rows, time.perf_counter() - began_at)


def _step_bytes(engine: TorchEngine, step: StepPlan, report: ProbeReport, cuda_graphs: bool) -> int:
    """Bytes that serving takes beside weights and KV: a step's at its peak, and as much once more for graphs,
    whose memory is their own."""
    accelerate(engine, cuda_graphs=False)
    peak = peak_of(lambda: engine.evaluate(step), engine.model.device)
    if not (cuda_graphs and replays(engine)):
        return peak
    from cloud_verifier.engine.graphs import most_partial_bytes

    partials = max(most_partial_bytes(shape.num_heads, shape.value_depth) for shape in report.shapes)
    return 2 * peak + GRAPHS + partials


def check(model: TargetModel, backend: AttentionBackend) -> ProbeReport:
    """Probe `model` and log the findings. Raises as `probe`."""
    report = probe(model, backend=backend)
    logger.info(
        "target %s: %d probe rows agree within %.1e of the logits' spread, %.1f s",
        model.name,
        report.num_rows,
        report.worst,
        report.probe_time,
    )
    return report


def backend_of(attention: str, device: torch.device) -> AttentionBackend:
    """Return the backend called `attention` on `device`; `auto` is triton on CUDA and torch_ref elsewhere.

    Raises `UserError` for an unknown name, and for triton where it cannot run.
    """
    if attention not in ("auto", "torch_ref", "triton"):
        raise UserError(f"--attention is {attention!r}; it must be auto, torch_ref, triton")
    if attention == "torch_ref" or (attention == "auto" and device.type != "cuda"):
        return TorchRefBackend()
    reason = why_no_triton(device)
    if reason is None:
        from cloud_verifier.engine.attention.triton_backend import TritonBackend

        return TritonBackend()
    if attention == "triton":
        raise UserError(f"--attention triton needs {reason}; use torch_ref")
    logger.warning("! attention is computed by torch_ref, without CUDA graphs: triton needs %s", reason)
    return TorchRefBackend()


def why_no_triton(device: torch.device) -> str | None:
    """Return what triton lacks to compute on `device`; None if nothing."""
    if find_spec("triton") is None:
        return "the package triton, which torch's CUDA wheels bring"
    from cloud_verifier.engine.attention.triton_backend import INTERPRETED

    if device.type != "cuda":
        return None if INTERPRETED else f"a CUDA device, and this is {device}"
    has_gpu = torch.cuda.is_available()
    capability = torch.cuda.get_device_capability(device) if has_gpu else LEAST_CAPABILITY
    if capability < LEAST_CAPABILITY:
        return f"compute capability 8.0, and {device} has {capability[0]}.{capability[1]}"
    return None


def accelerate(
    engine: TorchEngine, *, cuda_graphs: bool = True, warm_rows: int = 0, progress: Progress = no_progress
) -> None:
    """Let an engine choose on its device where the kernels of choices run, and replay its steps where
    `replays` says so.

    Graphs of steps of up to `warm_rows` rows are recorded now, which takes seconds; others at first use. The
    engine's `info` then names the sizes to which steps are padded.
    """
    if not _has_kernels(engine):
        return
    from cloud_verifier.engine.graphs import CudaCapture, DeviceRunner

    replayed = cuda_graphs and replays(engine)
    runner = DeviceRunner(engine, CudaCapture() if replayed else None)
    engine.runner = runner
    runner.warm(warm_rows, partial(progress, "compiling kernels and recording CUDA graphs"))
    engine.info = replace(engine.info, row_buckets=runner.row_buckets)
    if runner.counts.captures:
        logger.info("%d CUDA graphs made ahead", runner.counts.captures)


def replays(engine: TorchEngine) -> bool:
    """Return whether the engine's steps can be CUDA graphs. Only Triton's attention cuts steps into units. In
    a group each step is announced to the other ranks as it begins, which no graph records. Where layers keep
    states, the depth of a step's trees decides what runs."""
    on_gpu = engine.model.device.type == "cuda"
    return engine.backend.cuts is not None and on_gpu and not engine.backend.leads and engine.states is None


def _has_kernels(engine: TorchEngine) -> bool:
    """Tell whether choices are made by kernels: beside Triton's attention, and of a deterministic engine on a
    GPU that could run it."""
    is_exact = isinstance(engine, ExactEngine) and engine.model.device.type == "cuda"
    return engine.backend.cuts is not None or (is_exact and why_no_triton(engine.model.device) is None)


def choose_slots(
    asked: int | None,
    free: int | None,
    slot_bytes: int,
    device: torch.device,
    longest_text: int,
    max_rows: int,
) -> int:
    """Return the number of slots: `asked`, or for None as many as fit with a margin, and off CUDA no more
    than `slots_that_fit` says. Raises `UserError` if they do not fit.

    `free` is the memory beside that of steps and graphs, None if the system does not report it; `slot_bytes`
    are one token's keys and values over all layers; `longest_text` tokens are all that the target takes, 0 if
    it has no limit. One more slot is kept for rows that pad a step.
    """
    fit = 0 if free is None else max(0, int(SHARE * free) // slot_bytes - 1)
    if asked is None:
        is_own = device.type == "cuda" and free is not None
        slots = fit if is_own else slots_that_fit(slot_bytes, longest_text, free, max_rows)
        if slots < 1:
            raise UserError(
                f"--slots auto finds {_gib(free)} free on {device} beside the model and its steps, and "
                f"one slot takes {slot_bytes} bytes; use a smaller model, or lower --max-rows and "
                "--prefill-chunk"
            )
        return slots
    if free is not None and (asked + 1) * slot_bytes > free:
        at_most = f" or at most {fit}" if fit else ""
        raise UserError(
            f"--slots {asked} needs {_gib((asked + 1) * slot_bytes)} of KV memory on {device} and "
            f"{_gib(free)} are free; use --slots auto{at_most}"
        )
    return asked


def choose_states(max_rows: int, free: int | None, state_bytes: int, device: torch.device) -> int:
    """Return the number of states that the engine holds: those of two steps of `max_rows` rows and of 64
    sessions, or as many as fit into a quarter of the `free` memory (bytes; None if unknown).

    Raises `UserError` if these are too few for one session.
    """
    wanted = 2 * max_rows + SPARE_STATES
    if free is None or not state_bytes:
        return wanted
    fit = int(STATE_SHARE * free) // state_bytes
    if fit >= wanted:
        return wanted
    if fit < LEAST_STATES:
        raise UserError(
            f"{LEAST_STATES} states of {state_bytes / 2**20:,.0f} MiB are needed at least, and {_gib(free)} "
            f"are free on {device}, of which states may take a quarter; use a smaller model"
        )
    rows = max(1, (fit - SPARE_STATES) // 2)
    message = (
        "! %d states of %d bytes fit on %s: steps of more than %d rows may be tried twice; set --max-rows"
    )
    logger.warning(message, fit, state_bytes, device, rows)
    return fit


def take_memory(engine: TorchEngine) -> None:
    """Run a step of one row and guess once, to allocate all KV before the first session. Every rank calls it
    alike."""
    row = item_of([-1], np.zeros(1, np.int32))
    engine.logits(StepPlan((row,)))
    if engine.drafter is not None:
        engine.drafter.take_memory()


def largest_step(max_rows: int, prefill_chunk: int, max_positions: int) -> StepPlan:
    """Return a prompt's chunk beside `max_rows` nodes with a filter and a bias, as that takes most memory."""
    sampling = SamplingParams(temperature=1.0, top_p=0.9, logit_bias=((0, 1.0),))
    chunk, nodes = min(prefill_chunk, max_positions), min(NODES, max_positions)
    items, at = [item_of(range(-1, chunk - 1), np.arange(chunk, dtype=np.int32), sampling=sampling)], chunk
    while (count := min(chunk + max_rows - at, nodes)) > 0:
        slots = np.arange(at, at + count, dtype=np.int32)
        chain = range(-1, count - 1)
        items.append(item_of(chain, slots, outputs=range(count), session=len(items), sampling=sampling))
        at += count
    return StepPlan(tuple(items))


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that can be allocated on `device` now, or None if the system does not report them."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return (available_memory() or None) if device.type == "cpu" else None


def release() -> None:
    """Give unreferenced memory back to the device, so that `free_memory` counts it."""
    gc.collect()  # an engine and its runner know each other
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use


def peak_of(run: Callable[[], object], device: torch.device) -> int:
    """Return the bytes that `run` takes on a CUDA device at its peak, beyond those held before. Runs it
    twice: the first run also allocates memory that later runs reuse."""
    run()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device)) - before


def _gib(number: int | None) -> str:
    return f"{max(0, number or 0) / 2**30:,.3g} GiB"
