"""`forerun align` writes a draft that knows the target better, and goes on where it was interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.llama.model import LlamaModel, LlamaSettings
from forerun.cli import main
from forerun.demo_pair import DRAFT_GGUF
from tests import wording
from tests.training.interrupted import interrupted_after
from training.trainer import Optimizer

pytestmark = [pytest.mark.torch, pytest.mark.llama]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(
        json.dumps(["def add(a, b):\n    return", "import os\n", "class A:\n", "x = [1, 2"] * 2)
    )
    sizes = ["--texts", "8", "--max-tokens", "12", "--threads", "1", "--json"]
    return ["align", "--prompts", str(prompts), "--out", str(tmp_path / "out.gguf"), *sizes]


def report_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_the_best_weights_are_written(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.align.CHECK_EVERY", 1)
    assert main([*command, "--updates", "4"]) == 0
    report = report_of(capsys)
    assert report["after"]["coupled"] >= report["before"]["coupled"]
    assert report["after"]["by_rank"] == sorted(report["after"]["by_rank"])
    assert min(report["after"]["draft_step_ms"].values()) > 0.0
    assert (tmp_path / "out.gguf").read_bytes()[:4] == b"GGUF"
    assert not list(tmp_path.glob("*.training"))


def test_rates_that_do_harm_are_lowered_until_they_do_not(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed = list[float]()
    slow_down = Optimizer.slow_down

    def noted(optimizer: Optimizer) -> None:
        slow_down(optimizer)
        slowed.append(optimizer.share)
        assert not any(moment.any() for moment in optimizer.moments.values())

    monkeypatch.setattr(Optimizer, "slow_down", noted)
    monkeypatch.setattr("training.align.CHECK_EVERY", 1)
    monkeypatch.setattr("training.align.PATIENCE", 100)
    monkeypatch.setattr("training.align.ALL_RATES", (8.0, 2.0))
    assert main([*command, "--updates", "8"]) == 0
    report = report_of(capsys)
    assert slowed[:2] == [0.25, 0.0625]
    assert report["after"]["coupled"] >= report["before"]["coupled"]


def test_a_trimmed_draft_is_written_without_any_update(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--updates", "0", "--trim", "280"]) == 0
    report = report_of(capsys)
    assert (report["tokens"], report["updates"]) == (280, 0)
    assert 0.0 < report["outside"] < 1.0
    assert 0.0 < report["after"]["coupled"] < report["before"]["coupled"]
    with LlamaModel(LlamaSettings(str(tmp_path / "out.gguf")), weights=False) as words:
        assert words.num_vocab == 280


def test_a_second_draft_is_measured_beside_the_first(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the times of a fast draft and a slow target."""
    monkeypatch.setattr("training.predicted.draft_times", lambda file, threads: {1: 1.0, 2: 1.5})
    monkeypatch.setattr("training.align.target_step_ms", lambda *_: {1: 30.0})
    assert main([*command, "--updates", "2", "--boost", str(DRAFT_GGUF)]) == 0
    report = report_of(capsys)
    before, after, both = (report[name] for name in ("before", "after", "both"))
    assert both["first"] == pytest.approx(before["coupled"], abs=1e-5)
    assert both["second"] == pytest.approx(after["coupled"], abs=1e-5)
    assert both["either"] >= max(both["first"], both["second"])
    assert (both["draft_step_ms"], after["draft_step_ms"]) == ({"1": 2.0, "2": 3.0}, {"1": 1.0, "2": 1.5})
    for measured in (before, after, both):
        assert measured["ms_per_token"]["forerun"] < measured["ms_per_token"]["server_streaming"]


def test_an_interrupted_training_ends_as_one_that_is_not(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.align.CHECK_EVERY", 1)
    assert main([*command, "--updates", "4", "--rank", "4"]) == 0
    whole = report_of(capsys)
    with interrupted_after(2):
        main([*command, "--updates", "4", "--rank", "4"])
    capsys.readouterr()
    assert main([*command, "--updates", "4", "--rank", "4"]) == 0
    after = report_of(capsys)["after"]
    assert all(after[name] == whole["after"][name] for name in ("coupled", "greedy", "by_rank", "by_depth"))


def test_chats_and_texts_of_the_draft_are_read_too(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held out, and so measured, are texts of the target alone."""
    monkeypatch.setattr("training.align.CHECK_EVERY", 1)
    assert main([*command, "--updates", "1", "--chat", "--on-policy", "0.5", "--texts", "16"]) == 0
    assert report_of(capsys)["held_out_texts"] == 1


@pytest.mark.parametrize(
    "more",
    [
        *(
            ["--temperature", "0"],
            ["--on-policy", "1"],
            ["--adapter", "a.gguf"],
            ["--layers", "x"],
            ["--layers", "5"],
        ),
        *(["--boost", "none.gguf"], ["--boost", str(DRAFT_GGUF), "--trim", "1000"]),
        *(["--trim", "10"], ["--trim", "1000", "--rank", "4", "--adapter", "a.gguf"]),
    ],
)
def test_options_that_do_not_fit_are_refused(
    command: list[str], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *more]) == 2
    wording.keep(capsys.readouterr().err.splitlines()[-1])
