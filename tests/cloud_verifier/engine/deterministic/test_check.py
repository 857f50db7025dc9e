"""The check at load time lets through what keeps its bits, and refuses what does not."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cloud_verifier.engine.attention.torch_ref import TorchRefBackend
from cloud_verifier.engine.deterministic.exact_check import check_exact
from cloud_verifier.engine.deterministic.exact_engine import ExactBackend, ExactEngine
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.packing import PackedStep
from cloud_verifier.engine.torch_loading import load_engine
from common.errors import UserError
from lab import demo_models
from tests import wording
from tests.cloud_verifier.engine.tiny import target

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]


def check(model: TargetModel, **settings: Any) -> int:
    return check_exact(
        model, partial(ExactEngine, model, **settings), tile_rows=settings.get("tile_rows", 32), longest=400
    )


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3_moe"])
def test_a_family_passes(family: str) -> None:
    assert check(target(family)) > 140


def test_attention_padded_by_the_group_is_refused() -> None:
    with wording.raises(UserError):
        check(target("llama"), backend=TorchRefBackend())


@pytest.mark.parametrize("fault", ["place", "company"])
def test_a_kernel_that_minds_place_or_company_is_refused(fault: str) -> None:
    """One layer adds the last bit of something that a row's path does not tell."""
    model = target("llama")
    mlp: Any = model.module.get_submodule("model.layers.0.mlp")
    right = mlp.forward

    def forward(states: Tensor) -> Tensor:
        result: Tensor = right(states)
        if fault == "place":
            result[0, -1] = torch.nextafter(result[0, -1], result[0, -1] + 1)  # the last row of a tile
        elif bool((states[0, :, 0] > 0).sum() % 2):
            result = torch.nextafter(result, result + 1)
        return result

    mlp.forward = forward
    with wording.raises(UserError):
        check(model)


def test_equally_wrong_is_wrong() -> None:
    """A tile whose rows never see their prefix keeps its bits, and they are not the model's."""

    class Blind(ExactBackend):
        def prepare(self, step: PackedStep, device: torch.device) -> Any:
            items = tuple(replace(item, prefix_slots=np.zeros(0, np.int32)) for item in step.items)
            return super().prepare(replace(step, items=items), device)

    with wording.raises(UserError):
        check(target("llama"), backend=Blind())


def test_experts_that_cannot_be_computed_row_by_row_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = target("qwen3_moe")
    monkeypatch.setattr(type(model.module), "_can_set_experts_implementation", classmethod(lambda cls: False))
    with wording.raises(UserError):
        check(model)


def test_the_engine_that_loads_is_checked_and_deterministic() -> None:
    engine, table = load_engine(str(demo_models.TARGET_DIR), 64, deterministic=True)
    assert isinstance(engine, ExactEngine)
    assert len(table) == engine.info.vocab_size
