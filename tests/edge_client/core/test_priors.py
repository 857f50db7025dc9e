"""Laws of priors: a draft's error is one of logits, and what a text taught serves its own kind only."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.calibration import Calibration
from edge_client.core.confidence import Confidence, Guess, Prior
from edge_client.core.priors import SHIPPED, Beliefs, PriorTable

COLD = Prior(Confidence(4.0, 0.5, 0.02), Guess(0.4, 0.5))
WARM = Prior(Confidence(2.0, 1.5, 0.03), Guess(0.2, 0.5))
TABLE = PriorTable(((0.0, COLD), (0.8, WARM)))


def learnt(table: PriorTable, temperature: float, chosen: int) -> Calibration:
    """Of a text whose choices are all the same, which no prior expects."""
    calibration = Calibration(table.at(temperature))
    for _ in range(100):
        calibration.observe((4.0, 3.9, 2.0, 1.0, 0.0), chosen)
    return calibration


def test_at_its_own_temperature_a_prior_is_as_it_was_fitted() -> None:
    assert (TABLE.at(0.0), TABLE.at(0.8)) == (COLD, WARM)


def test_elsewhere_the_nearest_serves_with_its_sharpness_per_nat_of_logit() -> None:
    assert TABLE.at(0.2).confidence.sharpness == pytest.approx(4.0 * 0.2)
    assert TABLE.at(0.6).confidence.sharpness == pytest.approx(2.0 * 0.6 / 0.8)
    assert TABLE.at(1.6).confidence.sharpness == pytest.approx(2.0 * 1.6 / 0.8)
    assert (TABLE.at(1.6).sharpness, TABLE.at(1.6).confidence.rest) == (WARM.sharpness, 1.5)


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 0.3, 1.0, 100.0])
def test_the_shipped_table_serves_every_temperature(temperature: float) -> None:
    assert 0.0 < SHIPPED.at(temperature).confidence.sharpness < math.inf


@pytest.mark.parametrize("temperatures", [(), (0.0, 0.0), (0.8, 0.0), (-1.0,), (math.nan,)])
def test_a_table_that_is_none_is_refused(temperatures: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="a table of priors"):
        PriorTable(tuple((temperature, COLD) for temperature in temperatures))


def test_what_a_text_taught_is_kept_at_the_point_that_it_began_from() -> None:
    table = TABLE.after(1.6, learnt(TABLE, 1.6, chosen=3))
    assert table.at(0.0) == COLD
    assert table.at(1.6).confidence.sharpness < TABLE.at(1.6).confidence.sharpness
    ratio = table.at(0.8).confidence.sharpness / TABLE.at(0.8).confidence.sharpness
    assert ratio == pytest.approx(table.at(1.6).confidence.sharpness / TABLE.at(1.6).confidence.sharpness)


def test_a_text_that_was_not_drafted_changes_no_table() -> None:
    assert TABLE.after(0.8, Calibration(TABLE.at(0.8))) == TABLE


def test_how_sure_the_draft_usually_is_is_kept_from_text_to_text() -> None:
    calibration = Calibration(TABLE.at(0.8))
    for _ in range(200):
        calibration.survival.add(0.95)
    found = Calibration(TABLE.after(0.8, calibration).at(0.8)).survival
    assert found.mean == pytest.approx(0.95, abs=0.01)
    for _ in range(100):  # another kind of text
        found.add(0.2)
    assert found.mean < 0.35


@pytest.mark.parametrize("filters", [{"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.05}])
def test_texts_with_filters_and_without_teach_each_other_nothing(filters: dict[str, float]) -> None:
    cut = SamplingParams(temperature=0.8, **filters)  # type: ignore[arg-type]  # one of several types
    plain = SamplingParams(temperature=0.8)
    beliefs = Beliefs(TABLE)
    beliefs.learn(cut, learnt(TABLE, 0.8, chosen=3))
    assert beliefs.before(plain) == WARM
    assert beliefs.before(cut).confidence.sharpness < WARM.confidence.sharpness


def test_without_a_table_the_shipped_one_is_believed() -> None:
    assert Beliefs().before(SamplingParams(temperature=0.8)) == SHIPPED.at(0.8)


def test_what_is_shipped_is_what_the_measured_fit_says() -> None:
    """docs/measured/calibration.json is written by the command that `SHIPPED` names."""
    path = Path(__file__).parents[3] / "docs" / "measured" / "calibration.json"
    points = json.loads(path.read_text(encoding="utf-8"))["points"]
    assert [point["temperature"] for point in points] == [temperature for temperature, _ in SHIPPED.points]
    for point, (_, prior) in zip(points, SHIPPED.points, strict=True):
        assert prior.confidence.sharpness == pytest.approx(point["sharpness"], abs=0.01)
        assert prior.confidence.rest == pytest.approx(point["rest"], abs=0.01)
        assert prior.sharpness.spread == point["sharpness_spread"]
