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
