"""What the registered function takes from the model, and what it refuses."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cloud_verifier.engine.attention.backend import (
    KVStore,
    StepAttention,
    StepContext,
    attention_function,
    current_step,
)
from common.errors import LocalError, UserError
from tests import wording

pytestmark = pytest.mark.torch


def call(module: Any, **terms: Any) -> Any:
    """Call the function with one row inside a step; returns what the backend saw."""
    seen = []

    class Step(StepAttention):
        def attend(self, query: Any, kv: Any, given: Any) -> Any:
            seen.append(given)
            return query.transpose(1, 2)

    row = torch.ones(1, 2, 1, 4)
    mask = terms.pop("mask", None)
    with current_step(StepContext(KVStore(3), torch.tensor([1]), Step())):
        result, weights = attention_function(module, row, row, row, mask, **terms)
    assert weights is None
    assert result.shape == (1, 1, 2, 4)
    return seen[0]


def test_terms_reach_the_backend_and_other_arguments_are_ignored() -> None:
    sinks = torch.zeros(2)
    layer = SimpleNamespace(layer_idx=3)
    terms = call(layer, scaling=0.3, sliding_window=9, softcap=2.0, s_aux=sinks, is_causal=True, dropout=0.0)
    assert (terms.scaling, terms.window, terms.softcap) == (0.3, 9, 2.0)
    assert terms.sinks is sinks
    assert call(layer).scaling == 0.5  # by default the root of the depth


def test_outside_a_step_the_model_cannot_be_called() -> None:
    module: Any = SimpleNamespace(layer_idx=0)
    row = torch.zeros(1, 1, 1, 8)
    with wording.raises(LocalError):
        attention_function(module, row, row, row, None)


@pytest.mark.parametrize("term", ["mask", "position_bias"])
def test_masks_and_biases_of_the_model_are_refused(term: str) -> None:
    with wording.raises(UserError):
        call(SimpleNamespace(layer_idx=0), **{term: torch.zeros(1)})


def test_a_layer_without_a_number_is_refused() -> None:
    with wording.raises(UserError):
        call(SimpleNamespace())


def test_rows_lie_in_their_slots_and_others_stay() -> None:
    store = KVStore(5)
    key, value = torch.rand(1, 2, 3, 4), torch.rand(1, 2, 3, 6)  # values deeper than keys, as in DeepSeek
    kv = store.write(7, torch.tensor([4, 0, 2]), key, value)
    assert kv.keys.shape == (5, 2, 4)
    assert kv.values.shape == (5, 2, 6)
    assert torch.equal(kv.keys[[4, 0, 2]], key[0].transpose(0, 1))
    assert torch.equal(kv.values[[4, 0, 2]], value[0].transpose(0, 1))
    assert not kv.rows[[1, 3]].any()
    before = kv.keys[4].clone()
    assert store.write(7, torch.tensor([1]), key[:, :, :1], value[:, :, :1]) is kv
    assert torch.equal(kv.keys[4], before)
