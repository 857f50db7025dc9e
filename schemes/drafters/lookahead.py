"""Draft without a model, from the target's own choices at rows that need not be right.

Lookahead decoding (Fu et al. 2024, arXiv 2402.02057) keeps a window of W columns of N - 1 levels. Level 0 is
a chain of guesses below the tip. The other levels of a column hang below its token of level 0, each below
the one before. All are rows of a target step, and the choices at the last level become the next one. So a
column holds the last N - 1 steps of a Jacobi iteration. With the newest choice they are an n-gram, which
goes to a pool, and the pool's n-grams that begin with the tip are verified.

Jacobi decoding (Santilli et al. 2023, arXiv 2305.10427) is the window of one level, without a pool.

The nodes are like those of any source: the same noise and the same budget of rows. So they change no text,
and they run where rows are idle or where they win more than they cost. One departure: the paper's window
moves one place a step, here as many as the step wrote.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from cloud_verifier.core.sources import VerifierSource
from common.errors import UserError
from common.estimators import RatioEstimator
from common.prompt_lookup import LEAST, chain, grow_below, log_chance
from common.tree import Node, SpeculationTree

POOL = 8192
"""First tokens whose n-grams a session keeps, those used last."""

MOST_ROWS = 256
"""Rows of one session in a step."""

FORMS = {"jacobi": ("jacobi:N", (8,)), "lookahead": ("lookahead:W,N,G", (5, 3, 5))}
"""Arguments of each kind, and those that are meant if none are given."""

NEWEST, OTHER, LEVEL_0 = (0.5, 0.7), (0.2, 0.6), (0.2, 0.3)
"""Chances of a first token and of each further one, as long as none was measured: of the newest n-gram, of
others, and of level 0."""

WON_BY_ROW = 0.05
"""Tokens that a row of the window wins by later n-grams, before that is measured."""

PRIOR_WEIGHT, HALF_LIFE = 4.0, 100.0


@dataclass(frozen=True, slots=True)
class Window:
    """Holds the settings of lookahead decoding: W columns, n-grams of N tokens, and at most G n-grams a
    step."""

    num_columns: int
    ngram: int
    most: int

    @property
    def num_rows(self) -> int:
        """Most rows of a step below its tip."""
        return self.num_columns * (self.ngram - 1) - 1 + self.most * (self.ngram - 1)

    def source(self, prompt: Sequence[int]) -> Lookahead:
        """Return the source of a session with this prompt."""
        return Lookahead(self, prompt)


def read_window(source: str) -> Window:
    """Read what `--drafter` names: `jacobi:N` or `lookahead:W,N,G`. Raises `UserError`."""
    kind, _, given = source.partition(":")
    form, values = FORMS[kind]
    numbers = tuple(int(part) if part.isdecimal() else 0 for part in given.split(",")) if given else values
    if len(numbers) == len(values) and min(numbers) > 0:
        window = Window(numbers[0] + 1, 2, 0) if kind == "jacobi" else Window(*numbers)
        if window.num_columns > 1 and window.ngram > 1 and window.num_rows <= MOST_ROWS:
            return window
    raise UserError(
        f"--drafter is {source!r}; {form} was expected, with numbers above 0, W and N above 1, and at most "
        f"{MOST_ROWS} rows in all"
    )


class _Chain:
    """A chain of guesses below the tip, which is compared with what the target writes."""

    def __init__(self, tokens: Sequence[int], chances: Sequence[RatioEstimator]) -> None:
        self.tokens = tokens
        self.chances = chances  # of each token, if those before it are right
        self._num_right = 0
        self._ended = False

    @property
    def logprobs(self) -> list[float]:
        return [log_chance(chance.ratio) for _, chance in zip(self.tokens, self.chances, strict=False)]

    def learn(self, token: int) -> bool:
        """Compare the next guess with the target's token. Return whether all guesses so far are right."""
        if self._ended or self._num_right == len(self.tokens):
            return False
        hit = self.tokens[self._num_right] == token
        self.chances[self._num_right].add(float(hit), 1.0)
        self._num_right += hit
        self._ended = not hit
        return hit


class Lookahead(VerifierSource):
    """Keeps one session's window and pool. Driven by the session.

    Args: window; prompt, token ids, from which level 0 begins.
    """

    def __init__(self, window: Window, prompt: Sequence[int]) -> None:
        self._window = window
        some = list(prompt[-window.num_columns :]) * window.num_columns
        self.levels = [some[: window.num_columns]]  # [level][column], the oldest first
        # By first token: what follows, the newest first.
        self.pool = OrderedDict[int, list[tuple[int, ...]]]()
        self._newest, self._other = _chances(NEWEST, window.ngram - 1), _chances(OTHER, window.ngram - 1)
        self._level_0 = _chances(LEVEL_0, window.num_columns - 1)
        self._won_by_row = RatioEstimator(WON_BY_ROW, 10 * PRIOR_WEIGHT, 10 * HALF_LIFE)
        self._ngrams = list[_Chain]()  # below the present tip
        self._first = _Chain((), ())  # level 0
        self._ends: list[int | None] = []  # by column: id of its last node; None: it had no room
        self._rows = set[int]()  # ids of the window's nodes
        self._num_foretold = 0  # tokens since the tip, by n-grams
        self._num_written = 0  # tokens since the window moved

    def grow(
        self, tree: SpeculationTree, last: int, room: int, surely: float = LEAST, *, from_tip: bool = True
    ) -> None:
        self._move(self.levels, self._num_written)  # past steps that evaluated nothing but a tip
        tip, most = tree.tip, tree.num_speculative + room
        self.levels[0][0] = tip.token
        grams = self.pool.get(tip.token, ())
        self._ngrams = [
            _Chain(gram, self._other if rank else self._newest) for rank, gram in enumerate(grams)
        ]
        self._first, self._num_foretold = _Chain(self.levels[0][1:], self._level_0), 0
        for gram in self._ngrams:
            grow_below(tree, tip, chain(gram.tokens, gram.logprobs), most, last)
        won = log_chance(self._won_by_row.ratio)
        first = chain(self._first.tokens, _at_least(won, self._first.logprobs))
        bases = grow_below(tree, tip, first, most, last)
        self._ends, self._rows = [], {base.id for base in bases}
        for column, base in enumerate([tip, *bases]):
            tokens = [level[column] for level in self.levels[1:]]
            logprobs = _at_least(min(won - tree.worth(base), 0.0), [LEAST] * len(tokens))
            path = [base, *grow_below(tree, base, chain(tokens, logprobs), most, last)]
            self._ends.append(path[-1].id if len(path) > len(tokens) else None)
            self._rows.update(node.id for node in path[1:])

    def learn(self, node: int, token: int) -> None:
        self._num_written += 1
        self._first.learn(token)
        hits = [chain.learn(token) for chain in self._ngrams]
        self._num_foretold += any(hits)

    def forget(self, tree: SpeculationTree, nodes: Sequence[Node]) -> None:
        """Move the window on by the step's choices, and keep its n-grams."""
        if not nodes:  # a chunk of the prompt
            return
        choices, num_passed = {node.id: node.choice for node in nodes}, self._num_written - 1
        if num_rows := len(self._rows & choices.keys()):
            self._won_by_row.add(min(self._num_foretold, num_passed), num_rows)
        ends = [*self._ends, *[None] * self._window.num_columns]
        chosen = [choices.get(end) if end is not None else None for end in ends[: self._window.num_columns]]
        is_full = len(self.levels) == self._window.ngram - 1
        if is_full and self._window.most:
            self._keep(chosen)
        newest = [old if new is None else new for old, new in zip(self.levels[-1], chosen, strict=True)]
        self._move([*self.levels[is_full:], newest], num_passed if is_full else num_passed + 1)

    def _move(self, levels: Sequence[list[int]], num_places: int) -> None:
        """Take `levels` as the window, so many places on. What falls out begins anew at the far end."""
        shift, self._num_written = num_places % self._window.num_columns, 0
        self.levels = [[*level[shift:], *level[:shift]] for level in levels]

    def _keep(self, chosen: Sequence[int | None]) -> None:
        """Put the n-grams of the columns with a choice into the pool."""
        for column, choice in enumerate(chosen):
            if choice is None:
                continue
            first, *others = (level[column] for level in self.levels)
            gram, known = (*others, choice), self.pool.pop(first, [])
            self.pool[first] = [gram, *(each for each in known if each != gram)][: self._window.most]
            if len(self.pool) > POOL:
                self.pool.popitem(last=False)


def _chances(prior: tuple[float, float], length: int) -> list[RatioEstimator]:
    return [RatioEstimator(prior[place > 0], PRIOR_WEIGHT, HALF_LIFE) for place in range(length)]


def _at_least(least: float, logprobs: Sequence[float]) -> list[float]:
    """Return log-probabilities of a chain's tokens, each if those before it are right, with which no path is
    less likely than `least`."""
    raised, path, before = list[float](), 0.0, 0.0
    for logprob in logprobs:
        path += logprob
        raised.append(min(max(path, least) - before, 0.0))
        before += raised[-1]
    return raised
