"""Masks along a tree of tokens: one matcher a text, moved from path to path by what they have in common."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.errors import LocalError
from common.grammar.library import new_matcher
from common.grammar.strings import unforced
from common.grammar.tokens import Tokens
from common.grammar.trial import Trials

if TYPE_CHECKING:
    from llguidance import LLMatcher

Mask = NDArray[np.bool_]
Path = NDArray[np.int32]

MAX_GRAMMARS = 64
"""Compiled grammars that are kept; one takes some hundred kB, and to compile one anew milliseconds."""

MAX_MATCHERS = 256
"""Texts that are kept; one that was forgotten is read again from its beginning, some microseconds a token."""

MAX_CHUNK = 16
"""Tokens that a matcher reads at once. llguidance holds Python's lock meanwhile."""

NO_TOKENS: Path = np.zeros(0, np.int32)
NO_TOKENS.flags.writeable = False


class Grammars:
    """Compiled grammars of one vocabulary, the least recently used forgotten first. Safe in several threads.

    A grammar that is not known is tried in another process before it is compiled here.
    """

    def __init__(self, tokens: Tokens, capacity: int = MAX_GRAMMARS) -> None:
        self.tokens = tokens
        self._capacity = capacity
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._trials = Trials(tokens)

    def warm(self) -> None:
        """Start the process for trials. Raises `LocalError`."""
        self._trials.warm()

    def matcher(self, grammar: str) -> Matcher:
        """For one text. Raises `UserError` for a grammar that is refused, in llguidance's words, or that
        costs too much; `LocalError` if it cannot be tried."""
        self.beginning(grammar)
        return Matcher(self, grammar)

    def beginning(self, grammar: str) -> LLMatcher:
        """A fresh copy of the compiled grammar, before the first token. Raises as `matcher`."""
        with self._lock:
            found = self._kept.get(grammar)
            if found is not None:
                self._kept.move_to_end(grammar)
                return found.deep_copy()
        self._trials.check(grammar)
        made = new_matcher(unforced(grammar), self.tokens.tokenizer)  # another thread may make it, too
        with self._lock:
            self._kept[grammar] = made
            while len(self._kept) > self._capacity:
                self._kept.popitem(last=False)
            return made.deep_copy()


class Matcher:
    """One text under one grammar. For one thread.

    Rules that make the mask a function of the path alone, beyond llguidance's own: behind an end token come
    only end tokens; where no token fits, because the vocabulary cannot write what must come or because the
    grammar has become too complex (`library.limits`), the text can only end.
    """

    def __init__(self, grammars: Grammars, grammar: str) -> None:
        self._grammars = grammars
        self._grammar = grammar
        self._tokens = grammars.tokens
        self._live: LLMatcher | None = None
        self._at = NO_TOKENS  # what `_live` has consumed
        self._ended: Path | None = None  # a path behind which end tokens may come, as it was found last

    @property
    def grammar(self) -> str:
        return self._grammar

    def allowed(self, path: Path) -> Mask | None:
        """bool [width]: tokens that may follow the generated tokens `path` int [G], at least one. None if the
        path itself breaks the grammar. Nobody writes into it."""
        path = np.asarray(path, np.int32)
        if ((path < 0) | (path >= self._tokens.width)).any():
            return None
        ended = np.isin(path, self._tokens.eos_ids)
        if not ended.any():
            return self._after(path)
        first = int(ended.argmax())
        if self._ended is None or not np.array_equal(self._ended, path[:first]):
            before = self._after(path[:first])
            if before is None or not before[path[first]]:
                return None
            self._ended = path[:first].copy()  # a text may hold many end tokens, each behind this path
        return self._tokens.ends if ended[first:].all() else None

    def _after(self, path: Path) -> Mask | None:
        """`allowed` of a path without end tokens."""
        live, num_missing = self._move(path)
        if num_missing > 1 or (num_missing and not live.is_error()):
            return None
        packed = b"" if live.is_error() else live.compute_bitmask()
        if live.is_error():
            self._live = None  # it would never leave this state
            return self._tokens.ends
        bits = np.frombuffer(packed, np.uint8)
        mask = np.unpackbits(bits, count=self._tokens.width, bitorder="little").view(np.bool_)
        return mask if mask.any() else self._tokens.ends

    def _move(self, path: Path) -> tuple[LLMatcher, int]:
        """The live matcher, moved along the path, and how many tokens of that it has not consumed: the first
        of them breaks the grammar or, if the matcher then has an error, was too much for it. One that cannot
        go back (some grammars count tokens) is made anew."""
        live, known = self._live, common_length(self._at, path)
        if live is not None and len(self._at) > known and not live.rollback(len(self._at) - known):
            live = None
        if live is None:
            live, known = self._grammars.beginning(self._grammar), 0
        missing, count = path[known:].tolist(), 0
        while count < len(missing):
            chunk = missing[count : count + MAX_CHUNK]
            taken = live.try_consume_tokens(chunk)
            count += taken
            if taken < len(chunk):
                break
        self._live, self._at = (None, NO_TOKENS) if live.is_error() else (live, path[: known + count].copy())
        return live, len(missing) - count


class Masks:
    """The matchers of many texts by their keys. For one thread."""

    def __init__(self, grammars: Grammars, capacity: int = MAX_MATCHERS) -> None:
        if capacity < 1:
            raise LocalError("masks of no text at all were asked for")
        self._grammars = grammars
        self._capacity = capacity
        self._matchers: OrderedDict[int, Matcher] = OrderedDict()

    def adopt(self, key: int, matcher: Matcher) -> None:
        """The text with this key is followed by a matcher that was moved already."""
        self._matchers.setdefault(key, matcher)

    def allowed(self, key: int, grammar: str, path: Path) -> Mask | None:
        """As `Matcher.allowed`, of the text with this key. Raises `UserError` for a grammar that is
        refused."""
        matcher = self._matchers.get(key)
        if matcher is None or matcher.grammar != grammar:
            matcher = self._matchers[key] = self._grammars.matcher(grammar)
        self._matchers.move_to_end(key)
        while len(self._matchers) > self._capacity:
            self._matchers.popitem(last=False)
        return matcher.allowed(path)


def common_length(one: Path, other: Path) -> int:
    """How many tokens two paths share from their beginning on."""
    shorter = min(len(one), len(other))
    differing = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differing[0]) if len(differing) else shorter
