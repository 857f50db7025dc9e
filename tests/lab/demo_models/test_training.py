"""How the pair is trained: the text, the models, the optimizer and the command."""

import json
from pathlib import Path

import pytest

from lab.demo_models.corpus import HELD_OUT, load_split


def test_held_out_text_is_in_no_training_module() -> None:
    training, held_out = load_split()
    assert list(held_out) == [name for name in HELD_OUT if name in held_out]
    assert len(held_out) >= len(HELD_OUT) - 3
    assert training.keys().isdisjoint(HELD_OUT)
    assert set(training.values()).isdisjoint(held_out.values())
    assert list(training) == sorted(training)


@pytest.mark.torch
@pytest.mark.soak
def test_every_stage_leaves_files_that_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.demo_models import train, training
    from lab.demo_models.gguf_export import read_gguf

    monkeypatch.setattr(training, "TOKENS_PER_STEP", 1024)
    arguments = ["--output", str(tmp_path), "--documents", "500", "--target-steps", "2", "--draft-steps", "2"]
    assert train.main(arguments) == 0
    draft = read_gguf(tmp_path / "draft" / "draft-q8_0.gguf")
    assert draft.config.num_hidden_layers == 1
    log = json.loads((tmp_path / "training_log.json").read_text(encoding="utf-8"))
    assert {stage: log[stage]["num_steps"] for stage in log} == {"target": 2, "draft": 2}
