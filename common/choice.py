"""Choose a token from logits: the reference that both sides and every engine must match.

Order: grammar, logit bias, repetition penalty, presence and frequency penalties, temperature, top-k, top-p,
min-p, noise, argmax. Tokens that the grammar forbids have the logit -inf, so no later part restores them.
Each filter works on the rest of the filter before it, as in Hugging Face's logits processors. The kept tokens
are always the front of one order: best logit first, lowest id first among equals.

Two rules make the result the same in numpy, torch and CUDA. Logits are float32, adjusted ones are rounded
back to float32, and all later arithmetic is float64. Probabilities are summed as integers (multiples of
2**-42 of the best token's), so that the edge of top-p does not depend on the order of a sum.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from common.errors import LocalError
from common.noise import BLOCK, NOISE_MAX, bits_under, gumbel_under, least_bits, noise_key
from common.sampling import SamplingParams

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Logits = NDArray[np.float32]
TokenIds = NDArray[np.int32] | NDArray[np.int64]
Mask = NDArray[np.bool_]

WEIGHT_UNIT = 2.0**42  # integer weight of the best token; 2**20 tokens then sum to at most 2**62
FLOAT32_MAX = float(np.finfo(np.float32).max)

# How far below the best logit to look, in nats after temperature, until there are enough tokens.
DEPTHS = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, sys.float_info.max)
NUM_FIRST = 32  # tokens scored first to raise the bar; more lift it hardly higher
ROUNDING = 1e-9  # far above a float64's error in sums of numbers below 200, far below any margin


@dataclass(frozen=True, slots=True)
class Choice:
    """Holds the chosen token and its margin: the best score minus the runner-up's. The margin is inf without
    a runner-up, or if a float32, which engines use, cannot hold it."""

    token: int
    margin: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """A ranking lists the best tokens under the noise, best first, equal scores by id."""

    tokens: IntArray  # [n]
    scores: FloatArray  # [n] processed logit + noise, in nats; only differences mean something

    @property
    def margin(self) -> float:
        return float(self.scores[0] - self.scores[1]) if self.scores.size > 1 else math.inf


@dataclass(frozen=True, slots=True)
class Adjustments:
    """Bias and penalties change a logit x to x + bias, then / or * factor by its sign, then - minus."""

    tokens: IntArray  # [N] distinct, increasing
    bias: FloatArray  # [N]
    factor: FloatArray  # [N] 1 where nothing repeats
    minus: FloatArray  # [N]

    def part(self, span: slice) -> Adjustments:
        """Return the entries of `span` as views."""
        return Adjustments(self.tokens[span], self.bias[span], self.factor[span], self.minus[span])


@dataclass(frozen=True, slots=True)
class History:
    """A history keeps what bias and penalties do after a text, so that more text costs its new tokens only.

    The repetition penalty is CTRL's (Keskar et al. 2019, 4.1) as Hugging Face applies it, over prompt and
    generated tokens. Presence and frequency penalties are OpenAI's, over the generated tokens alone.
    """

    params: SamplingParams
    num_generated: int  # tokens of the text after its prompt
    changes: Adjustments  # [N] of biased tokens, and of those of the text that a penalty looks at
    times: IntArray  # [N] occurrences among the generated tokens

    @classmethod
    def of(
        cls, params: SamplingParams, prompt: TokenIds | None = None, generated: TokenIds | None = None
    ) -> History:
        """Build the history of a text. Raises `LocalError` if penalties lack their tokens."""
        biased = np.array([token for token, _ in params.logit_bias], np.int64)
        seen = np.empty(0, np.int64)
        if params.has_penalties:
            if prompt is None or generated is None:
                raise LocalError("penalties need the tokens before the row: prompt and generated")
            if params.repetition_penalty != 1.0:
                seen, _ = _counted(np.asarray(prompt, np.int64))
        tokens, _ = _counted(np.concatenate([biased, seen]))
        bias = np.zeros(tokens.size)
        np.add.at(bias, np.searchsorted(tokens, biased), [value for _, value in params.logit_bias])
        factor = np.ones(tokens.size)
        factor[np.searchsorted(tokens, seen)] = params.repetition_penalty
        nothing = np.zeros(tokens.size, np.int64)
        history = cls(params, 0, Adjustments(tokens, bias, factor, np.zeros(tokens.size)), nothing)
        return history if generated is None else history.extended(generated)

    def extended(self, generated: TokenIds) -> History:
        """Return the history after these tokens, too."""
        length = self.num_generated + len(generated)
        if not len(generated) or not self.params.has_penalties:
            return replace(self, num_generated=length)
        _, new, times = self._after([generated])
        known = self.changes
        at, is_known = _places(known.tokens, new.tokens)
        at, fresh = at[~is_known], ~is_known
        tokens = np.insert(known.tokens, at, new.tokens[fresh])
        bias = np.insert(known.bias, at, new.bias[fresh])
        factor = np.insert(known.factor, at, new.factor[fresh])
        minus = np.insert(known.minus, at, new.minus[fresh])
        counts = np.insert(self.times, at, times[fresh])
        now = np.searchsorted(tokens, new.tokens)
        factor[now], minus[now], counts[now] = new.factor, new.minus, times
        return History(self.params, length, Adjustments(tokens, bias, factor, minus), counts)

    def after(self, paths: Sequence[TokenIds]) -> tuple[IntArray, Adjustments]:
        """Return the changes that hold in place of `changes` when the text continues along several paths.

        Returns the path of each entry, int64 [E] not decreasing, and the entries, whose tokens are distinct
        and increasing within a path. They are of the paths' tokens; all others keep their change.
        """
        if not self.params.has_penalties:
            return np.empty(0, np.int64), self.changes.part(slice(0, 0))
        where, changes, _ = self._after(paths)
        return where, changes

    def _after(self, paths: Sequence[TokenIds]) -> tuple[IntArray, Adjustments, IntArray]:
        params, known = self.params, self.changes
        owners = np.repeat(np.arange(len(paths)), [len(path) for path in paths])
        keys, times = _counted((owners << 32) + np.concatenate([*paths, owners[:0]]))
        tokens = keys & 0xFFFFFFFF
        at, is_known = _places(known.tokens, tokens)
        bias = np.zeros(tokens.size)
        bias[is_known] = known.bias[at[is_known]]
        times[is_known] += self.times[at[is_known]]
        factor = np.full(tokens.size, params.repetition_penalty)
        minus = params.presence_penalty * (times > 0) + params.frequency_penalty * times
        return keys >> 32, Adjustments(tokens, bias, factor, minus), times


def choose(
    logits: Logits,
    params: SamplingParams,
    position: int,
    prompt: TokenIds | None = None,
    generated: TokenIds | None = None,
    allowed: Mask | None = None,
) -> Choice:
    """Return the token written at `position + 1`, from the logits [V] of the row at `position`.

    `prompt` and `generated` are all tokens up to `position`; only penalties read them. `allowed` [V] are the
    tokens that the grammar lets follow them (`common.grammar`); None: all. Raises `LocalError` if the logits,
    or those of the allowed tokens, have no finite maximum, or penalties lack their tokens.
    """
    return choose_adjusted(adjusted_logits(logits, params, prompt, generated, allowed), params, position)


def choose_adjusted(adjusted: Logits, params: SamplingParams, position: int) -> Choice:
    """Choose from logits that grammar, bias and penalties have changed already."""
    if not params.greedy:
        ranking = rank_adjusted(adjusted, params, position, 2)
        return Choice(int(ranking.tokens[0]), ranking.margin if ranking.margin <= FLOAT32_MAX else math.inf)
    token = int(adjusted.argmax())  # numpy promises the first, so the lowest id
    others = [_greatest(side) for side in (adjusted[:token], adjusted[token + 1 :]) if side.size]
    return Choice(token, float(adjusted[token]) - max(others, default=-math.inf))


def rank_adjusted(adjusted: Logits, params: SamplingParams, position: int, count: int) -> Ranking:
    """Return the `count` (>= 1) best tokens for `position + 1`, of logits that grammar, bias and penalties
    have changed already."""
    scaled = _scaled(adjusted, params)
    if params.greedy:
        return _rank_plain(scaled, count)
    key = noise_key(params.seed, position + 1)
    kept = _kept(scaled, params)
    return _rank_noisy(scaled if kept is None else scaled[kept], kept, key, count)


def process_adjusted(adjusted: Logits, params: SamplingParams) -> FloatArray:
    """Return the logits [V] whose softmax is the law of `choose`: filtered tokens are -inf, the best is 0.

    Grammar, bias and penalties have changed `adjusted` already. At temperature 0 nothing is scaled or
    filtered: the best token is never filtered.
    """
    scaled = _scaled(adjusted, params)
    kept = None if params.greedy else _kept(scaled, params)
    if kept is None:
        return scaled
    processed = np.full_like(scaled, -np.inf)
    processed[kept] = scaled[kept]
    return processed


def adjusted_logits(
    logits: Logits,
    params: SamplingParams,
    prompt: TokenIds | None = None,
    generated: TokenIds | None = None,
    allowed: Mask | None = None,
) -> Logits:
    """Return the checked float32 logits [V] after grammar, bias and penalties. Raises `LocalError` if
    penalties lack their tokens or an id lies outside the vocabulary."""
    if not params.logit_bias and not params.has_penalties:
        return adjust(logits, (), allowed)
    changes = History.of(params, prompt, generated).changes
    check_within(changes.tokens, np.size(logits))
    return adjust(logits, (changes,), allowed)


def adjust(logits: Logits, changes: Iterable[Adjustments], allowed: Mask | None = None) -> Logits:
    """Apply a mask and changes to logits [V]; a later change of a token replaces an earlier one. The input
    is returned if nothing changes."""
    given = np.asarray(logits, np.float32)
    if given.ndim != 1 or not given.size:
        raise LocalError(f"logits of one row are wanted, shape [V]; these have shape {list(given.shape)}")
    check_best(_greatest(given))
    if allowed is not None:
        check_allowed(allowed, given.size)
        given = np.where(allowed, given, np.float32(-np.inf))
        check_best(_greatest(given))
    adjusted = given
    for change in changes:
        adjusted = given.copy() if adjusted is given else adjusted
        adjusted[change.tokens] = adjusted_values(given[change.tokens], change)
    if adjusted is not given:
        check_best(_greatest(adjusted))
    return adjusted


def _greatest(logits: Logits) -> float:
    """Return the greatest logit, nan if one is. `argmax` has a shorter way to its result than `max`."""
    return float(logits[logits.argmax()])


def adjusted_values(values: Logits, change: Adjustments) -> Logits:
    """Apply a change to logits [..., N] of its tokens; float32 of the same shape."""
    exact = values.astype(np.float64) + change.bias
    with np.errstate(over="ignore"):  # below a float32's range a token is as good as forbidden
        exact = np.where(exact > 0, exact / change.factor, exact * change.factor) - change.minus
        return np.minimum(exact, FLOAT32_MAX).astype(np.float32)


def check_within(tokens: IntArray, vocab_size: int) -> None:
    """Raise `LocalError` unless increasing `tokens` are ids of the vocabulary."""
    if tokens.size and not (tokens[0] >= 0 and tokens[-1] < vocab_size):
        raise LocalError(f"token ids {tokens[0]} to {tokens[-1]} are not within 0..{vocab_size - 1}")


def check_best(best: float) -> None:
    """Raise `LocalError` unless a row's greatest logit is finite; maxima hand on nan in numpy and torch."""
    if not math.isfinite(best):
        raise LocalError(
            f"the logits' greatest value is {best}: the model's weights or its arithmetic are broken "
            "(float16 overflows in models made for bfloat16); try another dtype"
        )


def check_allowed(allowed: Mask, vocab_size: int) -> None:
    """Raise `LocalError` unless a grammar's mask says for each token whether it may follow, and one may."""
    if allowed.dtype != np.bool_ or allowed.shape != (vocab_size,):
        raise LocalError(
            f"the mask of a row is {allowed.dtype} of shape {list(allowed.shape)}; "
            f"bool of shape [{vocab_size}] is wanted"
        )
    if not allowed.any():
        raise LocalError("the mask of a row allows no token at all; end tokens must be left")


def nucleus(total: int, top_p: float) -> int:
    """Return the integer weight that top-p must reach, of a total of integer weights."""
    return min(total, math.ceil(top_p * float(total)))


def log_min_p(params: SamplingParams) -> float:
    """Return min-p as a bound on the processed logit, where the best token has 0."""
    return math.log(params.min_p) if params.min_p > 0 else -math.inf


def has_filters(params: SamplingParams) -> bool:
    """Tell whether tokens are filtered before the noise; greedy choices never need it."""
    return not params.greedy and (params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0)


def _counted(numbers: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct numbers, increasing, and their counts. A sort is faster than `np.unique`."""
    ordered = np.sort(numbers)
    first = np.ones(ordered.size, np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    return ordered[starts], np.diff(starts, append=ordered.size)


def _places(ordered: IntArray, wanted: IntArray) -> tuple[IntArray, Mask]:
    at = np.searchsorted(ordered, wanted)
    is_there = at < ordered.size
    is_there[is_there] = ordered[at[is_there]] == wanted[is_there]
    return at, is_there


def _scaled(adjusted: Logits, params: SamplingParams) -> FloatArray:
    scaled = adjusted.astype(np.float64)
    scaled -= scaled[scaled.argmax()]
    if not params.greedy:
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
            scaled /= params.temperature
    return scaled


def _kept(scaled: FloatArray, params: SamplingParams) -> IntArray | None:
    """Ids that the filters keep, best first; None if there is no filter. Sorts no more than it must."""
    if not has_filters(params):
        return None
    everything = int(_weights(scaled).sum()) if params.top_p < 1.0 and not params.top_k else None
    for depth in DEPTHS:
        front = (scaled >= -depth).nonzero()[0]
        if front.size < params.top_k and depth < DEPTHS[-1]:
            continue
        front = front[np.argsort(-scaled[front], kind="stable")]
        count = _num_kept(scaled[front], params, everything)
        if count < front.size or depth == DEPTHS[-1]:
            return front[:count]
    raise AssertionError("the last depth holds every token")


def _num_kept(ranked: FloatArray, params: SamplingParams, everything: int | None) -> int:
    """Return how many of the tokens, best first, the filters keep; `everything` is the weight of all, if
    known."""
    count = min(params.top_k, ranked.size) if params.top_k else ranked.size
    if params.top_p < 1.0:
        sums = np.cumsum(_weights(ranked[:count]))
        goal = nucleus(int(sums[-1]) if everything is None else everything, params.top_p)
        count = min(count, int(np.searchsorted(sums, goal)) + 1)
    return min(count, int(np.count_nonzero(ranked >= log_min_p(params))))


def _weights(scaled: FloatArray) -> IntArray:
    """Unnormalised probabilities as integers: their sums are exact in any order."""
    return np.rint(np.exp(scaled) * WEIGHT_UNIT).astype(np.int64)


def _rank_plain(scaled: FloatArray, count: int) -> Ranking:
    front, _ = _front(scaled, count)
    tokens = front[np.argsort(-scaled[front], kind="stable")[:count]]
    return Ranking(tokens, scaled[tokens])


def _rank_noisy(scaled: FloatArray, ids: IntArray | None, key: int, count: int) -> Ranking:
    """Return the best of `scaled` + noise: noise for likely tokens first, then for possible winners.

    `ids` are the tokens of `scaled`; None: its indices.
    """
    front, depth = _front(scaled, max(count, NUM_FIRST))
    tokens = front if ids is None else ids[front]
    scores = scaled[front] + gumbel_under(key, tokens)
    bar = _nth_best(scores, count)
    late = _late_winners(scaled, ids, key, depth, bar)
    best = scores >= bar
    tokens, scores = tokens[best], scores[best]
    if late.size:
        others = late if ids is None else ids[late]
        tokens = np.concatenate([tokens, others])
        scores = np.concatenate([scores, scaled[late] + gumbel_under(key, others)])
    order = np.lexsort((tokens, -scores))[:count]
    return Ranking(tokens[order], scores[order])


def _front(scaled: FloatArray, count: int) -> tuple[IntArray, float]:
    """Indices of at least `count` of the best values (all finite ones if fewer), and the depth they reach."""
    for depth in DEPTHS[:-1]:
        front = (scaled >= -depth).nonzero()[0]
        if front.size >= count:
            return front, depth
    return (scaled >= -DEPTHS[-1]).nonzero()[0], DEPTHS[-1]


def _nth_best(scores: FloatArray, count: int) -> float:
    if scores.size < count:
        return -math.inf
    return float(np.partition(scores, scores.size - count)[scores.size - count])


def _late_winners(scaled: FloatArray, ids: IntArray | None, key: int, depth: float, bar: float) -> IntArray:
    """Indices below `-depth` that may reach the bar, looked for a block at a time (`common.noise.BLOCK`)."""
    late = [np.empty(0, np.int64)]
    if depth < DEPTHS[-1]:
        least, stream = np.uint64(least_bits(bar + depth - ROUNDING)), np.uint64(key)
        for at in range(0, scaled.size, BLOCK):
            block = scaled[at : at + BLOCK]
            able = ((block < -depth) & (block >= bar - NOISE_MAX)).nonzero()[0]
            able += at
            late.append(able[bits_under(stream, able if ids is None else ids[able]) >= least])
    return np.concatenate(late)
