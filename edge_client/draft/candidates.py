"""Ranks a draft's candidates from its logits by the target's own rule.

The target chooses argmax(processed logits + noise) (`common.choice`). The candidates are the best tokens
by the same quantity. Noise is added only to the draft's likeliest tokens. This is inexact, but a missed
candidate costs speed, never text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from common.choice import History, adjusted_values, has_filters
from common.noise import bits_under, gumbel, gumbel_of_bits, noise_key
from common.sampling import SamplingParams
from edge_client.core.effects import Expansion
from edge_client.draft.batch_plan import DraftNode

Logits = NDArray[np.float32]
Tokens = NDArray[np.int64]
Scores = NDArray[np.float64]

DENSE_VOCAB = 8192
"""Vocabulary up to which a position's noise is computed once for all tokens (about 20 ns each) and shared by
its nodes. In a larger one only the likeliest tokens of each row get noise."""

KEPT_POSITIONS = 64
"""Positions whose noise is kept, more than the depth of any tree in practice."""

NUM_NOISY = 64
"""Tokens per row that get noise in a larger vocabulary. At temperature 1 the target's choice lies outside
the draft's best 64 in a few percent of cases, and there the draft is unsure, too."""

COLDEST = 1e-6
"""Temperature below which noise (36.8 nats at most) decides only ties. Smaller values overflow."""

SMALLEST_GROUP = 4  # below, finding groups costs more than they save


class Ranker:
    """Ranks the rows of one draft step, with at most `num_candidates` per row after filters."""

    def __init__(self, num_vocab: int, num_candidates: int) -> None:
        self._num_vocab = num_vocab
        self._num_candidates = min(num_candidates, num_vocab)
        self._best = TopTokens(num_vocab, self._num_candidates)
        self._likely = TopTokens(num_vocab, min(max(NUM_NOISY, num_candidates), num_vocab))
        self._plain: TopTokens | None = None  # finds the candidates without noise
        self._params = SamplingParams()
        self._temperature = 1.0
        self._coldness = 1.0
        self._has_filters = False
        self._noise_at: dict[int, Logits] = {}  # position -> noise of every token; small vocabularies only
        self._is_dense = num_vocab <= DENSE_VOCAB
        self._all_tokens: Tokens = np.arange(num_vocab if self._is_dense else 0, dtype=np.int64)
        self._num_prompt = 0
        self._history: History | None = None  # of the text; None if bias and penalties change nothing

    def start(self, params: SamplingParams, prompt: Sequence[int], plain: int = 0) -> None:
        """Rank by these parameters from now on. A positive `plain` asks for so many without noise."""
        self._plain = TopTokens(self._num_vocab, min(plain, self._num_vocab)) if plain else None
        self._params = params
        self._temperature = max(params.temperature, COLDEST)
        self._coldness = 1.0 / self._temperature
        self._has_filters = has_filters(params)
        self._num_prompt, self._history = len(prompt), None
        if params.has_penalties or params.logit_bias:
            self._history = History.of(params, np.asarray(prompt, np.int64), np.empty(0, np.int64))
        self._noise_at.clear()

    def rank(self, logits: Logits, nodes: Sequence[DraftNode], text: Sequence[int]) -> list[Expansion]:
        """Return each node's candidates from its row of `logits` [nodes, vocabulary], which is overwritten.

        `text` is the prompt and the committed tokens after it. It is read only for bias or penalties. A
        token with a logit of -inf is no candidate. Scores are exact up to a constant of their row.
        """
        if self._history is not None:
            known = self._num_prompt + self._history.num_generated
            self._history = self._history.extended(np.asarray(text[known:], np.int64))
            _change(logits, self._history, [np.asarray(node.below_tip(), np.int64) for node in nodes])
        params = self._params
        if self._plain is not None:
            tokens, values = self._plain(logits)
            scores = self._filtered(values / np.float64(self._temperature), logits)
            return _expansions(nodes, tokens, scores)
        if self._is_dense and not self._has_filters:
            return self._rank_dense(logits, nodes)
        if params.greedy:
            return _expansions(nodes, *self._best(logits))
        tokens, values = self._likely(logits)
        scores = self._filtered(values / np.float64(self._temperature), logits)
        scores += self._noise(nodes, tokens)
        return _expansions(nodes, *_largest(tokens, scores, self._num_candidates))

    def _rank_dense(self, logits: Logits, nodes: Sequence[DraftNode]) -> list[Expansion]:
        """Rank greedily, or with noise on every token.

        The best by logits / T + noise are the best by logits + T * noise, so only those are divided.
        """
        count, coldness, greedy = self._num_candidates, self._coldness, self._params.greedy
        expansions = []
        for node, row in zip(nodes, logits, strict=True):
            if not greedy:
                np.add(row, self._dense_noise(node.position + 1), out=row)
            tokens, values = best_by_passes(row, count)
            if not greedy:
                values = [value * coldness for value in values]
            expansions.append(_expansion(node.id, tokens, values))
        return expansions

    def _dense_noise(self, position: int) -> Logits:
        """Return [vocabulary] temperature times the noise at a position, from a cache."""
        noise = self._noise_at.get(position)
        if noise is None:
            if len(self._noise_at) >= KEPT_POSITIONS:
                del self._noise_at[next(iter(self._noise_at))]
            cold = gumbel(self._params.seed, position, self._all_tokens)
            noise = (cold * self._temperature).astype(np.float32)
            self._noise_at[position] = noise
        return noise

    def _noise(self, nodes: Sequence[DraftNode], tokens: Tokens) -> Scores:
        """Return [rows, k] the noise at the position after each node."""
        seed = self._params.seed
        # Keys as Python integers: for the few rows of a step faster than a dozen calls on short arrays.
        keys = np.array([[noise_key(seed, node.position + 1)] for node in nodes], np.uint64)
        return gumbel_of_bits(bits_under(keys, tokens))

    def _filtered(self, scores: Scores, logits: Logits) -> Scores:
        """Set -inf where top-k, top-p or min-p drop a token. Rows decrease, so each keeps a leading part."""
        params, (num_rows, width) = self._params, scores.shape
        keep = np.full((num_rows, 1), width)
        if params.top_k:
            keep = np.minimum(keep, params.top_k)
        if params.top_p < 1.0:
            keep = np.minimum(keep, self._nucleus(scores, logits))
        if params.min_p > 0.0:
            bar = scores[:, :1] + math.log(params.min_p)
            keep = np.minimum(keep, (scores >= bar).sum(axis=1, keepdims=True))
        scores[np.arange(width) >= keep] = -np.inf
        return scores

    def _nucleus(self, scores: Scores, logits: Logits) -> NDArray[np.int64]:
        """Return [rows, 1] how many best tokens have `top_p` of the probability after top-k."""
        top_k = self._params.top_k
        weights = np.exp(scores - scores[:, :1])
        if 0 < top_k <= scores.shape[1]:
            total = weights[:, :top_k].sum(axis=1, keepdims=True)
        else:
            below = logits - logits.max(axis=1, keepdims=True)
            total = np.exp(below * np.float32(1.0 / self._temperature)).sum(axis=1, keepdims=True)
        before = np.cumsum(weights, axis=1) - weights
        kept: NDArray[np.int64] = (before < self._params.top_p * total).sum(axis=1, keepdims=True)
        return kept


def _change(logits: Logits, history: History, paths: Sequence[Tokens]) -> None:
    """Apply bias and penalties along each row's path to `logits` [rows, vocabulary]."""
    rows, own = history.after(paths)
    values = adjusted_values(logits[rows, own.tokens], own)
    shared = history.changes
    logits[:, shared.tokens] = adjusted_values(logits[:, shared.tokens], shared)
    logits[rows, own.tokens] = values


def best_by_passes(row: Logits, count: int) -> tuple[list[int], list[float]]:
    """Return ids and values of the `count` largest of `row` [vocabulary], decreasing, ties by lowest id.

    Each takes one argmax, and -inf then overwrites it. Between two decodes every numpy function runs with
    cold caches, so a few passes of one function beat a partition that calls a dozen.
    """
    tokens, values = [], []
    argmax = row.argmax
    for _ in range(count):
        token = int(argmax())
        tokens.append(token)
        values.append(float(row[token]))
        row[token] = -np.inf
    return tokens, values


class TopTokens:
    """Finds the `count` largest of each row in one pass, and sorts only a small part of it.

    A row is split into groups. The `count` largest lie in the `count` groups with the largest maxima.
    A group is a strided set, so a few elementwise maxima of row pieces give the maxima of all groups.
    """

    def __init__(self, num_vocab: int, count: int) -> None:
        self._count = count
        self._group_size = _group_size(num_vocab, count)
        self._num_groups = num_vocab // self._group_size
        self._grouped = self._num_groups * self._group_size  # the rest of the row is always searched
        self._offsets: Tokens = np.arange(self._group_size, dtype=np.int64)[:, None] * self._num_groups
        self._rest: Tokens = np.arange(self._grouped, num_vocab, dtype=np.int64)

    def __call__(self, logits: Logits) -> tuple[Tokens, Logits]:
        """Return decreasing ids and logits [rows, count] of contiguous `logits` [rows, vocabulary]."""
        if self._group_size < SMALLEST_GROUP or self._num_groups <= self._count:
            split = max(0, logits.shape[1] - self._count)
            tokens = logits.argpartition(split, axis=1)[:, split:]
        else:
            tokens = self._within_best_groups(logits)
        values = logits.ravel().take(tokens + _row_starts(*logits.shape))
        return _largest(tokens, values, self._count)

    def _within_best_groups(self, logits: Logits) -> Tokens:
        """Return [rows, count * group size + rest] ids of all tokens of the best groups."""
        num_rows = len(logits)
        grid = logits[:, : self._grouped].reshape(num_rows, self._group_size, self._num_groups)
        maxima = np.maximum.reduce(grid, axis=1)
        split = self._num_groups - self._count
        groups = maxima.argpartition(split, axis=1)[:, None, split:]
        tokens: Tokens = (groups + self._offsets).reshape(num_rows, -1)
        if not len(self._rest):
            return tokens
        rest = np.broadcast_to(self._rest, (num_rows, len(self._rest)))
        return np.concatenate([tokens, rest], axis=1)


Values = TypeVar("Values", Logits, Scores)


@lru_cache(maxsize=256)
def _row_starts(num_rows: int, width: int) -> Tokens:
    """Return [rows, 1] each row's start in the flat matrix, on which `take` is fastest."""
    return np.arange(0, num_rows * width, width)[:, None]


def _group_size(num_vocab: int, count: int) -> int:
    """Return a size near the optimum that divides the vocabulary if possible: a rest costs extra calls.

    The square root would balance partitioning and sorting, but sorting costs about twice as much.
    """
    best = max(1, round(0.7 * math.sqrt(num_vocab / count)))
    near = [size for size in range(max(1, best * 2 // 3), best * 3 // 2 + 1) if num_vocab % size == 0]
    return min(near, key=lambda size: abs(size - best)) if near else best


def _largest(tokens: Tokens, values: Values, count: int) -> tuple[Tokens, Values]:
    """Return the `count` best of each row, [rows, count], decreasing."""
    order = values.argsort(axis=1)[:, : -count - 1 : -1] + _row_starts(*values.shape)
    return tokens.ravel().take(order), values.ravel().take(order)


def _expansions(nodes: Sequence[DraftNode], tokens: Tokens, scores: Logits | Scores) -> list[Expansion]:
    rows = zip(nodes, tokens.tolist(), scores.tolist(), strict=True)
    return [_expansion(node.id, ids, values) for node, ids, values in rows]


def _expansion(node_id: int, tokens: list[int], scores: list[float]) -> Expansion:
    """Make an expansion. Filtered tokens, which are last with a score of -inf, are left out."""
    if scores[-1] == -math.inf:
        count = sum(math.isfinite(score) for score in scores)
        tokens, scores = tokens[:count], scores[:count]
    return Expansion(node_id, tuple(tokens), tuple(scores))
