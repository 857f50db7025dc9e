"""The whole command: processes, loads in turns, texts held against what the target writes alone."""

import json
from pathlib import Path

import pytest

from lab.__main__ import main
from lab.bench.formula import FORMULA
from lab.bench.load import SEQUENTIAL, STREAMING


@pytest.mark.slow
@pytest.mark.grpc
def test_the_command_compares_on_the_formula(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--target", FORMULA, "--sessions", "1", "2", "--drafts", "off", "oracle=0.8", "--texts", "3"]
    words += ["--max-tokens", "12", "--repeats", "2", "--rounds", "1", "--policy", "chain", "--no-pin"]
    words += ["--step-floor", "5", "--draft-ms", "0", "--json"]
    out = tmp_path / "report.json"
    assert main(["bench", "capacity", *words, "--out", str(out)]) == 0
    report = json.loads(capfd.readouterr().out)
    assert json.loads(out.read_text(encoding="utf-8")) == report
    assert [point["sessions"] for point in report["points"]] == [1, 2]
    for point in report["points"]:
        assert set(point["schemes"]) == {STREAMING, "oracle 0.8", SEQUENTIAL}
        assert point["schemes"][STREAMING]["target_steps_per_token"] == 1.0
        assert point["schemes"][STREAMING]["texts"] == 6  # three in each of two repeats
        assert point["schemes"]["oracle 0.8"]["draft_tokens_per_token"] > 0.0
        assert 0.0 < point["schemes"]["oracle 0.8"]["acceptance"] <= 1.0
    assert report["texts"] == {"compared": 36, "different": 0, "failed": 0}


@pytest.mark.slow
@pytest.mark.grpc
@pytest.mark.torch
@pytest.mark.llama
def test_the_command_loads_a_model(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--sessions", "2", "--texts", "2", "--rounds", "1"]
    words += ["--drafts", "off", "oracle=0.8", "recorded"]
    words += ["--max-tokens", "8", "--repeats", "1", "--no-pin", "--json"]
    assert main(["bench", "capacity", *words]) == 0
    report = json.loads(capfd.readouterr().out)
    (point,) = report["points"]
    assert set(point["schemes"]) == {STREAMING, "oracle 0.8", "recorded", SEQUENTIAL}
    assert all(found["texts_different"] == 0 for found in point["schemes"].values())
    assert all(found["tokens_per_second"] > 0 for found in point["schemes"].values())
    assert "/" not in report["settings"]["target"]
