"""The figures: how they are computed, and that the committed pair agrees as often as README.md says."""

from __future__ import annotations

import pytest

from demo_models import DRAFT_GGUF, TARGET_DIR
from demo_models.corpus import load_split

pytestmark = pytest.mark.torch

NUM_WINDOWS, CONTEXT = 12, 512
"""The slice: windows spread evenly over all held-out modules, which differ much from each other."""


def test_the_pair_agrees_on_held_out_code() -> None:
    from demo_models.batches import pack
    from demo_models.evaluate import compare, load_target
    from demo_models.gguf_export import read_gguf
    from demo_models.tokenizer import load_tokenizer

    tokens = pack(load_tokenizer(TARGET_DIR), [module.text for module in load_split().held_out])
    spread = tokens[: len(tokens) // NUM_WINDOWS * NUM_WINDOWS].view(NUM_WINDOWS, -1)[:, :CONTEXT].flatten()
    result = compare(load_target(), read_gguf(DRAFT_GGUF), spread, CONTEXT)
    assert result.agreement >= 0.75


def test_a_model_agrees_with_itself_everywhere() -> None:
    import torch

    from demo_models.architecture import new_model
    from demo_models.evaluate import compare

    model = new_model(1, seed=0).eval()
    result = compare(model, model, torch.arange(129), context=32)
    assert result.agreement == 1.0
    assert result.kl.abs().max() < 1e-5
    assert torch.equal(result.target_loss, result.draft_loss)
    assert len(result.rank) == 128


def test_ranks_and_quintiles_count_what_they_say() -> None:
    import torch

    from demo_models.evaluate import Comparison, quintiles, summarise

    confidence = torch.linspace(0.1, 1.0, 10)
    rank = torch.tensor([9, 3, 2, 1, 1, 0, 0, 0, 0, 0])
    zeros = torch.zeros(10)
    result = Comparison(zeros, zeros, zeros, rank, confidence)
    assert [part["agreement"] for part in quintiles(result)] == [0.0, 0.0, 0.5, 1.0, 1.0]
    summary = summarise(result, num_bytes_per_token=3.0)
    assert summary["agreement"] == 0.5
    assert summary["target_choice_in_draft_top"] == {"1": 0.5, "2": 0.7, "3": 0.8, "4": 0.9, "8": 0.9}
