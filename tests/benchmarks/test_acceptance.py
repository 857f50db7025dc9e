"""The acceptance benchmark: its chances are those that the rules have, its world runs the real machines."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.acceptance import sampling_named
from common.sampling import SamplingParams
from tests.cloud_verifier.core.rules.steps import CHAIN_1, PAIR, Models, law_under, mean_length

pytestmark = [pytest.mark.torch, pytest.mark.llama]


def test_chances_are_those_that_the_rules_have() -> None:
    from benchmarks.acceptance_positions import at_position
    from common.acceptance import make_acceptance

    for seed in range(6):
        models = Models(seed)
        draft = models._law("draft", ())
        found = at_position(models.target(()), draft, (1, 3), 7)
        assert found.rejection[1] == pytest.approx(
            mean_length(law_under(make_acceptance("rejection"), models, CHAIN_1)) - 1.0
        )
        assert found.specinfer_two == pytest.approx(
            mean_length(law_under(make_acceptance("specinfer"), models, PAIR)) - 1.0
        )
        assert found.rejection[0] <= found.rejection[1] <= found.overlap + 3 / 512
        assert found.overlap / (2 - found.overlap) <= found.coupled <= found.overlap + 1e-12


def test_a_draft_that_is_the_target_is_always_right_under_the_same_noise() -> None:
    from benchmarks.acceptance_positions import at_position

    law = np.array([0.5, 0.3, 0.2])
    found = at_position(law, law, (3,), 7)
    assert [found.coupled, found.coupled_two, found.overlap] == pytest.approx([1.0, 1.0, 1.0])
    assert found.by_equality == pytest.approx(0.38, abs=0.01)


def test_a_sampling_is_read_from_its_name() -> None:
    assert sampling_named("0.8") == SamplingParams(temperature=0.8)
    assert sampling_named("0.8:40") == SamplingParams(temperature=0.8, top_k=40)


def test_a_small_run_measures_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from benchmarks.acceptance import AHEAD, BLOCKS, main

    words = ["--num-prompts", "1", "--texts", "1", "--max-tokens", "5", "--sampling", "0.8:40", "--json"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["blocks"]) == len(BLOCKS)
    assert len(report["ahead"]) == len(AHEAD)
    (positions,) = report["positions"]
    assert positions["positions"] == 5
    alone = report["ahead"][0]
    assert (alone["policy"], alone["acceptance_length"], alone["ms_per_token"]) == ("off", 1.0, 30.0)
    costs = {row["rule"]: row["bytes_per_draft_token"] for row in report["blocks"]}
    assert costs["coupled"] < 12 < costs["rejection"] < 150
