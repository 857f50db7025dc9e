"""How one model begins from another: growth changes nothing at first, a draft is parts of the target."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


def test_a_grown_model_computes_what_the_shallow_one_did() -> None:
    import torch

    from demo_models.architecture import grow, new_model

    shallow = new_model(2, seed=1)
    with torch.no_grad():
        for param in shallow.parameters():
            param.add_(0.05 * torch.randn(param.shape, generator=torch.Generator().manual_seed(2)))
    tokens = torch.arange(24).view(2, 12)
    with torch.no_grad():
        difference = (grow(shallow, 5)(tokens).logits - shallow(tokens).logits).abs().max()
    assert difference < 1e-4


def test_a_fresh_model_is_the_identity_between_embedding_and_norm() -> None:
    import torch

    from demo_models.architecture import new_model

    model = new_model(2, seed=1)
    tokens = torch.arange(8).view(1, 8)
    with torch.no_grad():
        expected = model.lm_head(model.model.norm(model.model.embed_tokens(tokens)))
        assert torch.allclose(model(tokens).logits, expected, atol=1e-5)


def test_the_draft_begins_as_the_first_and_the_last_block_of_the_target() -> None:
    import torch

    from demo_models.architecture import draft_from, new_model

    target = new_model(4, seed=1)
    draft = draft_from(target)
    for ours, theirs in zip(
        draft.model.layers, (target.model.layers[0], target.model.layers[3]), strict=True
    ):
        weights = theirs.state_dict()
        assert all(torch.equal(weight, weights[name]) for name, weight in ours.state_dict().items())
    assert draft.lm_head.weight is draft.model.embed_tokens.weight


def test_the_same_seed_gives_the_same_weights() -> None:
    import torch

    from demo_models.architecture import new_model

    first, second = new_model(1, seed=5).state_dict(), new_model(1, seed=5).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
