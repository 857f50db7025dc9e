"""Laws of calibration: promises sum to 1 and come to be kept, and what a text taught serves the next."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.calibration import (
    FARTHEST_MEAN,
    FULL_LIST,
    LEAST_DOUBT,
    MIN_LOGPROB,
    Beliefs,
    BetaPrior,
    Calibration,
    Confidence,
    Prior,
    PriorTable,
    promised,
    slopes,
)
from common.sampling import SamplingParams
from training.fitting import surprise

ranked_scores = st.lists(st.floats(-8.0, 8.0), min_size=1, max_size=8).map(lambda s: sorted(s, reverse=True))


def test_a_margin_is_worth_its_sharpness() -> None:
    first, second = promised(Confidence(sharpness=0.5, miss=0.0), (4.0, 1.0))
    assert first - second == pytest.approx(1.5)
    assert math.exp(first) + math.exp(second) == pytest.approx(1.0)


def test_no_candidate_is_below_what_a_byte_can_say() -> None:
    assert promised(Confidence(), (0.0, -1000.0, -math.inf))[1:] == [MIN_LOGPROB, MIN_LOGPROB]


def test_all_other_tokens_are_one_more_candidate_beside_the_last_of_a_full_list() -> None:
    logprobs = promised(Confidence(sharpness=1.0, rest=2.0), (0.0, 0.0, 0.0, 0.0, -math.log(2.0)))
    assert [math.exp(logprob) for logprob in logprobs] == pytest.approx([2 / 11] * 4 + [1 / 11])
    assert surprise(Confidence(1.0, rest=2.0), (0.0, 0.0, 0.0, 0.0, -math.log(2.0)), None) == pytest.approx(
        -math.log(2 / 11)
    )


def test_of_a_list_that_a_filter_cut_short_the_miss_is_the_same_whatever_the_scores() -> None:
    believed = Confidence(miss=0.05)
    assert surprise(believed, (3.0, 2.9), None) == surprise(believed, (3.0, -9.0), None)
    assert surprise(believed, (3.0, 2.9), None) == pytest.approx(-math.log(0.05))


@given(ranked_scores, st.floats(0.1, 4.0), st.floats(0.0, 0.5), st.floats(0.01, 30.0))
def test_chances_fall_with_the_scores_and_sum_to_one_with_all_others(
    ranked: list[float], sharpness: float, miss: float, rest: float
) -> None:
    confidence = Confidence(sharpness, rest, miss)
    logprobs = promised(confidence, ranked)
    assert logprobs == sorted(logprobs, reverse=True)
    assert all(MIN_LOGPROB <= logprob <= 1e-12 for logprob in logprobs)
    others = miss if len(ranked) < FULL_LIST else math.exp(-surprise(confidence, ranked, None))
    total = sum(map(math.exp, logprobs)) + others
    assert total == pytest.approx(1.0, abs=(len(ranked) + rest) * math.exp(MIN_LOGPROB) + 1e-9)


def test_doubt_never_ends_but_what_was_known_stays_known() -> None:
    guess = BetaPrior(spread=0.3, doubt=0.5)
    for _ in range(1000):
        guess = guess.after(100.0)
    assert guess.doubt == pytest.approx(LEAST_DOUBT * 0.3)
    assert BetaPrior(0.3, 0.0).after(100.0).doubt == 0.0


def noisy_pairs(error: float, num: int, seed: int) -> list[tuple[list[float], int | None]]:
    """What calibration sees if the target's scores are the draft's plus Gumbel errors of this size: then a
    softmax of sharpness 1 / error is the exact law of the choice."""
    rng = np.random.default_rng(seed)
    pairs: list[tuple[list[float], int | None]] = []
    for _ in range(num):
        scores = -np.sort(-rng.normal(0.0, 2.0, size=5))
        pairs.append((scores.tolist(), int(np.argmax(scores + error * rng.gumbel(size=5)))))
    return pairs


@pytest.mark.parametrize("error", [0.25, 0.5, 1.0, 2.0])
def test_the_sharpness_is_found_wherever_the_prior_stood(error: float) -> None:
    calibration = Calibration(Prior(Confidence(sharpness=3.0, rest=1e-3)))
    for scores, chosen in noisy_pairs(error, 600, seed=1):
        calibration.observe(scores, chosen)
    assert calibration.confidence.sharpness == pytest.approx(1 / error, rel=0.3)
    assert calibration.num_observed == 600


def test_promises_are_kept_after_calibration() -> None:
    """Of candidates promised a chance of 40-60 %, and of the others, as many are right as was promised."""
    calibration = Calibration()
    hoped, right = np.zeros(5), np.zeros(5)
    for step, (scores, chosen) in enumerate(noisy_pairs(0.8, 4000, seed=2)):
        chances = [math.exp(logprob) for logprob in promised(calibration.confidence, scores)]
        calibration.observe(scores, chosen)
        if step < 200:
            continue
        for place, chance in enumerate(chances):
            bin_ = min(4, int(chance * 5))
            hoped[bin_] += chance
            right[bin_] += place == chosen
    np.testing.assert_allclose(hoped / right, 1.0, atol=0.15)


def test_a_draft_that_changes_is_followed() -> None:
    calibration = Calibration()
    for error in (0.25, 2.0):
        for scores, chosen in noisy_pairs(error, 2000, seed=3):
            calibration.observe(scores, chosen)
        assert calibration.confidence.sharpness == pytest.approx(1 / error, rel=0.35)


def test_observations_without_news_change_nothing_but_the_count() -> None:
    calibration = Calibration()
    calibration.observe([], None)
    assert calibration.num_observed == 0
    calibration.observe([2.0], 0)  # a lone candidate says nothing about gaps
    assert calibration.confidence.sharpness == pytest.approx(Confidence().sharpness)


@given(
    st.lists(
        st.lists(st.floats(-1e45, 1e45), min_size=1, max_size=6).flatmap(
            lambda raw: st.tuples(
                st.just(sorted(raw, reverse=True)), st.none() | st.integers(0, len(raw) - 1)
            )
        ),
        max_size=20,
    )
)
def test_whatever_is_observed_the_confidence_stays_usable(
    pairs: list[tuple[list[float], int | None]],
) -> None:
    calibration = Calibration()
    for scores, chosen in pairs:
        calibration.observe(scores, chosen)
        for logprob in promised(calibration.confidence, [1.0, 0.0, -1.0]):
            assert MIN_LOGPROB <= logprob <= 0.0


SCORES = (4.0, 3.2, 2.9, 1.0, 0.4)


@pytest.mark.parametrize("chosen", [0, 2, 4, None])
def test_slopes_are_those_of_the_surprise(chosen: int | None) -> None:
    """Held against differences, by the logarithms of both numbers."""
    sharpness, rest, step = 1.3, 0.7, 1e-5

    def likelihood(log_sharpness: float, log_rest: float) -> float:
        return -surprise(Confidence(math.exp(log_sharpness), math.exp(log_rest)), SCORES, chosen)

    at, other = math.log(sharpness), math.log(rest)
    gradient, information, share = slopes(sharpness, rest, SCORES, chosen)
    difference = likelihood(at + step, other) - likelihood(at - step, other)
    assert gradient == pytest.approx(difference / (2 * step), rel=1e-5)
    difference = likelihood(at, other + step) - likelihood(at, other - step)
    assert (chosen is None) - share == pytest.approx(difference / (2 * step), rel=1e-5)
    assert information > 0.0


def test_information_is_the_mean_of_the_squared_gradient() -> None:
    """Fisher's identity, over the chances that are promised."""
    believed = Confidence(1.3, 0.7)
    choices: list[int | None] = [0, 1, 2, 3, 4, None]
    squares = [
        math.exp(-surprise(believed, SCORES, chosen)) * slopes(1.3, 0.7, SCORES, chosen)[0] ** 2
        for chosen in choices
    ]
    assert slopes(1.3, 0.7, SCORES, 0)[1] == pytest.approx(sum(squares))


def test_the_weight_of_all_others_is_found() -> None:
    """Choices drawn from a softmax with 3 times the last candidate's chance outside the list."""
    truth = Confidence(sharpness=1.0, rest=3.0)
    rng = np.random.default_rng(5)
    calibration = Calibration(Prior(Confidence(sharpness=1.0, rest=0.3)))
    for _ in range(3000):
        scores = (-np.sort(-rng.normal(0.0, 1.0, size=5))).tolist()
        ends = np.cumsum([math.exp(logprob) for logprob in promised(truth, scores)])
        place = int(np.searchsorted(ends, rng.random()))
        calibration.observe(scores, place if place < 5 else None)
    assert calibration.confidence.rest == pytest.approx(3.0, rel=0.4)
    assert calibration.confidence.miss == Confidence().miss  # no list was cut short


def test_a_pair_that_is_known_is_what_it_was() -> None:
    prior = Prior(Confidence(1.0, 1.0), BetaPrior(0.3, 0.0), BetaPrior(0.3, 0.0))
    calibration = Calibration(prior)
    for scores, chosen in noisy_pairs(0.25, 200, seed=4):
        calibration.observe(scores, chosen)
    assert calibration.confidence.sharpness > 1.5
    assert calibration.as_prior() == prior


def test_the_mean_of_a_pair_is_found_over_short_texts() -> None:
    """Each text is too short to tell; from text to text the prior comes near, and is surer each time."""
    prior = Prior(Confidence(sharpness=1.0, rest=1e-3))
    for seed in range(12):
        calibration = Calibration(prior)
        for scores, chosen in noisy_pairs(0.25, 30, seed):
            calibration.observe(scores, chosen)
        after = calibration.as_prior()
        assert after.sharpness.doubt <= prior.sharpness.doubt
        prior = after
    assert prior.confidence.sharpness == pytest.approx(4.0, rel=0.3)
    assert prior.sharpness.spread == Prior().sharpness.spread


def test_no_number_of_texts_makes_a_prior_that_cannot_be_computed_with() -> None:
    prior = Prior()
    for _ in range(300):
        calibration = Calibration(prior)
        for _ in range(10):
            calibration.observe((9.0, 1.0, 0.5, 0.2, 0.1), 0)
        prior = calibration.as_prior()
    assert math.log(prior.confidence.sharpness) <= FARTHEST_MEAN + 1e-9
    assert promised(prior.confidence, SCORES)[0] <= 0.0


COLD = Prior(Confidence(4.0, 0.5, 0.02), BetaPrior(0.4, 0.5))
WARM = Prior(Confidence(2.0, 1.5, 0.03), BetaPrior(0.2, 0.5))
TABLE = PriorTable(((0.0, COLD), (0.8, WARM)))


def learnt(table: PriorTable, temperature: float, chosen: int) -> Calibration:
    """Of a text whose choices are all the same, which no prior expects."""
    calibration = Calibration(table.at(temperature))
    for _ in range(100):
        calibration.observe((4.0, 3.9, 2.0, 1.0, 0.0), chosen)
    return calibration


def test_elsewhere_the_nearest_serves_with_its_sharpness_per_nat_of_logit() -> None:
    assert TABLE.at(0.2).confidence.sharpness == pytest.approx(4.0 * 0.2)
    assert TABLE.at(0.6).confidence.sharpness == pytest.approx(2.0 * 0.6 / 0.8)
    assert TABLE.at(1.6).confidence.sharpness == pytest.approx(2.0 * 1.6 / 0.8)
    assert (TABLE.at(1.6).sharpness, TABLE.at(1.6).confidence.rest) == (WARM.sharpness, 1.5)


def test_a_text_updates_the_prior_from_which_it_began() -> None:
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
    survival = Calibration(TABLE.after(0.8, calibration).at(0.8)).survival
    assert survival.mean == pytest.approx(0.95, abs=0.01)
    for _ in range(100):  # another kind of text
        survival.add(0.2)
    assert survival.mean < 0.35


@pytest.mark.parametrize("filters", [{"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.05}])
def test_texts_with_filters_and_without_teach_each_other_nothing(filters: dict[str, float]) -> None:
    cut = SamplingParams(temperature=0.8, **filters)  # type: ignore[arg-type]  # one of several types
    plain = SamplingParams(temperature=0.8)
    beliefs = Beliefs(TABLE)
    beliefs.learn(cut, learnt(TABLE, 0.8, chosen=3))
    assert beliefs.before(plain) == WARM
    assert beliefs.before(cut).confidence.sharpness < WARM.confidence.sharpness
