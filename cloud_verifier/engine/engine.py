"""The verifier's engine: one packed forward of the target per step, and its choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.core.target import FloatArray, IntArray, StepItem, StepPlan, StepResult, TargetInfo
from cloud_verifier.engine.attention import AttentionBackend, StepContext, current_step
from cloud_verifier.engine.choice import ChoiceRow, choose
from cloud_verifier.engine.kv import KVStore
from cloud_verifier.engine.packing import PackedStep, StepLimits, pack, path_rows
from cloud_verifier.engine.torch_ref import TorchRefBackend

if TYPE_CHECKING:
    from cloud_verifier.engine.transformers_adapter import TargetModel


class TorchEngine:
    """A `TargetEngine` on torch. Not safe for several threads at a time; one thread calls it."""

    def __init__(
        self,
        model: TargetModel,
        num_slots: int,
        *,
        backend: AttentionBackend | None = None,
        fingerprint: bytes = b"",
    ) -> None:
        self._model = model
        self._backend = backend or TorchRefBackend()
        self._kv = KVStore(num_slots)
        self._info = TargetInfo(
            name=model.name,
            vocab_size=model.vocab_size,
            max_positions=model.max_positions,
            num_slots=num_slots,
            eos_token_ids=model.eos_token_ids,
            fingerprint=fingerprint,
        )
        self._limits = StepLimits(model.vocab_size, model.max_positions, num_slots)

    @property
    def info(self) -> TargetInfo:
        return self._info

    @property
    def model(self) -> TargetModel:
        """The target that it runs."""
        return self._model

    @property
    def kv(self) -> KVStore:
        """The KV store, for its measures."""
        return self._kv

    @torch.inference_mode()
    def evaluate(self, plan: StepPlan) -> StepResult:
        """Run one step. Raises `LocalError` for a plan that breaks a rule of `StepItem`."""
        step = pack(plan, self._limits)
        if not len(step.outputs):
            if step.num_rows:
                self._forward(step)
            empty = tuple(np.zeros(0, np.int32) for _ in plan.items)
            return StepResult(empty, tuple(np.zeros(0, np.float32) for _ in plan.items))
        rows = [row for item in plan.items for row in choice_rows(item)]
        choices, margins = choose(self._forward(step), rows)
        return _by_item(plan, choices, margins)

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """Run one step for its raw logits: float32 [O, V], on the model's device. Raises as `evaluate`."""
        return self._forward(pack(plan, self._limits))

    def _forward(self, step: PackedStep) -> Tensor:
        """Write the rows' KV and return logits float32 [O, V]."""
        packed = np.concatenate((step.tokens, step.positions, step.slots, step.outputs))
        num_rows = step.num_rows
        on_device = torch.from_numpy(packed).to(self._model.device)  # one transfer for all four
        tokens, positions, slots = on_device[: 3 * num_rows].view(3, num_rows)
        attention = self._backend.prepare(step, self._model.device)
        with current_step(StepContext(self._kv, slots, attention)):
            return self._model.forward(tokens[None], positions[None], on_device[3 * num_rows :])


def choice_rows(item: StepItem) -> list[ChoiceRow]:
    """What each output row's choice depends on besides its logits."""
    sampling, positions = item.sampling, item.positions
    if not sampling.has_penalties:
        return [ChoiceRow(sampling, int(positions[row]), None, None) for row in item.outputs.tolist()]
    return [
        ChoiceRow(sampling, int(positions[row]), item.prompt, _generated(item, row))
        for row in item.outputs.tolist()
    ]


def _generated(item: StepItem, row: int) -> IntArray:
    """Tokens after the prompt, up to and including `row` on its path; rows of the prompt do not count."""
    prompt_length = 0 if item.prompt is None else len(item.prompt)
    path = [index for index in path_rows(item.parents, row) if item.positions[index] >= prompt_length]
    earlier = item.generated if item.generated is not None else np.zeros(0, np.int32)
    return np.concatenate((earlier, item.tokens[path]))


def _by_item(plan: StepPlan, choices: Tensor, margins: Tensor) -> StepResult:
    """Split choices int64 [O] and margins float32 [O] by item."""
    ends = np.cumsum([len(item.outputs) for item in plan.items])[:-1]
    tokens: IntArray = choices.cpu().numpy().astype(np.int32)
    scores: FloatArray = margins.cpu().numpy()
    return StepResult(tuple(np.split(tokens, ends)), tuple(np.split(scores, ends)))
