"""What rounding changes on this machine stays below what is called a near tie."""

from __future__ import annotations

import pytest

from cloud_verifier.core.target import StepPlan

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_other_company_moves_a_gap_by_less_than_a_near_tie(dtype: str) -> None:
    import torch

    import demo_models
    from cloud_verifier.engine.engine import TorchEngine
    from cloud_verifier.engine.transformers_adapter import load_target
    from tests.cloud_verifier.engine.tiny import Session, Slots

    model = load_target(str(demo_models.TARGET_DIR), dtype=dtype)
    tokens = model.tokenize("def parse_header(line):\n    name, value = line.split(':', 1)\n    return name")
    engine, slots = TorchEngine(model, 256), Slots(256)
    session = Session(0, slots)
    alone = list[torch.Tensor]()
    for token in tokens:
        item = session.chunk([token], [0])
        alone += engine.logits(StepPlan((item,)))
        session.keep(item, [0])
    together = Session(1, slots).chunk(tokens, range(len(tokens)))
    mixed = engine.logits(StepPlan((Session(2, slots).chunk([1, 2, 3, 4, 5]), together)))
    plain = torch.stack(alone)
    best = plain.topk(2, dim=1).indices
    gaps = [logits.gather(1, best).diff(dim=1) for logits in (plain, mixed)]
    assert 0 < float((gaps[0] - gaps[1]).abs().max()) < engine.info.near_tie


def test_an_unknown_type_is_taken_for_the_coarsest() -> None:
    import torch

    from cloud_verifier.engine.near_tie import NEAR_TIE, near_tie

    assert near_tie(torch.float64) == max(NEAR_TIE.values())
