"""The command: a few steps of every stage leave a pair that loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch


def test_a_model_gets_a_number_of_steps_or_else_a_time(tmp_path: Path) -> None:
    from demo_models.schedule import Budget
    from demo_models.train import STAGES, parse_options

    options = parse_options(["--output", str(tmp_path), "--target-steps", "7", "--draft-seconds", "9"])
    assert options.target_budget == Budget(num_steps=7)
    assert options.draft_budget == Budget(seconds=9.0)
    assert options.stages == tuple(STAGES)
    assert options.draft_gguf == tmp_path / "draft" / "draft-q8_0.gguf"


def test_every_stage_leaves_files_that_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from demo_models import batches, corpus, train
    from demo_models.gguf_export import read_gguf

    split = corpus.load_split()
    small = corpus.Split(train=split.train[:20], held_out=split.held_out)
    monkeypatch.setattr(train, "load_split", lambda: small)
    monkeypatch.setattr(batches, "TOKENS_PER_STEP", 1024)
    arguments = [
        "--output",
        str(tmp_path),
        "--target-steps",
        "2",
        "--draft-steps",
        "2",
        "--refine-steps",
        "1",
    ]
    assert train.main([*arguments, "--sampled-rows", "2", "--sampled-length", "66"]) == 0
    draft = read_gguf(tmp_path / "draft" / "draft-q8_0.gguf")
    assert draft.config.num_hidden_layers == 2
    log = json.loads((tmp_path / "training_log.json").read_text(encoding="utf-8"))
    assert {stage: log[stage]["num_steps"] for stage in log} == {"target": 2, "draft": 2, "refine": 1}
