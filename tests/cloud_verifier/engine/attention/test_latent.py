"""Latent attention keeps latents where the attention takes them, and gives the same numbers either way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.attention.reference import TorchRefBackend, TorchRefStep
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from tests.cloud_verifier.engine.conformance import random_target
from tests.cloud_verifier.engine.families import SERVED_FAMILIES
from tests.cloud_verifier.engine.tiny import Session, Slots

pytestmark = pytest.mark.torch

RANK, ROTARY, HEADS, PLAIN, VALUES = 16, 4, 4, 8, 6
LATENTS = (1, RANK + ROTARY + RANK)
EXPANDED = (HEADS, PLAIN + ROTARY + VALUES)


def deepseek() -> TargetModel:
    (family,) = (family for family in SERVED_FAMILIES if family.model_type == "deepseek_v3")
    return random_target(family.name, family.model_type, family.settings, dtype="float32")


class Expanding(TorchRefBackend):
    """Attention that takes no latents, as Triton's."""

    def prepare(self, *given: object) -> TorchRefStep:
        step = super().prepare(*given)  # type: ignore[arg-type]
        step.takes_latents = False
        return step


class Quantized(torch.nn.Linear):
    """A layer that is no plain product of its weight."""


def logits(model: TargetModel, backend: TorchRefBackend) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return a tree's logits and the shape of a KV slot."""
    engine, session = TorchEngine(model, 64, backend=backend), Session(0, Slots(64))
    chunk = session.chunk([5, 9, 11, 2], [3])
    engine.logits(StepPlan((chunk,)))
    session.keep(chunk, range(4))
    found = engine.logits(StepPlan((session.item([7, 8, 3, 1], [-1, 0, 0, 2], range(4)),)))
    return found, tuple(engine.kv.layers[0].rows.shape[1:])


def test_a_slot_holds_latents_or_all_heads_and_logits_are_equal() -> None:
    latents, slot = logits(deepseek(), TorchRefBackend())
    assert slot == LATENTS
    expanded, slot = logits(deepseek(), Expanding())
    assert slot == EXPANDED
    assert torch.allclose(latents, expanded, atol=1e-4)


def test_a_quantized_expansion_stays_where_it_is() -> None:
    model = deepseek()
    for each in model.module.modules():
        if hasattr(each, "expand_kv"):
            module: Any = each
            del module.expand_kv
            module.kv_b_proj.__class__ = Quantized
    again = TargetModel("quantized", model.module)  # type: ignore[arg-type]
    assert logits(again, TorchRefBackend())[1] == EXPANDED
