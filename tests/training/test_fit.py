"""Laws of the command: what it writes is what an edge reads, and says what it was fitted on."""

import json
from pathlib import Path

import numpy as np
import pytest

from common.calibration import SHIPPED
from forerun.cli import main
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


def test_a_prior_says_what_it_was_fitted_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warm = [recording(tmp_path / f"{seed}.jsonl", 0.8, num_texts=6, seed=seed) for seed in (1, 2)]
    cold = recording(tmp_path / "cold.jsonl", 0.0)
    assert main(["fit", *warm, cold, "--json"]) == 0
    cold_point, warm_point = json.loads(capsys.readouterr().out)["points"]
    assert (cold_point["temperature"], warm_point["temperature"]) == (0.0, 0.8)
    assert warm_point["fitted_on"] == {
        "recordings": [{"target": "big", "draft": "small", "seed": seed} for seed in (1, 2)],
        "texts": 9,
        "tokens": 180,
    }
    assert warm_point["held_out"]["texts"] == 3
    shipped = SHIPPED.at(0.8)
    assert warm_point["sharpness"] < 0.2 * shipped.confidence.sharpness
    assert warm_point["sharpness_doubt"] < shipped.sharpness.doubt


def test_too_few_texts_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", recording(tmp_path / "a.jsonl", 0.8, num_texts=4)]) == 2
    wording.keep(capsys.readouterr().err)
