"""Laws of stacked models: no stack is better, and its pace is that of the process that it describes."""

import random
from collections.abc import Sequence
from itertools import combinations, pairwise, product

import pytest

from schemes.worlds import hierarchy as stacks
from schemes.worlds.hierarchy import Pairs, TierModel, TierPair, best_hierarchies, gain, hierarchy

LONGEST = 5  # block of the brute force


def drawn(seed: int) -> tuple[list[TierModel], Pairs]:
    """Return five models, the larger the slower, some of whose pairs are missing."""
    rng = random.Random(seed)
    models = [TierModel(str(place), 0.002 * rng.uniform(1, 3) ** (2 * place)) for place in range(5)]
    return models, {
        (drafter.name, verifier.name): TierPair(rng.uniform(0.3, 0.95), rng.choice([0.0, 0.01, 0.08]))
        for drafter, verifier in combinations(models, 2)
        if rng.random() < 0.8
    }


def process_pace(
    models: Sequence[TierModel], blocks: Sequence[int], pairs: Pairs, rounds: int = 20_000
) -> float:
    """Return the seconds per token of the paper's process: a tier asks for drafts until it has a block."""
    rng = random.Random(1)

    def step(tier: int) -> tuple[int, float]:
        drafted, took = block(tier - 1)
        pair, count = pairs[models[tier - 1].name, models[tier].name], 0
        while count < drafted and rng.random() < pair.acceptance:
            count += 1
        return count + 1, took + models[tier].step_time + pair.rtt

    def block(tier: int) -> tuple[int, float]:
        if not tier:
            return blocks[0], blocks[0] * models[0].step_time
        num_tokens, total = 0, 0.0
        while num_tokens < blocks[tier]:
            more, took = step(tier)
            num_tokens, total = num_tokens + more, total + took
        return num_tokens, total

    steps = [step(len(models) - 1) for _ in range(rounds)]
    return sum(took for _, took in steps) / sum(count for count, _ in steps)


@pytest.mark.parametrize("seed", range(6))
def test_the_plan_equals_brute_force(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over every subset of the models with the target, and all block lengths of each."""
    monkeypatch.setattr(stacks, "MAX_BLOCK", LONGEST)
    models, pairs = drawn(seed)
    expected = dict[int, float]()
    for count in range(1, 6):
        for below in combinations(models[:-1], count - 1):
            stack = [*below, models[-1]]
            if all((a.name, b.name) in pairs for a, b in pairwise(stack)):
                lengths = product(range(1, LONGEST + 1), repeat=count - 1)
                pace = min(hierarchy(stack, blocks, pairs).pace for blocks in lengths)
                expected[count] = min(pace, expected.get(count, pace))
    found = best_hierarchies(models, pairs)
    assert {len(each.models): each.pace for each in found} == pytest.approx(expected)
    by_name = {model.name: model for model in models}
    for each in found:
        assert hierarchy([by_name[name] for name in each.models], each.blocks, pairs) == each


CHAIN = [TierModel("phone", 0.003), TierModel("edge", 0.012), TierModel("cloud", 0.050)]
PAIRS: Pairs = {
    ("phone", "edge"): TierPair(0.8, 0.005),
    ("phone", "cloud"): TierPair(0.65, 0.060),
    ("edge", "cloud"): TierPair(0.85, 0.055),
}


def test_a_middle_tier_pays_between_near_and_far() -> None:
    """It pays while the target's round trip can be earned back, and not once the target alone is best."""
    gains = []
    for rtt in (0.0, 0.04, 0.16):
        pairs = {
            names: pair._replace(rtt=pair.rtt + rtt * (names[1] == "cloud")) for names, pair in PAIRS.items()
        }
        gains.append(gain(best_hierarchies(CHAIN, pairs)))
    assert gains[0] > 1.1
    assert gains[1] > 1.1
    assert gains[2] < 1.0
    no_better = {**PAIRS, ("edge", "cloud"): TierPair(0.65, 0.055)}
    assert gain(best_hierarchies(CHAIN, no_better)) < 1.0
    assert gain(best_hierarchies(CHAIN[1:], PAIRS)) == 1.0


@pytest.mark.parametrize(
    ("stack", "blocks", "within"),
    [(CHAIN[::2], (6,), 0.01), (CHAIN[1:], (3,), 0.01), (CHAIN, (4, 8), 0.05), (CHAIN, (2, 12), 0.05)],
)
def test_the_closed_form_is_the_pace_of_the_process(
    stack: list[TierModel], blocks: tuple[int, ...], within: float
) -> None:
    """Of two tiers exactly; of more up to the tokens that a tier has beyond its block."""
    assert hierarchy(stack, blocks, PAIRS).pace == pytest.approx(
        process_pace(stack, blocks, PAIRS), rel=within
    )
