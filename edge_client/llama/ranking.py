"""From a draft's logits to the candidates that may follow: the target's rule, on the draft's side.

The target chooses argmax(processed logits + noise) (`common.choice`); the candidates are the best by the same
quantity. Only the draft's likeliest tokens are looked at before the noise is added, which is not exact and
need not be: a candidate missed costs speed, never text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.choice import History, adjusted_values, has_filters
from common.noise import bits_under, gumbel, gumbel_of_bits, noise_key
from common.sampling import SamplingParams
from edge_client.core.drafter import Expansion

Logits = NDArray[np.float32]
Tokens = NDArray[np.int64]
Scores = NDArray[np.float64]

DENSE_VOCAB = 8192
"""Up to this vocabulary the noise of a position is computed for all tokens once (about 20 ns each) and serves
every node there; siblings share it. Beyond, only the likeliest tokens of each row get theirs."""

KEPT_POSITIONS = 64
"""Positions whose noise is kept: deeper than any tree reaches below its tip in practice."""

NUM_NOISY = 64
"""Tokens per row that get noise in a larger vocabulary. The target's choice lies outside the draft's best 64
in a few percent of cases at temperature 1, where the draft could not have been sure of it either."""

COLDEST = 1e-6
"""Temperature below which the noise (36.8 nats at most) decides only ties; smaller ones overflow."""

SMALLEST_GROUP = 4  # below, finding groups costs more than they save


class RankedNode(Protocol):
    """What a ranker reads of a node."""

    @property
    def id(self) -> int: ...
    @property
    def position(self) -> int: ...


Node = TypeVar("Node", bound=RankedNode)


class Ranker:
    """Ranks the rows of one draft step. `num_candidates` per row at most, fewer where filters leave fewer."""

    def __init__(self, num_vocab: int, num_candidates: int = 8, num_noisy: int = NUM_NOISY) -> None:
        self._num_vocab = num_vocab
        self._num_candidates = min(num_candidates, num_vocab)
        self._best = TopTokens(num_vocab, self._num_candidates)
        self._likely = TopTokens(num_vocab, min(max(num_noisy, num_candidates), num_vocab))
        self._plain: TopTokens | None = None  # finds the candidates where no noise is added
        self._params = SamplingParams()
        self._temperature = 1.0
        self._coldness = 1.0
        self._has_filters = False
        self._noise_at: dict[int, Logits] = {}  # position -> noise of every token; small vocabularies only
        self._is_dense = num_vocab <= DENSE_VOCAB
        self._all_tokens: Tokens = np.arange(num_vocab if self._is_dense else 0, dtype=np.int64)
        self._num_prompt = 0
        self._history: History | None = None  # of the text; None where bias and penalties change nothing

    def start(self, params: SamplingParams, prompt: Sequence[int], plain: int = 0) -> None:
        """Rank by these parameters from now on; `prompt` is what a repetition penalty looks back at. Above 0,
        `plain` is how many candidates are wanted without the noise."""
        self._plain = TopTokens(self._num_vocab, min(plain, self._num_vocab)) if plain else None
        self._params = params
        self._temperature = max(params.temperature, COLDEST)
        self._coldness = 1.0 / self._temperature
        self._has_filters = has_filters(params)
        self._num_prompt, self._history = len(prompt), None
        if params.has_penalties or params.logit_bias:
            self._history = History.of(params, np.asarray(prompt, np.int64), np.empty(0, np.int64))
        self._noise_at.clear()

    def rank(
        self,
        logits: Logits,
        nodes: Sequence[Node],
        text: Sequence[int],
        below: Callable[[Node], Sequence[int]],
    ) -> list[Expansion]:
        """Candidates after each node, from its row of `logits` [nodes, vocabulary], which are used up.

        `text` is the prompt and what is committed since; `below` gives the tokens from there to a node, its
        own included. Both are read only if bias or penalties are set. A logit of -inf is a token that cannot
        follow, and none of the candidates. Scores are exact up to a constant of their row.
        """
        if self._history is not None:
            known = self._num_prompt + self._history.num_generated
            self._history = self._history.extended(np.asarray(text[known:], np.int64))
            _change(logits, self._history, [np.asarray(below(node), np.int64) for node in nodes])
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

    def _rank_dense(self, logits: Logits, nodes: Sequence[Node]) -> list[Expansion]:
        """Greedy, or with noise on every token.

        The best of logits / T + noise are the best of logits + T * noise: only those need the division.
        """
        count, coldness, greedy = self._num_candidates, self._coldness, self._params.greedy
        expansions = []
        for node, row in zip(nodes, logits, strict=True):
            if not greedy:
                np.add(row, self._dense_noise(node.position + 1), out=row)
            tokens, values = best_by_passes(row, count)
            if not greedy:
                values = [value * coldness for value in values]
            expansions.append(
                Expansion(node.id, tuple(tokens), tuple(values))
                if values[-1] != -math.inf
                else _without_filtered(node.id, tokens, values)
            )
        return expansions

    def _dense_noise(self, position: int) -> Logits:
        """[vocabulary] temperature times the noise of every token at a position; remembered."""
        noise = self._noise_at.get(position)
        if noise is None:
            if len(self._noise_at) >= KEPT_POSITIONS:
                del self._noise_at[next(iter(self._noise_at))]
            cold = gumbel(self._params.seed, position, self._all_tokens)
            noise = (cold * self._temperature).astype(np.float32)
            self._noise_at[position] = noise
        return noise

    def _noise(self, nodes: Sequence[Node], tokens: Tokens) -> Scores:
        """[rows, k] the noise at the position after each node."""
        seed = self._params.seed
        # Keys in Python integers: for the few rows of a step that beats a dozen calls on short arrays.
        keys = np.array([[noise_key(seed, node.position + 1)] for node in nodes], np.uint64)
        return gumbel_of_bits(bits_under(keys, tokens))

    def _filtered(self, scores: Scores, logits: Logits) -> Scores:
        """-inf where top-k, top-p or min-p drop a token. `scores` [rows, k] decrease along a row.

        Each filter keeps a leading part of the sorted row, so that all three are one length per row.
        """
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
        """[rows, 1] how many of the best tokens have `top_p` of the probability that top-k leaves."""
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
    """Write what bias and penalties do along each row's path into `logits` [rows, vocabulary]."""
    rows, own = history.after(paths)
    values = adjusted_values(logits[rows, own.tokens], own)
    shared = history.changes
    logits[:, shared.tokens] = adjusted_values(logits[:, shared.tokens], shared)
    logits[rows, own.tokens] = values


def best_by_passes(row: Logits, count: int) -> tuple[list[int], list[float]]:
    """Ids and values of the `count` largest of a short `row` [vocabulary], decreasing, lowest id on a tie.

    One argmax each, what was found overwritten by -inf. Between two decodes every numpy function is met with
    cold caches: a few passes of one function beat a partition made of a dozen.
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
    """Finds the `count` largest of each row with one pass over it, and no sort of more than a corner of it.

    A row is dealt out to groups; the `count` largest all lie in the `count` groups with the largest maxima.
    A group is a strided set, so that the maxima of all groups are a few elementwise maxima of row pieces.
    """

    def __init__(self, num_vocab: int, count: int) -> None:
        self._count = count
        self._group_size = _group_size(num_vocab, count)
        self._num_groups = num_vocab // self._group_size
        self._grouped = self._num_groups * self._group_size  # the rest of the row is always looked at
        self._offsets: Tokens = np.arange(self._group_size, dtype=np.int64)[:, None] * self._num_groups
        self._rest: Tokens = np.arange(self._grouped, num_vocab, dtype=np.int64)

    def __call__(self, logits: Logits) -> tuple[Tokens, Logits]:
        """Ids and logits, both [rows, count], decreasing, from contiguous `logits` [rows, vocabulary]."""
        if self._group_size < SMALLEST_GROUP or self._num_groups <= self._count:
            split = max(0, logits.shape[1] - self._count)
            tokens = logits.argpartition(split, axis=1)[:, split:]
        else:
            tokens = self._within_best_groups(logits)
        values = logits.ravel().take(tokens + _row_starts(*logits.shape))
        return _largest(tokens, values, self._count)

    def _within_best_groups(self, logits: Logits) -> Tokens:
        """[rows, count * group size + rest] ids of all tokens of the best groups."""
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
    """[rows, 1] index of each row's first element in the flat matrix: `take` there gathers fastest."""
    return np.arange(0, num_rows * width, width)[:, None]


def _group_size(num_vocab: int, count: int) -> int:
    """Near the optimum, and a divisor of the vocabulary's size if there is one: a rest costs extra calls.

    The square root would balance what is partitioned and what is sorted; sorting costs about twice.
    """
    best = max(1, round(0.7 * math.sqrt(num_vocab / count)))
    near = [size for size in range(max(1, best * 2 // 3), best * 3 // 2 + 1) if num_vocab % size == 0]
    return min(near, key=lambda size: abs(size - best)) if near else best


def _largest(tokens: Tokens, values: Values, count: int) -> tuple[Tokens, Values]:
    """The `count` best of each row, [rows, count], decreasing."""
    order = values.argsort(axis=1)[:, : -count - 1 : -1] + _row_starts(*values.shape)
    return tokens.ravel().take(order), values.ravel().take(order)


def _expansions(nodes: Sequence[RankedNode], tokens: Tokens, scores: Logits | Scores) -> list[Expansion]:
    rows = zip(nodes, tokens.tolist(), scores.tolist(), strict=True)
    return [
        Expansion(node.id, tuple(ids), tuple(values))
        if values[-1] != -math.inf
        else _without_filtered(node.id, ids, values)
        for node, ids, values in rows
    ]


def _without_filtered(node_id: int, tokens: list[int], scores: list[float]) -> Expansion:
    """Tokens that are filtered or not allowed have the score -inf and stand last."""
    count = sum(math.isfinite(score) for score in scores)
    return Expansion(node_id, tuple(tokens[:count]), tuple(scores[:count]))
