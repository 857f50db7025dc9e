"""Implements the conformance probe: before a model serves, its packed path must equal its plain eager self.

Several architectures accept a foreign attention function and compute wrong logits without a word: recurrent
state that runs across sessions, masks that exist only as masks, attention partly outside the interface. The
probe packs sessions of random tokens with shuffled slots, prefills in chunks, evaluates trees and goes on
below a branch, beyond every sliding window. Then it asks three questions.

1. Is the backend's attention that of the reference, at this model's shapes, in the precision that serves?
   (`attention/attention_check.py`; the reference itself, `torch_ref` in float32, rests on question 2)
2. Is the packed path the same function as transformers alone? Asked in float32, to which a model in half
   precision is widened meanwhile: its rounding would hide a window that is off by one.
3. In half precision: is the packed path as exact as transformers alone, both held against these float32
   logits?
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cloud_verifier.engine.attention.attention_check import LayerShape, attention_error, badness
from cloud_verifier.engine.attention.backend import AttentionBackend, AttentionTerms, LayerKV, StepAttention
from cloud_verifier.engine.attention.torch_ref import TorchRefBackend
from cloud_verifier.engine.model.refusals import Refusal
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.packing import PackedStep
from cloud_verifier.engine.probe_script import (
    MARGIN,
    WARM_UP_ROWS,
    ProbeScript,
    TokenPath,
    leaves_of,
    slots_for,
)
from cloud_verifier.engine.torch_engine import TorchEngine
from common.errors import LocalError, UserError

WINDOW = 128
"""Positions to which longer sliding windows are shrunk meanwhile. A load can afford no more, and in a short
window a token too many weighs more. Question 1 is also asked of the windows as they are."""

SHORTEST = 24
"""Tokens of the longest session, if no window asks for more."""

COMPARED_TOKENS = 2**14
"""Logits of a row that are compared at most."""

STATES = 64
"""Recurrent states of the probe's engine. Its largest step needs 30; few are kept longer than that."""

TOLERANCE = 1e-3
"""Largest difference of a row in float32, root mean square over the vocabulary, relative to the spread of its
logits. Rounding gives about 1e-6; a leak or a wrong mask gives 0.01 to 1."""

ROUTED_SHARE = 0.1
"""Of the rows of a mixture of experts, which may differ by more: where two experts are all but equally good,
rounding decides which one a row is sent to. A mistake would move more rows than these."""

COARSE_TOLERANCE = {torch.float32: TOLERANCE, torch.float16: 0.03, torch.bfloat16: 0.15}
"""Where logits of the precision that serves are compared, since a model's weights cannot be widened; for its
median row if it has experts."""

LESS_EXACT = 3.0
"""In half precision, how many times the median error of plain transformers that of the packed path may be; it
is 0.8 to 1.5 times on the models of `families.py`."""

SPREAD_FLOOR = 0.01
"""A row counts as spread by this share of what the median row is, at least."""

Rows = Mapping[TokenPath, Tensor]
"""Logits float32 [V] of rows, `sampled`, by the tokens from position 0 up to each."""

_FORWARD_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, NotImplementedError)
"""What a model's code raises when it is called in a way it was not made for."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Reports the probe's findings. `worst` and `tolerance` are relative to the spread of a row's logits."""

    num_rows: int  # rows compared
    worst: float
    tolerance: float
    attention: float  # largest error of the backend's attention, as a share of what rounding explains
    exactness: float | None  # half precision: median error of the packed path over that of the plain one
    shapes: tuple[LayerShape, ...]  # each kind of attention in the model, with its windows as they are
    kv_bytes: int  # one token's keys and values over all layers
    state_bytes: int  # one state over all layers that keep one
    probe_time: float  # seconds


def probe(model: TargetModel, *, backend: AttentionBackend | None = None) -> ProbeReport:
    """Ask the three questions. Raises `UserError` with the reason if the model cannot be served, and
    `LocalError` if the attention backend is wrong."""
    begun_at = time.perf_counter()
    backend, window = backend or TorchRefBackend(), model.sliding_window
    with torch.inference_mode(), ieee_products(), model.windows_at_most(WINDOW):
        packed, recorder, state_bytes = _packed_rows(model, backend)
        shapes = recorder.unshrunk(window)
        attention = _check_attention(model, backend, (*recorder.shapes, *shapes))
        if model.computes_in_half and model.can_widen:
            worst, exactness = _compare_in_half(model, packed)
        else:
            worst, exactness = _compare(model, packed, _plain_rows(model, packed)), None
    return ProbeReport(
        num_rows=len(packed),
        worst=worst,
        tolerance=_tolerance(model),
        attention=attention,
        exactness=exactness,
        shapes=tuple(shapes),
        kv_bytes=recorder.kv_bytes,
        state_bytes=state_bytes,
        probe_time=time.perf_counter() - begun_at,
    )


@contextmanager
def ieee_products() -> Iterator[None]:
    """Round no float32 product to TF32 until the block ends. Some containers ask for TF32 by a variable
    (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE), and rounding would then reach `TOLERANCE`."""
    switch: Any = torch.backends.cuda.matmul
    before = switch.fp32_precision
    switch.fp32_precision = "ieee"
    try:
        yield
    finally:
        switch.fp32_precision = before


def _check_attention(model: TargetModel, backend: AttentionBackend, shapes: Iterable[LayerShape]) -> float:
    """Ask the first question. Return the largest error as a share of what rounding explains."""
    worst = 0.0
    for shape in {shape.kind: shape for shape in shapes}.values():
        error = attention_error(backend, shape, model.device)
        if not error <= 1.0:  # also refuses NaN
            raise LocalError(
                f"the attention backend {type(backend).__name__} is wrong for model '{model.name}': its "
                f"error is {error:.2g} times what rounding explains, with {shape.describe()}. Choose another "
                "attention backend or device."
            )
        worst = max(worst, error)
    return worst


def _compare_in_half(model: TargetModel, packed: Rows) -> tuple[float, float]:
    """Ask the second and the third question. `packed` are the rows in half precision."""
    rounded = _plain_rows(model, packed)
    with model.in_float32():
        exact = _plain_rows(model, packed)
        packed_exact, *_ = _packed_rows(model, TorchRefBackend())
        worst = _compare(model, packed_exact, exact)
    if not all(bool(row.isfinite().all()) for row in rounded.values()):
        raise UserError(
            f"model '{model.name}' overflows in {model.dtype_name}: its logits are not all finite. "
            "Serve it in bfloat16 or float32."
        )
    ours, theirs = (statistics.median(_differences(rows, exact).values()) for rows in (packed, rounded))
    if not ours <= LESS_EXACT * theirs + TOLERANCE:
        raise Refusal(
            model.name,
            f"in {model.dtype_name} its packed path is off by {ours:.2g} of the logits' spread in the median "
            f"row, and plain transformers by {theirs:.2g}",
        )
    return worst, ours / theirs if theirs else 1.0


def _compare(model: TargetModel, packed: Rows, plain: Rows) -> float:
    """Ask the second question of the rows of both paths. Return the largest difference that counts."""
    differences = _differences(packed, plain)
    tolerance = _tolerance(model)
    by_badness = sorted(differences.items(), key=lambda item: badness(item[1]), reverse=True)
    path, worst = by_badness[_excused(model, len(differences))]
    if not worst <= tolerance:  # also refuses NaN
        raise Refusal(
            model.name,
            f"its packed path differs from plain transformers by {worst:.2g} of the logits' spread after "
            f"{len(path)} tokens ({tolerance:g} is the most that rounding explains)",
        )
    return worst


def _excused(model: TargetModel, num_rows: int) -> int:
    """Return how many rows may differ by more than the tolerance."""
    if not model.routes_tokens:
        return 0
    return num_rows // 2 if _is_coarse(model) else int(num_rows * ROUTED_SHARE)


def _tolerance(model: TargetModel) -> float:
    return COARSE_TOLERANCE[model.dtype] if _is_coarse(model) else TOLERANCE


def _is_coarse(model: TargetModel) -> bool:
    return model.computes_in_half and not model.can_widen


def _packed_rows(model: TargetModel, backend: AttentionBackend) -> tuple[Rows, _Recorder, int]:
    """Run the script through engines of its own. Returns the logits, what the layers asked for, and the bytes
    of a state."""
    first, recorder = _Recorder(backend), _Recorder(backend)
    try:
        small = TorchEngine(model, WARM_UP_ROWS, backend=first)
        script_of(small).warm_up()
        _check_layers(model, small)
        longest = max(SHORTEST, MARGIN + max((*first.windows, model.sliding_window or 0)))
        engine = TorchEngine(model, slots_for(longest), backend=recorder, num_states=STATES)
        rows = script_of(engine).run(longest)
        return rows, recorder, 0 if engine.states is None else engine.states.state_bytes
    except UserError as error:
        raise Refusal(model.name, str(error)) from error
    except _FORWARD_ERRORS as error:
        raise Refusal(model.name, f"its packed forward fails with {type(error).__name__}: {error}") from error


def _check_layers(model: TargetModel, engine: TorchEngine) -> None:
    seen = len(model.state_layers.union(engine.kv.layers))
    if seen != model.num_memory_layers:
        raise UserError(
            f"{seen} of its {model.num_memory_layers} layers attend through transformers' attention "
            "interface or keep a state in transformers' cache, and the others may keep state that the "
            "verifier does not see"
        )


def _plain_rows(model: TargetModel, paths: Iterable[TokenPath]) -> Rows:
    """Return the logits of transformers alone."""
    wanted = dict.fromkeys(paths)
    rows: dict[TokenPath, Tensor] = {}
    with model.plain():
        for leaf in leaves_of(wanted):
            ends = [end for end in range(1, len(leaf) + 1) if leaf[:end] in wanted]
            last = len(leaf) - ends[0] + 1
            logits = sampled(model.plain_logits(leaf, last))
            rows.update((leaf[:end], logits[end - 1 - len(leaf) + last]) for end in ends)
    return rows


def _differences(rows: Rows, reference: Rows) -> dict[TokenPath, float]:
    """Root mean square of each row's difference over the standard deviation of the reference.

    A row may have none: one padding token alone, whose embedding is zero. Hence the floor under it.
    """
    spreads = {path: float(row.std()) for path, row in reference.items()}
    floor = SPREAD_FLOOR * statistics.median(spreads.values())
    return {
        path: float((row - reference[path]).square().mean().sqrt()) / max(spreads[path], floor)
        for path, row in rows.items()
    }


def sampled(logits: Tensor) -> Tensor:
    """Return logits [..., V] of at most `COMPARED_TOKENS` tokens at equal distances. A mistake moves a whole
    row, and whole rows of a large vocabulary would take as much memory as a small model."""
    step = -(-logits.shape[-1] // COMPARED_TOKENS)
    return logits if step == 1 else logits[..., ::step].clone()


def script_of(engine: TorchEngine) -> ProbeScript[Tensor]:
    return ProbeScript(engine.info, lambda plan: sampled(engine.logits(plan)))


class _Recorder(AttentionBackend):
    """A backend that notes how often a step attends, and with what."""

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend
        self._layers: dict[int, int] = {}  # address of a layer's KV -> bytes of one slot
        self._kinds: dict[tuple[object, ...], LayerShape] = {}

    @property
    def kv_bytes(self) -> int:
        """Return the KV bytes of one token, over these layers."""
        return sum(self._layers.values())

    @property
    def shapes(self) -> list[LayerShape]:
        """Return every kind of attention once."""
        return list(self._kinds.values())

    @property
    def windows(self) -> set[int]:
        return {shape.terms.window for shape in self.shapes if shape.terms.window is not None}

    def unshrunk(self, window: int | None) -> list[LayerShape]:
        """Return the same shapes with the model's own window in place of one that was shrunk."""
        if window is None or window <= WINDOW:
            return self.shapes
        return [
            replace(shape, terms=replace(shape.terms, window=window))
            if shape.terms.window == WINDOW
            else shape
            for shape in self.shapes
        ]

    def prepare(self, step: PackedStep, device: torch.device) -> StepAttention:
        return _RecordedStep(self, self._backend.prepare(step, device))

    def note(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> None:
        self._layers[kv.keys.data_ptr()] = kv.rows[0].nbytes
        shape = LayerShape.of(query, kv, terms)
        self._kinds.setdefault(shape.kind, shape)


class _RecordedStep(StepAttention):
    """Passes a layer's attention on after noting it."""

    def __init__(self, recorder: _Recorder, attention: StepAttention) -> None:
        self._recorder = recorder
        self._attention = attention

    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        self._recorder.note(query, kv, terms)
        return self._attention.attend(query, kv, terms)
