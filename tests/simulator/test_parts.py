"""Laws of the simulator's parts: time runs forward, draws have names, links keep their order."""

import math

import pytest

from common.errors import UserError
from simulator.drafts import BetaDraft
from simulator.events import Draws, DrawStream
from simulator.knowledge import BEST, NUM_CANDIDATES, NUM_QUANTILES, OUTSIDE, OUTSIDE_SHARE, beta_quantiles


def test_a_draw_depends_on_its_name_alone() -> None:
    draws = Draws(7, owner=3)
    ahead = [draws.uniform(DrawStream.UPLINK, n) for n in range(10)]
    assert [Draws(7, owner=3).uniform(DrawStream.UPLINK, n) for n in reversed(range(10))] == ahead[::-1]
    others = (
        Draws(8, 3).uniform(DrawStream.UPLINK, 0),
        Draws(7, 4).uniform(DrawStream.UPLINK, 0),
        draws.uniform(DrawStream.DOWNLINK, 0),
        draws.uniform(DrawStream.UPLINK, 1),
    )
    assert len({ahead[0], *others}) == 5


@pytest.mark.parametrize(("mean", "k"), [(0.7, 2.0), (0.85, 2.0), (0.5, 1.0), (0.95, 10.0), (0.1, 4.0)])
def test_quantiles_rise_and_have_the_mean_and_variance_of_the_distribution(mean: float, k: float) -> None:
    found = beta_quantiles(mean * k, (1 - mean) * k)
    assert len(found) == NUM_QUANTILES
    assert list(found) == sorted(found)
    average = sum(found) / len(found)
    assert average == pytest.approx(mean, abs=1e-3)
    variance = sum((value - average) ** 2 for value in found) / len(found)
    assert variance == pytest.approx(mean * (1 - mean) / (k + 1), rel=0.01)


@pytest.mark.parametrize("mean", [0.0, 0.3, 0.7, 0.85, 0.98, 1.0])
def test_the_best_candidate_is_right_as_often_as_the_world_says(mean: float) -> None:
    text = BetaDraft(mean=mean).session(Draws(5))
    num = 20_000
    found = [text.truth(position) for position in range(num)]
    assert found.count(BEST) / num == pytest.approx(mean, abs=0.012)
    assert found.count(OUTSIDE) / num == pytest.approx((1 - mean) * OUTSIDE_SHARE, abs=0.012)
    assert found.count(BEST + 1) >= found.count(BEST + 2) >= found.count(BEST + 4)


def test_scores_are_the_logarithms_of_true_chances() -> None:
    """Calibration: among positions whose best candidate is promised p, a share of p is right. Below 0.3 the
    draft may be mistaken about which of its candidates is best."""
    text = BetaDraft(mean=0.7).session(Draws(6))
    promised, right = 0.0, 0
    for position in range(20_000):
        tokens, scores = text.candidates(position)
        assert tokens == tuple(range(BEST, BEST + NUM_CANDIDATES))
        assert list(scores) == sorted(scores, reverse=True)
        if 0.43 < math.exp(scores[0]) < 0.6:
            promised += math.exp(scores[0])
            right += text.truth(position) == BEST
        assert sum(math.exp(score) for score in scores) <= 1.0 + 1e-6
    assert right == pytest.approx(promised, rel=0.06)


@pytest.mark.parametrize(
    "bad", [{"mean": 1.1}, {"mean": -0.1}, {"k": 0.0}, {"k": math.inf}, {"mean": math.nan}]
)
def test_a_draft_that_cannot_be_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"draft {next(iter(bad))} is"):
        BetaDraft(**bad)
