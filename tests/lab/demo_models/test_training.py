"""How the pair is trained: the text, the models, the optimizer and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.demo_models import TARGET_DIR
from lab.demo_models.corpus import HELD_OUT, load_split

# The text ------------------------------------------------------------------------------------------------


def test_held_out_text_is_in_no_training_module() -> None:
    training, held_out = load_split()
    assert list(held_out) == [name for name in HELD_OUT if name in held_out]
    assert len(held_out) >= len(HELD_OUT) - 3
    assert training.keys().isdisjoint(HELD_OUT)
    assert set(training.values()).isdisjoint(held_out.values())
    assert list(training) == sorted(training)


@pytest.mark.torch
def test_texts_are_packed_with_an_end_of_text_token_after_each() -> None:
    from lab.demo_models.tokenizer import load_tokenizer
    from lab.demo_models.training import pack

    tokenizer = load_tokenizer(TARGET_DIR)
    first, second, other = (tokenizer.encode(text).ids for text in ("import os\n", "x", "y = 1"))
    tokens, weights = pack(tokenizer, [(("import os\n", 0.25), ("x", 1.0)), (("y = 1", 0.5),)])
    assert tokens.tolist() == [*first, *second, 0, *other, 0]
    expected = [0.25] * len(first) + [1.0] * (len(second) + 1) + [0.5] * (len(other) + 1)
    assert weights.tolist() == expected


@pytest.mark.torch
@pytest.mark.parametrize("context", [256, 512, 1024])
def test_a_batch_holds_windows_of_consecutive_tokens(context: int) -> None:
    import torch

    from lab.demo_models.training import TOKENS_PER_STEP, WindowStream

    packed = torch.arange(50_000), torch.arange(50_000) / 2
    (first, weights), (second, _) = (WindowStream(packed, seed=0).next_batch(context) for _ in range(2))
    assert first.shape == (TOKENS_PER_STEP // context, context + 1)
    assert bool((first.diff(dim=1) == 1).all())
    assert torch.equal(weights, first / 2)
    assert torch.equal(first, second), "the same seed gives the same windows"


@pytest.mark.torch
def test_windows_begin_with_texts_and_no_token_is_read_twice() -> None:
    import torch

    from lab.demo_models.training import TOKENS_PER_STEP, WindowStream

    lengths = (100, 300, 40, 2000, *(150,) * 150)  # of the texts, each with its end-of-text token
    ends = torch.tensor(lengths).cumsum(0)
    tokens = torch.arange(1, sum(lengths) + 1)
    tokens[ends - 1] = 0
    batch, _ = WindowStream((tokens, torch.ones(len(tokens))), seed=0).next_batch(256)
    starts = (batch[:, 0] - 1).tolist()
    assert len(set(starts)) == TOKENS_PER_STEP // 256
    inside = set(starts) - {0, *ends.tolist()}
    assert all(440 < start < 2440 for start in inside), "only the long text goes on in a second window"


# The models ----------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_a_grown_model_computes_what_the_shallow_one_did() -> None:
    import torch

    from lab.demo_models.architecture import grow, new_model

    shallow = new_model(2, seed=1)
    with torch.no_grad():
        for param in shallow.parameters():
            param.add_(0.05 * torch.randn(param.shape, generator=torch.Generator().manual_seed(2)))
        tokens = torch.arange(24).view(2, 12)
        difference = (grow(shallow, 5)(tokens).logits - shallow(tokens).logits).abs().max()
    assert difference < 1e-4


@pytest.mark.torch
def test_a_fresh_model_is_the_identity_between_embedding_and_norm() -> None:
    import torch

    from lab.demo_models.architecture import new_model

    model, again = new_model(2, seed=1), new_model(2, seed=1).state_dict()
    tokens = torch.arange(8).view(1, 8)
    with torch.no_grad():
        expected = model.lm_head(model.model.norm(model.model.embed_tokens(tokens)))
        assert torch.allclose(model(tokens).logits, expected, atol=1e-5)
    assert all(torch.equal(weight, again[name]) for name, weight in model.state_dict().items())


@pytest.mark.torch
def test_the_draft_begins_as_the_first_block_of_the_target() -> None:
    import torch

    from lab.demo_models.architecture import draft_from, new_model

    target = new_model(4, seed=1)
    draft = draft_from(target)
    (ours,), theirs = draft.model.layers, target.model.layers[0].state_dict()
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.state_dict().items())
    assert draft.lm_head.weight is draft.model.embed_tokens.weight


# The optimizer -------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(3, 16, 48), (2, 48, 16), (1, 32, 32)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    import torch

    from training.head_training import orthogonal

    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(matrices))
    assert values.max() < 1.3  # the quintic's band is about 0.7 to 1.2 (Jordan 2024)
    assert values.median() > 0.6


@pytest.mark.torch
def test_training_on_one_batch_lowers_its_loss_and_the_rates_scale_from_their_base() -> None:
    import torch

    from lab.demo_models.architecture import new_model
    from lab.demo_models.training import PairOptimizer, next_token_loss

    model = new_model(1, seed=0)
    batch = torch.arange(64).view(2, 32)
    optimizer = PairOptimizer(model, matrix_lr=0.02, other_lr=0.003)
    losses = []
    for _ in range(6):
        loss = next_token_loss(model, batch).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1.0
    optimizer.scale(0.5)
    optimizer.scale(0.5)
    assert optimizer.learning_rates == [0.01, 0.0015]


@pytest.mark.torch
def test_passes_add_up_to_the_weighted_mean_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from lab.demo_models import training
    from lab.demo_models.architecture import new_model

    model = new_model(1, seed=0)
    tokens = torch.arange(4 * 17).view(4, 17)
    weights = torch.rand(4, 17, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(training, "TOKENS_PER_PASS", 32)
    found = training.accumulate(model, (tokens, weights), training.next_token_loss)
    gradient = model.lm_head.weight.grad.clone()
    model.zero_grad()
    shares = (weights[:, 1:] / weights[:, 1:].sum()).flatten()
    expected = (training.next_token_loss(model, tokens) * shares).sum()
    expected.backward()  # type: ignore[no-untyped-call]
    assert found == pytest.approx(expected.item())
    assert torch.allclose(gradient, model.lm_head.weight.grad, atol=1e-6)


# The command ---------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.soak
def test_every_stage_leaves_files_that_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.demo_models import train, training
    from lab.demo_models.gguf_export import read_gguf

    monkeypatch.setattr(training, "TOKENS_PER_STEP", 1024)
    arguments = [
        "--output",
        str(tmp_path),
        "--documents",
        "500",
        "--target-steps",
        "2",
        "--draft-steps",
        "2",
    ]
    assert train.main(arguments) == 0
    draft = read_gguf(tmp_path / "draft" / "draft-q8_0.gguf")
    assert draft.config.num_hidden_layers == 1
    log = json.loads((tmp_path / "training_log.json").read_text(encoding="utf-8"))
    assert {stage: log[stage]["num_steps"] for stage in log} == {"target": 2, "draft": 2}
