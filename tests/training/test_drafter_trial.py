"""A trial counts the steps of texts by the guesses below each token, and times what it counts."""

from __future__ import annotations

from itertools import count

import pytest

from common.sampling import SamplingParams
from schemes.drafters.whole_models import EarlyExit
from tests.cloud_verifier.engine.tiny import target
from tests.schemes.drafters.rig import engine_of
from training import drafter_trial as trial
from training.drafter_trial import NODES, LevelReport, TrialReport, TriedText, num_steps, try_drafter

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def few_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "TIMED", 2)


def test_a_step_ends_where_the_text_leaves_the_tree() -> None:
    tokens = (1, 2, 3, 4, 5)
    trees = (((2,), (9,), (2, 3), (2, 9)), ((3,),), ((4,),), ((9,), (9, 5)))
    text = TriedText(tokens, ((),) * 4, trees)
    # depth 1: 1 -> 2 3 | 3 -> 4 5
    assert num_steps(text, 1) == 2
    # depth 2: 1 -> 2 3 4 | 4 -> 5
    assert num_steps(text, 2) == 2
    assert num_steps(TriedText(tokens, ((),) * 4, ((),) * 4), 2) == 4
    unlikely = tuple((9, each) for each in range(NODES))
    assert num_steps(TriedText((1, 2, 3), ((),) * 2, ((*unlikely, (2,)), ())), 2) == 2


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_drafter_that_knows_the_target_is_always_right(temperature: float) -> None:
    model = target("llama")
    engine = engine_of(EarlyExit(model, model.num_layers, depth=4), model)
    sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=13)
    ticks = count()
    report = try_drafter(
        engine, [[5, 9, 2, 41], [7, 80]], sampling, step_floor=0.002, clock=lambda: 0.001 * next(ticks)
    )
    assert report.num_tokens == 24
    assert all(each.best == each.listed == 1.0 for each in report.levels[:3])
    assert [each.level for each in report.levels] == [1, 2, 3, 4]
    assert report.levels[0].steps_per_token == 0.5
    assert report.step_ms == report.tree_step_ms == pytest.approx(2.0)
    for each in report.levels:
        assert each.ms_per_token == pytest.approx(
            each.steps_per_token * (each.guess_ms + report.tree_step_ms)
        )


def test_the_best_depth_takes_least_time_and_none_is_better_than_a_loss() -> None:
    levels = tuple(LevelReport(level, 0.5, 0.5, 1.0, 0.6, ms) for level, ms in enumerate((9.0, 7.0, 8.0), 1))
    assert TrialReport(10, 7.5, 8.0, levels).best_depth == 2
    assert TrialReport(10, 6.5, 8.0, levels).best_depth == 0
