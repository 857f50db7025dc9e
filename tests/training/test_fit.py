"""Laws of the command: what it writes is what an edge reads, and says what it was fitted on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from common.calibration import SHIPPED
from edge_client.core.policies import make_policy
from edge_client.draft.prior_file import read_priors
from forerun.cli import main
from schemes.policies.pacer import PacerPolicy
from simulator.recordings import RecordedText, Recording, RecordingHeader, write_recording
from tests import wording


def recording(path: Path, temperature: float, num_texts: int = 12, seed: int = 1) -> str:
    """Of a draft whose scores say nothing: which of five candidates is right is drawn evenly."""
    rng = np.random.default_rng(seed)
    ids = tuple(range(5))
    texts = []
    for _ in range(num_texts):
        tokens = tuple(int(token) for token in rng.integers(0, 5, size=20))
        scores = tuple(tuple((-np.sort(-rng.normal(size=5))).tolist()) for _ in tokens)
        texts.append(RecordedText(3, tokens, (ids,) * 20, scores, tuple(token + 1 for token in tokens)))
    write_recording(path, Recording(RecordingHeader("big", "small", temperature, seed), tuple(texts)))
    return str(path)


def test_a_prior_that_was_written_is_read_and_says_what_it_was_fitted_on(tmp_path: Path) -> None:
    out = tmp_path / "prior.json"
    warm = [recording(tmp_path / f"{seed}.jsonl", 0.8, num_texts=6, seed=seed) for seed in (1, 2)]
    cold = recording(tmp_path / "cold.jsonl", 0.0)
    assert main(["fit", *warm, cold, "--out", str(out), "--date", "in spring"]) == 0
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["date"] == "in spring"
    assert [point["temperature"] for point in document["points"]] == [0.0, 0.8]
    assert document["points"][1]["fitted_on"] == {
        "recordings": [{"target": "big", "draft": "small", "seed": seed} for seed in (1, 2)],
        "texts": 9,
        "tokens": 180,
    }
    assert document["points"][1]["held_out"]["texts"] == 3
    found = read_priors(out).at(0.8)
    assert found.confidence.sharpness < 0.2 * SHIPPED.at(0.8).confidence.sharpness
    assert found.sharpness.doubt < SHIPPED.at(0.8).sharpness.doubt


def test_people_are_told_what_it_is_worth_on_other_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", recording(tmp_path / "a.jsonl", 0.8)]) == 0
    told = capsys.readouterr().out
    assert "temperature 0.8, fitted on 9 texts, 180 tokens" in told
    *lines, decisions, policy = told.splitlines()[2:]
    nats = {line[12:]: float(line.split()[0]) for line in lines}
    assert nats["the fitted prior, never learning"] < nats["the shipped prior, never learning"]
    assert decisions.split()[:3] == ["nats", "per", "decision"]
    assert isinstance(make_policy(policy.split()[1]), PacerPolicy)


def test_what_is_printed_is_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, given = tmp_path / "prior.json", recording(tmp_path / "a.jsonl", 0.8)
    assert main(["fit", given, "--json", "--out", str(out)]) == 0
    assert capsys.readouterr().out == out.read_text(encoding="utf-8")


def test_too_few_texts_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", recording(tmp_path / "a.jsonl", 0.8, num_texts=4)]) == 2
    wording.keep(capsys.readouterr().err)


@pytest.mark.llama
def test_an_edge_refuses_a_prior_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["edge", "--listen", "127.0.0.1:0", "--draft", "none.gguf"]
    assert main([*words, "--prior", str(tmp_path / "none.json")]) == 2
    wording.keep(capsys.readouterr().err.splitlines()[-1])  # behind the log, which names the time


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "nowhere" / "prior.json")
    assert main(["fit", recording(tmp_path / "a.jsonl", 0.8), "--out", out]) != 0
    wording.keep(capsys.readouterr().err)
