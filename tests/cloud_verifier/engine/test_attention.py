"""What the registered function takes from the model, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import LocalError, UserError

pytestmark = pytest.mark.torch


def call(module: Any, **terms: Any) -> Any:
    """Call the function with one row inside a step; returns what the backend saw."""
    import torch

    from cloud_verifier.engine.attention import StepContext, attention_function, current_step
    from cloud_verifier.engine.kv import KVStore

    seen = []

    class Step:
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
    import torch

    sinks = torch.zeros(2)
    layer = SimpleNamespace(layer_idx=3)
    terms = call(layer, scaling=0.3, sliding_window=9, softcap=2.0, s_aux=sinks, is_causal=True, dropout=0.0)
    assert (terms.scaling, terms.window, terms.softcap) == (0.3, 9, 2.0)
    assert terms.sinks is sinks
    assert call(layer).scaling == 0.5  # by default the root of the depth


def test_outside_a_step_the_model_cannot_be_called() -> None:
    from cloud_verifier.engine.attention import attention_function

    row: Any = None
    with pytest.raises(LocalError, match="outside an engine step"):
        attention_function(row, row, row, row, None)


@pytest.mark.parametrize("term", ["mask", "position_bias"])
def test_masks_and_biases_of_the_model_are_refused(term: str) -> None:
    import torch

    with pytest.raises(UserError, match="of its own"):
        call(SimpleNamespace(layer_idx=0), **{term: torch.zeros(1)})


def test_a_layer_without_a_number_is_refused() -> None:
    with pytest.raises(UserError, match="layer number"):
        call(SimpleNamespace())
