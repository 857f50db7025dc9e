"""A newer draft stays if acceptance does not fall: chances of wrong verdicts, and the texts until one."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from edge_client.draft.canary import ERROR, MARGIN, SHARE, Canary, Verdict

MOST_TEXTS = 4000


def alike(rng: random.Random) -> float:
    """Return the acceptance of a text of one kind: 0.7 on average, 0.1 apart."""
    return min(1.0, max(0.0, rng.gauss(0.7, 0.1)))


def of_two_kinds(rng: random.Random) -> float:
    """Nine texts of ten are easy, and the tenth is hard."""
    return min(1.0, max(0.0, rng.gauss(0.85 if rng.random() < 0.9 else 0.25, 0.05)))


def trial(acceptance: Callable[[random.Random], float], gain: float, seed: int) -> tuple[Verdict, int]:
    """Return the verdict on a draft whose acceptance is `gain` higher, and the texts until then."""
    rng, canary = random.Random(seed), Canary()
    for count in range(1, MOST_TEXTS + 1):
        is_new = rng.random() < SHARE
        verdict = canary.add(min(1.0, acceptance(rng) + gain * is_new), is_new=is_new)
        if verdict is not Verdict.OPEN:
            return verdict, count
    return Verdict.OPEN, MOST_TEXTS


@pytest.mark.parametrize("acceptance", [alike, of_two_kinds])
def test_an_equally_good_draft_is_rolled_back_with_the_stated_chance_at_most(
    acceptance: Callable[[random.Random], float],
) -> None:
    verdicts = Counter(trial(acceptance, 0.0, seed)[0] for seed in range(2000))
    assert verdicts[Verdict.WORSE] <= ERROR * 2000
    assert verdicts[Verdict.KEPT] >= 0.9 * 2000


@pytest.mark.parametrize("acceptance", [alike, of_two_kinds])
def test_a_draft_that_is_worse_by_the_margin_is_rolled_back_within_some_hundred_texts(
    acceptance: Callable[[random.Random], float],
) -> None:
    ends = [trial(acceptance, -MARGIN, seed) for seed in range(500)]
    verdicts, counts = Counter(verdict for verdict, _ in ends), sorted(count for _, count in ends)
    assert verdicts[Verdict.KEPT] <= ERROR * 500
    assert verdicts[Verdict.WORSE] >= 0.9 * 500
    assert counts[250] < 500
    assert counts[475] < 1500


def test_a_better_draft_is_kept_and_a_useless_one_goes_soon() -> None:
    better = [trial(alike, MARGIN, seed) for seed in range(200)]
    useless = [trial(alike, -0.5, seed) for seed in range(200)]
    assert {verdict for verdict, _ in better} == {Verdict.KEPT}
    assert {verdict for verdict, _ in useless} == {Verdict.WORSE}
    assert max(count for _, count in useless) < 600


def test_only_texts_of_both_drafts_tell_anything() -> None:
    canary = Canary()
    assert {canary.add(0.0, is_new=True) for _ in range(1000)} == {Verdict.OPEN}
    assert (canary.num_texts, canary.means) == ([0, 1000], (0.0, 0.0))
