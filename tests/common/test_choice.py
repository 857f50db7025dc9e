"""A choice has the law that its sampling parameters say, and pruning never changes it."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.choice import Choice, choose
from common.errors import LocalError
from common.noise import gumbel
from common.sampling import SamplingParams
from tests import wording
from tests.support.law import process_logits, rank

Logits = NDArray[np.float32]
Scores = NDArray[np.float64]

PROMPT = np.array([1, 2, 2, 5], np.int32)
GENERATED = np.array([5, 6, 6, 6, 0], np.int32)

# Every field alone, then all pairs of filters, then everything.
FILTERS: list[dict[str, float]] = [
    {},
    *(dict[str, float](top_k=k) for k in (1, 2, 5, 8, 100)),
    *({"top_p": p} for p in (0.05, 0.5, 0.9, 0.999)),
    *({"min_p": p} for p in (0.02, 0.3, 1.0)),
    {"top_k": 4, "top_p": 0.8},
    {"top_k": 5, "min_p": 0.1},
    {"top_p": 0.9, "min_p": 0.05},
    {"top_k": 6, "top_p": 0.95, "min_p": 0.04},
]
PENALTIES: list[dict[str, float]] = [
    {},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"presence_penalty": 0.8},
    {"frequency_penalty": 0.4},
    {"repetition_penalty": 1.2, "presence_penalty": -0.5, "frequency_penalty": 0.3},
]
BIASES: list[tuple[tuple[int, float], ...]] = [(), ((3, 2.5), (6, -1.0), (3, 0.5), (0, -20.0))]


def make_params(
    temperature: float, *parts: dict[str, float], bias: tuple[tuple[int, float], ...] = ()
) -> SamplingParams:
    params = SamplingParams(temperature=temperature, logit_bias=bias)
    for part in parts:
        params = dataclasses.replace(params, **part)  # type: ignore[arg-type]  # fields by name
    return params


def plain_process(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], generated: Sequence[int]
) -> list[float]:
    """The documented rules, read out one token at a time."""
    values = [float(value) for value in logits]
    for token, bias in params.logit_bias:
        values[token] += bias
    for token in {*prompt, *generated}:
        factor = params.repetition_penalty
        values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
    for token in set(generated):
        values[token] -= params.presence_penalty + params.frequency_penalty * list(generated).count(token)
    if params.greedy:
        return values
    values = [value / params.temperature for value in values]
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    order = order[: params.top_k] if params.top_k else order
    order = nucleus_of(values, order, params.top_p)
    best = values[order[0]]
    kept = {token for token in order if math.exp(values[token] - best) >= params.min_p * (1 - 1e-12)}
    return [value if token in kept else -math.inf for token, value in enumerate(values)]


def nucleus_of(values: list[float], order: list[int], top_p: float) -> list[int]:
    if top_p >= 1.0:
        return order
    weights = [math.exp(values[token] - values[order[0]]) for token in order]
    goal = top_p * math.fsum(weights)
    for count in range(1, len(order) + 1):
        if math.fsum(weights[:count]) >= goal:
            return order[:count]
    return order


def softmax(processed: Sequence[float] | Scores) -> Scores:
    values = np.asarray(processed, np.float64)
    weights = np.exp(values - values.max())
    return np.asarray(weights / weights.sum())


def brute_force(
    logits: Logits,
    params: SamplingParams,
    position: int,
    prompt: NDArray[np.int32] | None = None,
    generated: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int64], Scores]:
    """All tokens by processed logit plus noise: ids best first, and their scores."""
    scores = process_logits(logits, params, prompt, generated)
    if not params.greedy:
        scores = scores + gumbel(params.seed, position + 1, np.arange(scores.size))
    order = np.lexsort((np.arange(scores.size), -scores))
    return order, scores[order]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_processed_logits_follow_the_documented_rules(filters: dict[str, float]) -> None:
    """Enumeration over penalties, biases, temperatures and logits of a vocabulary of eight."""
    rng = np.random.default_rng(7)
    for penalties, bias, temperature in itertools.product(PENALTIES, BIASES, (0.0, 0.3, 1.0, 2.5)):
        params = make_params(temperature, filters, penalties, bias=bias)
        for scale in (0.5, 3.0):
            logits = (rng.normal(size=8) * scale).astype(np.float32)
            ours = softmax(process_logits(logits, params, PROMPT, GENERATED))
            plain = softmax(plain_process(logits.tolist(), params, PROMPT.tolist(), GENERATED.tolist()))
            assert ((ours > 0) == (plain > 0)).all()
            np.testing.assert_allclose(ours, plain, rtol=2e-5)


LOGIT = st.one_of(
    st.floats(-60, 60, width=32), st.sampled_from([0.0, 1.0, -3.0, 1e30, -1e30, 3e38, -3e38, -math.inf])
)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(LOGIT, min_size=1, max_size=60).filter(lambda row: max(row) > -math.inf),
    st.sampled_from(FILTERS),
    st.sampled_from([0.0, 1e-300, 0.05, 1.0, 7.0, 100.0]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**31 - 2),
    st.integers(1, 70),
)
def test_pruning_finds_the_same_as_brute_force(
    row: list[float], filters: dict[str, float], temperature: float, seed: int, position: int, count: int
) -> None:
    logits = np.array(row, np.float32)
    params = dataclasses.replace(make_params(temperature, filters), seed=seed)
    order, scores = brute_force(logits, params, position)
    alive = order[: min(count, int(np.isfinite(scores).sum()))]
    ranking = rank(logits, params, position, count)
    np.testing.assert_array_equal(ranking.tokens, alive)
    np.testing.assert_array_equal(ranking.scores, scores[: alive.size])
    choice = choose(logits, params, position)
    runner_up = scores[1] if scores.size > 1 else -math.inf
    assert choice.token == order[0]
    margin = scores[0] - runner_up
    told = margin if margin <= np.finfo(np.float32).max else math.inf  # as `Choice` says
    assert choice.margin == pytest.approx(told, rel=1e-12)


@pytest.mark.parametrize("size", [33, 5000, 131072])
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 30.0])
def test_pruning_finds_the_same_in_whole_vocabularies(size: int, spread: float) -> None:
    """Flat rows, rows with a clear best, and rows whose mass lies deep below it."""
    rng = np.random.default_rng(size)
    for position, lift in enumerate((0.0, 6.0, 25.0)):
        logits = (rng.normal(size=size) * spread).astype(np.float32)
        logits[size // 2 : size // 2 + 3] += np.float32(lift)
        for temperature in (0.6, 1.0):
            params = SamplingParams(temperature=temperature, seed=position)
            order, scores = brute_force(logits, params, position)
            assert choose(logits, params, position) == Choice(int(order[0]), scores[0] - scores[1])
            np.testing.assert_array_equal(rank(logits, params, position, 8).tokens, order[:8])


def test_equal_logits_are_kept_by_lowest_id() -> None:
    logits = np.zeros(10, np.float32)
    kept_three: list[dict[str, float]] = [{"top_k": 3}, {"top_p": 0.3}, {"top_p": 0.25}]
    for filters in kept_three:
        kept = np.flatnonzero(np.isfinite(process_logits(logits, make_params(1.0, filters))))
        assert kept.tolist() == [0, 1, 2]
    every = process_logits(logits, make_params(1.0, {"min_p": 1.0}))
    assert np.isfinite(every).all()


@pytest.mark.parametrize("num_equal", [1, 2, 3, 7, 10, 1000])
def test_a_nucleus_of_equal_tokens_is_exact(num_equal: int) -> None:
    """Sums of integers know that 3 of 10 equal tokens are 0.3; sums of floats do not."""
    logits = np.zeros(num_equal, np.float32)
    for part in range(1, num_equal):
        processed = process_logits(logits, make_params(1.0, {"top_p": part / num_equal}))
        assert np.isfinite(processed).sum() == part


def test_greedy_takes_the_lowest_of_equals_and_has_no_noise() -> None:
    logits = np.array([0.0, 2.0, 2.0, -1.0], np.float32)
    for seed, position in ((0, 0), (9, 4)):
        assert choose(logits, SamplingParams(seed=seed), position) == Choice(1, 0.0)
    assert choose(logits[2:], SamplingParams(top_k=1), 0) == Choice(0, 3.0)


def test_scores_equal_after_rounding_go_to_the_lowest_id() -> None:
    """With the noise below a float64's resolution, all scores of a tie are the same number."""
    logits = np.array([-3e38, 3e38, -3e38], np.float32)
    ranking = rank(logits, SamplingParams(temperature=1.0), 0, 3)
    assert ranking.tokens.tolist() == [1, 0, 2]


def test_the_only_token_is_ahead_by_infinity() -> None:
    assert choose(np.array([4.0], np.float32), SamplingParams(), 0) == Choice(0, math.inf)
    assert choose(np.array([4.0], np.float32), SamplingParams(temperature=1.0), 0) == Choice(0, math.inf)
    two = np.array([4.0, 3.0], np.float32)
    assert choose(two, SamplingParams(temperature=1.0, top_k=1), 0) == Choice(0, math.inf)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_an_error_that_says_so(bad: float, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, logit_bias=((1, -5.0),))
    with wording.raises(LocalError):
        choose(np.array([0.0, bad, 1.0], np.float32), params, 0)


def test_all_forbidden_and_misshapen_logits_are_errors() -> None:
    with wording.raises(LocalError):
        choose(np.full(3, -np.inf, np.float32), SamplingParams(), 0)
    for shape in ((0,), (2, 3)):
        with wording.raises(LocalError):
            choose(np.zeros(shape, np.float32), SamplingParams(), 0)


def test_adjusted_logits_beyond_float32_stay_in_order() -> None:
    logits = np.array([3e38, 1.0, -3e38], np.float32)
    params = SamplingParams(repetition_penalty=0.01)
    seen, none = np.array([0, 2], np.int32), np.empty(0, np.int32)
    assert choose(logits, params, 0, seen, none).token == 0
    harsh = dataclasses.replace(params, repetition_penalty=100.0)
    assert rank(logits, harsh, 0, 3, seen, none).tokens.tolist() == [0, 1]


def test_penalties_demand_their_tokens() -> None:
    params = SamplingParams(presence_penalty=1.0)
    with wording.raises(LocalError):
        choose(np.zeros(3, np.float32), params, 0)
    with wording.raises(LocalError):
        choose(np.zeros(3, np.float32), params, 0, np.empty(0, np.int32), np.array([3], np.int32))


@pytest.mark.parametrize("temperature", [1e-30, 1e-39, 1e-300, 5e-324])
@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.9}])
def test_the_margin_of_a_tiny_temperature_fits_a_float32(temperature: float, filters: dict[str, Any]) -> None:
    """Engines keep margins as float32, and torch refuses a number that is beyond them."""
    params = SamplingParams(temperature=temperature, **filters)
    choice = choose(np.array([0.0, 2.0, 1.0, -3.0], np.float32), params, 5)
    assert choice.token == 1
    assert choice.margin == math.inf or choice.margin <= np.finfo(np.float32).max


def test_a_tiny_repetition_penalty_overflows_nothing() -> None:
    """It makes a token that came before as good as certain; numpy's warnings are errors here."""
    params = SamplingParams(repetition_penalty=5e-324)
    logits, seen = np.array([0.5, 2.0, -1.0], np.float32), np.array([0], np.int32)
    assert choose(logits, params, 1, seen, np.zeros(0, np.int32)).token == 0


MASKS = st.lists(st.booleans(), min_size=8, max_size=8).filter(any)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=8, max_size=8),
    MASKS,
    st.sampled_from([0.0, 0.7, 1.5]),
    st.sampled_from(FILTERS),
    st.sampled_from(PENALTIES),
    st.sampled_from(BIASES),
)
def test_tokens_that_the_grammar_forbids_are_as_if_they_did_not_exist(
    values: list[float],
    mask: list[bool],
    temperature: float,
    filters: dict[str, float],
    penalties: dict[str, float],
    bias: tuple[tuple[int, float], ...],
) -> None:
    """Whatever bias would lift them; and what is left is weighed as a vocabulary of its own."""
    params = make_params(temperature, filters, penalties, bias=bias)
    logits, allowed = np.array(values, np.float32), np.array(mask)
    masked = np.where(allowed, logits, np.float32(-np.inf))
    processed = process_logits(logits, params, PROMPT, GENERATED, allowed)
    assert np.isneginf(processed[~allowed]).all()
    assert np.array_equal(processed, process_logits(masked, params, PROMPT, GENERATED))
    assert choose(logits, params, 9, PROMPT, GENERATED, allowed) == choose(
        masked, params, 9, PROMPT, GENERATED
    )
    ranking = rank(logits, params, 9, 8, PROMPT, GENERATED, allowed)
    assert allowed[ranking.tokens].all()
    kept = np.isfinite(processed) if not params.greedy else allowed
    assert ranking.tokens.size == int(kept.sum())


@pytest.mark.parametrize("allowed", [np.zeros(3, np.bool_), np.ones(4, np.bool_), np.ones(3, np.uint8)])
def test_a_mask_that_is_none_is_a_defect(allowed: Any) -> None:
    with wording.raises(LocalError):
        choose(np.zeros(3, np.float32), SamplingParams(), 0, allowed=allowed)
