"""The benchmark of near ties sees texts turn in company, and none with the deterministic engine."""

from __future__ import annotations

import pytest

from common.sampling import SamplingParams

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

SAMPLING = SamplingParams(max_tokens=12, ignore_eos=True)
PROMPTS = [tuple((7 * key + step) % 97 for step in range(6)) for key in range(8)]


def test_texts_that_turn_are_counted_with_their_near_ties() -> None:
    from benchmarks.near_ties import compare
    from cloud_verifier.engine.engine import TorchEngine
    from tests.cloud_verifier.engine.exact_world import near_tied

    result = compare(TorchEngine(near_tied(), 1024), PROMPTS, SAMPLING)
    assert (result.texts, result.tokens) == (8, 96)
    assert result.differing > 0
    assert result.near_ties > 48
    assert result.smallest_margin < result.near_tie
    assert sum(result.margins) == result.tokens


def test_no_text_turns_with_the_deterministic_engine() -> None:
    from benchmarks.near_ties import compare
    from cloud_verifier.engine.exact import ExactEngine
    from tests.cloud_verifier.engine.exact_world import near_tied

    result = compare(ExactEngine(near_tied(), 1024), PROMPTS, SAMPLING)
    assert (result.tokens, result.differing) == (96, 0)
    assert result.near_ties > 48
