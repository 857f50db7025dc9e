"""`forerun heads`: heads are trained on a target's own texts, and a drafter is tried beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from forerun.cli import main
from lab import demo_models

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A tiny target with the demo pair's tokenizer."""
    from transformers import AutoConfig

    from tests.cloud_verifier.engine.tiny import SHAPE, from_config

    folder = tmp_path / "tiny"
    shape = {**SHAPE, "vocab_size": 3072, "eos_token_id": 0}
    from_config(AutoConfig.for_model("llama", **shape)).save_pretrained(folder)
    for name in TOKENIZER:
        shutil.copy(demo_models.TARGET_DIR / name, folder / name)
    return str(folder)


@pytest.fixture
def train(model: str, tmp_path: Path) -> list[str]:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps(["def f(x):", "class A:", "import os"]))
    told = ["heads", "train", "--model", model, "--prompts", str(prompts), "--out", str(tmp_path / "heads")]
    return [*told, "--texts", "24", "--max-tokens", "12", "--depth", "2", "--json"]


def test_trained_heads_are_served_and_tried(
    train: list[str], model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*train, "--steps", "3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["held_out_texts"] == 2
    assert [set(each) for each in report["levels"]] == [{"plain", "coupled"}] * 2
    assert {each.name for each in tmp_path.iterdir()} == {"tiny", "prompts.json", "heads"}
    check = ["heads", "check", "--model", model, "--prompts", train[5], "--max-tokens", "4"]
    for drafter in (str(tmp_path / "heads"), "exit:1", "skip", model):
        assert main([*check, "--drafter", drafter, "--step-floor", "20", "--json"]) == 0
        tried = json.loads(capsys.readouterr().out)
        assert tried["drafter"] in ((drafter,) if drafter != "skip" else ("skip:0", "skip:1"))
        assert tried["num_tokens"] == 9
        assert tried["step_ms"] >= 20
        assert len(tried["levels"]) == (2 if drafter.endswith("heads") else 16)
        assert tried["best_depth"] in range(17)


def test_trained_exits_are_served_and_tried(
    train: list[str], model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*train, "--steps", "2", "--kind", "exit", "--depth", "1"]) == 0
    assert len(json.loads(capsys.readouterr().out)["levels"]) == 1
    check = ["heads", "check", "--model", model, "--prompts", train[5], "--max-tokens", "4", "--json"]
    assert main([*check, "--drafter", f"exits:0.001:{tmp_path / 'heads'}"]) == 0
    assert json.loads(capsys.readouterr().out)["num_tokens"] == 9
    assert main([*train, "--steps", "2", "--kind", "exit", "--depth", "2"]) == 2, "the target has two layers"


def test_texts_are_kept_while_the_target_writes_and_only_for_the_same_prompts(
    train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from training import record, target_texts

    monkeypatch.setattr(target_texts, "KEEP_EVERY", 0.0)
    monkeypatch.setattr(target_texts, "BATCH", 16)
    write = record.write_texts
    groups = list[int]()

    def interrupted(engine: Any, group: Any, sampling: Any, batch: int) -> Any:
        if len(groups) == 1:
            raise KeyboardInterrupt
        groups.append(len(group))
        return write(engine, group, sampling, batch=batch)

    with monkeypatch.context() as patch:
        patch.setattr(target_texts, "write_texts", interrupted)
        main([*train, "--steps", "1"])
    prompts = tmp_path / "prompts.json"
    same = prompts.read_text()
    prompts.write_text(same.replace("class A:", "class B:"))
    assert main([*train, "--steps", "1"]) == 2
    prompts.write_text(same)
    capsys.readouterr()
    assert main([*train, "--steps", "1"]) == 0
    assert "written 16 of 24" not in capsys.readouterr().err


@pytest.mark.parametrize("given", [("--steps", "0"), ("--max-tokens", "4000")], ids=str)
def test_what_cannot_be_trained_is_refused(
    train: list[str], given: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = main([*train, *given])
    except SystemExit as ended:  # of the command line, which knows the bounds of a number
        code = ended.code
    assert code == 2
    assert " is ".join(given) in capsys.readouterr().err


def test_a_drafter_that_does_not_exist_is_refused(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for drafter in ("exit:9", "exit:x", "./none"):
        assert main(["heads", "check", "--model", model, "--drafter", drafter]) == 2
        assert drafter in capsys.readouterr().err
