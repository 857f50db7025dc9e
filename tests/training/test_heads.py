"""`forerun heads`: heads are trained on a target's own texts, and a drafter is tried beside it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from cloud_verifier.engine.torch_loading import load_engine
from common.sampling import SamplingParams
from forerun.cli import main
from lab import demo_models
from tests.cloud_verifier.engine.tiny import SHAPE, from_config
from tests.training.interrupted import interrupted_after
from tests.training.logged import fill, some_prompts
from training import heads, record, target_texts

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A tiny target with the demo pair's tokenizer."""
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


def test_an_interrupted_training_goes_on_with_the_same_log_and_heads_alone(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = load_engine(model, 16384)
    prompts = [engine.model.tokenize(text) for text in some_prompts(48)]
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    log, log_before, before = tmp_path / "log", tmp_path / "log-before", tmp_path / "before"
    fill(log, engine, prompts[:40], sampling)
    fresh = ["heads", "train", "--model", model, "--log", str(log), "--kind", "medusa", "--depth", "1"]
    for seed in range(2):
        assert main([*fresh, "--steps", "1", "--seed", str(seed), "--out", str(tmp_path / str(seed))]) == 0
    shutil.copy(tmp_path / "0", before)
    further = [*fresh, "--heads", str(before), "--steps", "2", "--out", str(tmp_path / "after")]
    monkeypatch.setattr(heads, "SAVE_EVERY", 1)
    with interrupted_after(1):
        main(further)
    shutil.copy(tmp_path / "1", before)
    assert main(further) == 2, "other heads of that name"
    shutil.copy(tmp_path / "0", before)
    shutil.copytree(log, log_before)
    fill(log, engine, prompts[40:], sampling)
    assert main(further) == 2, "other texts in the log"
    shutil.rmtree(log)
    log_before.rename(log)
    capsys.readouterr()
    assert main([*further, "--margin", "0.5", "--device", "cpu:0"]) == 0
    assert "after 1 of 2" in capsys.readouterr().err


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
