"""Merged projections compute what they computed apart, in no more memory."""

import pytest
import torch
from torch import nn

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.conformance_probe import probe
from cloud_verifier.engine.model.merging import MergedProjections
from cloud_verifier.engine.model.precision import weight_bytes
from cloud_verifier.engine.torch_engine import TorchEngine
from common.errors import UserError
from tests import wording
from tests.cloud_verifier.engine.tiny import Session, Slots, target

pytestmark = pytest.mark.torch


class Block(nn.Module):
    """Projections of one input, or of two."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, size) for size in (16, 4, 4))
        self.o_proj = nn.Linear(16, 8)

    def forward(self, states: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        keys, values = self.k_proj(others), self.v_proj(others)
        found: torch.Tensor = self.o_proj(self.q_proj(states)) @ torch.cat((keys, values), dim=-1).T
        return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen2", "gemma2"])
def test_merged_projections_give_the_same_logits(family: str, dtype: torch.dtype) -> None:
    model = target(family, dtype)
    tree = Session(0, Slots(40)).item([5, 9, 6, 9], [-1, 0, 0, 2], range(4))
    plan = StepPlan((tree,))
    expected, held = TorchEngine(model, 40).logits(plan), weight_bytes(model.module)
    model.merge_projections()
    found = TorchEngine(model, 40).logits(plan)
    rounding = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(found, expected, rtol=rounding, atol=rounding)
    assert weight_bytes(model.module) == held
    merged = [group for each in model.layers for group in storages(each)]
    assert merged == [1, 1] * model.num_layers
    assert probe(model).worst < 1e-5


def storages(layer: nn.Module) -> list[int]:
    """The number of pieces of memory of each group's weights."""
    attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    groups = [[attention.q_proj, attention.k_proj, attention.v_proj], [mlp.gate_proj, mlp.up_proj]]
    return [len({each.weight.untyped_storage().data_ptr() for each in group}) for group in groups]  # type: ignore[operator, union-attr]


def test_the_probe_finds_a_wrong_merge() -> None:
    model = target("llama")
    model.merge_projections()
    assert model._merged is not None
    first = model._merged.groups[0]
    first._weight = first._weight.roll(1, dims=0)
    with wording.raises(UserError):
        probe(model)


def test_a_module_that_gets_another_input_computes_alone() -> None:
    block, states, others = Block(), torch.randn(3, 8), torch.randn(5, 8)
    expected = block(states, others), block(states, states)
    merged = MergedProjections(block)
    for inputs, right in zip((others, states), expected, strict=True):
        torch.testing.assert_close(block(states, inputs), right)
    with merged.off():
        torch.testing.assert_close(block(states, states), expected[1])
    assert len(merged.groups) == 1


def test_what_is_not_plain_is_left_alone() -> None:
    unlike, replaced, packed = Block(), Block(), Block()
    del packed.k_proj.weight
    unlike.k_proj = nn.Linear(8, 4, bias=False)
    replaced.v_proj.forward = lambda states: states[..., :4]  # type: ignore[assignment, method-assign]
    for block in (unlike, replaced, packed, nn.Sequential(nn.Linear(8, 4))):
        assert MergedProjections(block).groups == []
