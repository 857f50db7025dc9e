"""Early exit is measured before it is taken."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest
import torch

from cloud_verifier.engine.drafting import exits, trial
from cloud_verifier.engine.drafting.exits import best_exit
from cloud_verifier.engine.drafting.models import EarlyExit
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from tests.cloud_verifier.engine.drafting.rig import engine_of
from tests.cloud_verifier.engine.tiny import plain_model

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("weight", "pays"), [(0.0, True), (8.0, False)])
def test_an_exit_is_taken_where_the_later_layers_change_little(
    weight: float, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "TIMED", 2)
    plain = plain_model("llama")
    with torch.no_grad():
        plain.lm_head.weight.mul_(20.0)  # so sure that chance does not decide
        for layer in plain.model.layers[1:]:
            layer.self_attn.o_proj.weight.mul_(weight)
            layer.mlp.down_proj.weight.mul_(weight)
    model, ticks = TargetModel("tiny", plain), count()

    def engine(draft: EarlyExit) -> object:
        return engine_of(draft, model, exits.SLOTS)

    found = best_exit(model, engine, [[5, 9, 2, 41], [7, 80]], clock=partial(next, ticks))  # type: ignore[arg-type]
    assert (found is not None) is pays
