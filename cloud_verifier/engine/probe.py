"""The conformance probe: before a model serves, its packed path must equal its plain eager self.

Several architectures accept a foreign attention function and compute wrong logits without a word: recurrent
state that runs across sessions, masks that exist only as masks, attention partly outside the interface. The
probe packs sessions of random tokens with shuffled slots, prefills in chunks, evaluates trees and goes on
below a branch, beyond every sliding window, and compares each row with transformers alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cloud_verifier.engine.attention import AttentionBackend, AttentionTerms, StepAttention
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.kv import LayerKV
from cloud_verifier.engine.packing import PackedStep
from cloud_verifier.engine.probe_script import ProbeScript, TokenPath
from cloud_verifier.engine.refusals import refusal
from cloud_verifier.engine.torch_ref import TorchRefBackend
from cloud_verifier.engine.transformers_adapter import TargetModel
from common.errors import UserError

TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.15}
"""Largest difference of a row, root mean square over the vocabulary, relative to the spread of its logits.
Rounding gives about 1e-6 in float32 and 0.01 in bfloat16; a leak or a wrong mask gives 0.01 to 1."""

WINDOW_LIMIT = 128
"""Longer sliding windows are shrunk to this many positions while the probe runs, which keeps it short."""

PROBE_SLOTS = 512
"""More than a script of sessions of WINDOW_LIMIT positions and their trees writes."""

_FORWARD_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, NotImplementedError)
"""What a model's code raises when it is called in a way it was not made for."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the probe found. `worst` and `tolerance` are relative to the spread of a row's logits."""

    num_rows: int  # rows compared
    worst: float
    tolerance: float
    probe_time: float  # seconds


def probe(model: TargetModel, *, backend: AttentionBackend | None = None, seed: int = 0) -> ProbeReport:
    """Compare the packed path with the plain one. Raises `UserError` with the reason if they differ."""
    begun_at = time.perf_counter()
    tolerance = TOLERANCE.get(model.dtype, TOLERANCE[torch.bfloat16])
    with model.windows_at_most(WINDOW_LIMIT), torch.inference_mode():
        packed = _packed_logits(model, backend or TorchRefBackend(), seed)
        worst, length = _worst_difference(model, packed)
    if not worst <= tolerance:  # also refuses NaN
        raise refusal(
            model.name,
            f"its packed path differs from plain transformers by {worst:.2g} of the logits' spread after "
            f"{length} tokens ({tolerance:g} is the most that rounding explains)",
        )
    return ProbeReport(len(packed), worst, tolerance, time.perf_counter() - begun_at)


def _packed_logits(model: TargetModel, backend: AttentionBackend, seed: int) -> Mapping[TokenPath, Tensor]:
    """Run the script through an engine of its own. Returns logits float32 [V] by the tokens up to the row."""
    recorder = _Recorder(backend)
    engine = TorchEngine(model, PROBE_SLOTS, backend=recorder)
    script = ProbeScript(engine, seed)
    try:
        script.warm_up()
        _check_layers(model, recorder)
        return script.run(max((*recorder.windows, *model.sliding_windows), default=0))
    except UserError as error:
        raise refusal(model.name, str(error)) from error
    except _FORWARD_ERRORS as error:
        raise refusal(model.name, f"its packed forward fails with {type(error).__name__}: {error}") from error


def _check_layers(model: TargetModel, recorder: _Recorder) -> None:
    if recorder.num_layers != model.num_layers:
        raise UserError(
            f"{recorder.num_layers} of its {model.num_layers} layers attend through transformers' attention "
            "interface, and the others may keep state that the verifier does not see"
        )


def _worst_difference(model: TargetModel, packed: Mapping[TokenPath, Tensor]) -> tuple[float, int]:
    """The largest relative difference of a row, and the number of tokens up to it."""
    worst, length = 0.0, 0
    with model.plain():
        for leaf in _leaves(packed):
            rows = [end for end in range(1, len(leaf) + 1) if leaf[:end] in packed]
            last = len(leaf) - rows[0] + 1
            plain = model.plain_logits(leaf, last)
            for end in rows:
                difference = _difference(packed[leaf[:end]], plain[end - 1 - len(leaf) + last])
                if not difference <= worst:
                    worst, length = difference, end
    return worst, length


def _leaves(packed: Mapping[TokenPath, Tensor]) -> list[TokenPath]:
    """Paths that no other path continues: comparing them compares all."""
    inner = {path[:end] for path in packed for end in range(1, len(path))}
    return [path for path in packed if path not in inner]


def _difference(logits: Tensor, plain: Tensor) -> float:
    """Root mean square of the difference over the standard deviation of the plain logits, both [V]."""
    return float((logits - plain).square().mean().sqrt() / plain.std())


class _Recorder:
    """A backend that notes how often a step attends, and under which windows."""

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend
        self._layers: set[int] = set()
        self.windows: set[int] = set()

    @property
    def num_layers(self) -> int:
        """Layers that have attended; each has KV of its own."""
        return len(self._layers)

    def prepare(self, step: PackedStep, device: torch.device) -> StepAttention:
        return _RecordedStep(self, self._backend.prepare(step, device))

    def note(self, kv: LayerKV, terms: AttentionTerms) -> None:
        self._layers.add(kv.keys.data_ptr())
        if terms.window is not None:
            self.windows.add(terms.window)


class _RecordedStep:
    """Passes a layer's attention on after noting it."""

    def __init__(self, recorder: _Recorder, attention: StepAttention) -> None:
        self._recorder = recorder
        self._attention = attention

    def attend(self, query: Tensor, kv: LayerKV, terms: AttentionTerms) -> Tensor:
        self._recorder.note(kv, terms)
        return self._attention.attend(query, kv, terms)
