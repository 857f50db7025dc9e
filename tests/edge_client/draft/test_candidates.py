"""Candidates are what brute force over the whole vocabulary finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.noise import gumbel
from common.sampling import SamplingParams
from edge_client.core.effects import Expansion
from edge_client.draft.batch_plan import DraftNode
from edge_client.draft.candidates import Ranker, TopTokens, best_by_passes
from tests.support.law import process_logits

PROMPT = (5, 6, 7, 7)


def random_logits(num_rows: int, num_vocab: int, seed: int = 3) -> NDArray[np.float32]:
    return (3.0 * np.random.default_rng(seed).standard_normal((num_rows, num_vocab))).astype(np.float32)


COMMITTED = (8, 7)  # after the prompt


def row_at(place: int) -> DraftNode:
    """A node below the tip, or the tip itself."""
    node = DraftNode(place, None, COMMITTED[-1], 40)
    for _ in range(place % 3):
        node = DraftNode(place, node, 9, 40)
    node.position = 40 + place
    return node


def generated_by(row: DraftNode) -> list[int]:
    return [*COMMITTED, *row.below_tip()]


def ranked(logits: NDArray[np.float32], params: SamplingParams, num_candidates: int = 8) -> list[Expansion]:
    ranker = Ranker(logits.shape[1], num_candidates)
    ranker.start(params, PROMPT)
    rows = [row_at(place) for place in range(len(logits))]
    for text in (PROMPT, PROMPT + COMMITTED[:1]):
        ranker.rank(logits.copy(), rows, text)  # earlier steps of the same text
    return ranker.rank(logits.copy(), rows, PROMPT + COMMITTED)


def brute_force(logits: NDArray[np.float32], params: SamplingParams, row: DraftNode) -> NDArray[np.float64]:
    """[vocabulary] the quantity whose argmax the target chooses."""
    scores = process_logits(logits, params, np.array(PROMPT), np.array(generated_by(row), np.int64))
    if params.greedy:
        return scores
    return scores + gumbel(params.seed, row.position + 1, np.arange(len(logits), dtype=np.int64))


@given(
    st.integers(1, 5),
    st.sampled_from([1, 2, 7, 8, 9, 64, 300, 511, 4096, 5003]),
    st.integers(1, 64),
    st.integers(0, 2**32 - 1),
)
def test_top_tokens_are_the_largest_of_each_row(num_rows: int, num_vocab: int, count: int, seed: int) -> None:
    count = min(count, num_vocab)
    logits = random_logits(num_rows, num_vocab, seed)
    tokens, values = TopTokens(num_vocab, count)(logits)
    expected = -np.sort(-logits, axis=1)[:, :count]
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(np.take_along_axis(logits, tokens, axis=1), expected)
    assert all(len(set(row)) == count for row in tokens.tolist())


@pytest.mark.parametrize("num_vocab", [50, 4096, 9001])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=10),
        SamplingParams(temperature=1.2, top_p=0.6, min_p=0.02),
        SamplingParams(temperature=0.9, presence_penalty=0.7, logit_bias=((3, 4.0), (7, -90.0))),
    ],
)
def test_plain_candidates_are_the_likeliest_without_noise(num_vocab: int, params: SamplingParams) -> None:
    logits, count = random_logits(3, num_vocab), 24
    ranker = Ranker(num_vocab, 5)
    ranker.start(params, PROMPT, plain=count)
    rows = [row_at(place) for place in range(3)]
    found = ranker.rank(logits.copy(), rows, PROMPT + COMMITTED)
    for row, expansion, own in zip(rows, found, logits, strict=True):
        history = np.array(generated_by(row), np.int64)
        scores = process_logits(own, params, np.array(PROMPT), history)
        best = [token for token in np.argsort(-scores, kind="stable")[:count] if np.isfinite(scores[token])]
        assert list(expansion.tokens) == best
        differences = np.array(expansion.scores) - expansion.scores[0]
        np.testing.assert_allclose(differences, scores[best] - scores[best[0]], atol=1e-5)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0, seed=11),
        SamplingParams(temperature=0.6, seed=2**64 - 1),
        SamplingParams(temperature=0.8, top_k=20),
        SamplingParams(temperature=0.8, top_k=3),
        SamplingParams(temperature=1.5, top_p=0.9),
        SamplingParams(temperature=1.0, top_k=30, top_p=0.7),
        SamplingParams(temperature=1.0, min_p=0.05),
        SamplingParams(temperature=1.0, top_k=50, top_p=0.8, min_p=0.02, seed=5),
        SamplingParams(temperature=1.0, top_p=1e-9),
        SamplingParams(temperature=1e-300, top_p=0.9),
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(temperature=0.7, presence_penalty=1.0, frequency_penalty=0.5),
        SamplingParams(temperature=0.7, logit_bias=((9, 30.0), (8, -30.0)), top_p=0.9),
        SamplingParams(temperature=0.7, repetition_penalty=1.2, top_k=5),
    ],
)
def test_candidates_stand_in_the_order_of_brute_force(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_client.draft.candidates.NUM_NOISY", 300)
    logits = random_logits(4, 300)
    for i, expansion in enumerate(ranked(logits, params)):
        scores = brute_force(logits[i], params, row_at(i))
        order = [token for token in np.argsort(-scores).tolist() if np.isfinite(scores[token])][:8]
        assert list(expansion.tokens) == order
        found = np.array(expansion.scores)
        np.testing.assert_allclose(found - found[0], scores[order] - scores[order[0]], atol=2e-4)


def test_the_likeliest_tokens_are_enough_for_nearly_all_choices() -> None:
    logits = 2.0 * random_logits(200, 4096, seed=8)
    params = SamplingParams(temperature=1.0, seed=9)
    found = ranked(logits, params)
    hits = [
        int(np.argmax(brute_force(logits[i], params, row_at(i)))) == expansion.tokens[0]
        for i, expansion in enumerate(found)
    ]
    assert sum(hits) >= 195  # 97.5 %: what is missed costs speed only


@given(st.integers(1, 300), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_passes_find_the_largest_of_a_row_in_order(num_vocab: int, count: int, seed: int) -> None:
    count = min(count, num_vocab)
    row = np.round(random_logits(1, num_vocab, seed)[0])  # rounded: ties are common
    order = np.argsort(-row, kind="stable")[:count]
    tokens, values = best_by_passes(row.copy(), count)
    assert tokens == order.tolist()
    assert values == row[order].tolist()
