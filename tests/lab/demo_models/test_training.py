"""How the pair is trained: the text, the models, the optimizer and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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


# The optimizer -------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(3, 16, 48), (2, 48, 16), (1, 32, 32)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    import torch

    from training.trainer import orthogonal

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
