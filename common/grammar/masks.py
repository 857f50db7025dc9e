"""Compute masks along a tree of tokens, with one matcher a text that moves from path to path."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError
from common.grammar.compile_trial import GrammarTrials
from common.grammar.strings import new_matcher, unforced
from common.grammar.tokens import Tokens

if TYPE_CHECKING:
    from llguidance import LLMatcher

Mask = NDArray[np.bool_]
Path = NDArray[np.int32]

MAX_GRAMMARS = 64
"""Compiled grammars kept for other texts; compiling one again takes milliseconds."""

MAX_BYTES = 512 * 2**20
"""Most bytes of all compiled grammars in use or kept, as measured by their trials."""

LEXER_BYTES = 5 * 2**20
"""Bytes by which a grammar's lexer may grow while texts are read (`strings.limits`)."""

MAX_MATCHERS = 256
"""Texts with a matcher; a forgotten text is read again from its beginning, at some microseconds a token."""

LEXER_ERROR = "lexer error"
"""In llguidance's words when a lexer would have too many states, or make too many for one mask. From then on
all copies take the lexer's missing states for the end of what fits. Other limits depend on the path alone."""

NO_TOKENS: Path = np.zeros(0, np.int32)
NO_TOKENS.flags.writeable = False


class Compiled:
    """Holds a compiled grammar before the first token. Copies share one lexer's states. Thread-safe.

    It is spoilt once a text has brought its lexer to too many states; then the masks of all copies are wrong.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self.is_spoilt = False
        self._matcher = matcher
        self._lock = threading.Lock()

    def copy(self) -> LLMatcher:
        with self._lock:
            return self._matcher.deep_copy()


class Grammars:
    """Caches the compiled grammars of one vocabulary, least recently used first to go. Thread-safe.

    An unknown grammar is tried in another process before it is compiled here.
    """

    def __init__(self, tokens: Tokens, capacity: int = MAX_GRAMMARS, max_bytes: int = MAX_BYTES) -> None:
        self.tokens = tokens
        self._capacity, self._max_bytes = capacity, max_bytes
        self._kept: OrderedDict[str, Compiled] = OrderedDict()
        self._num_bytes = 0  # of all that are in use or kept
        self._lock = threading.RLock()  # the end of a grammar in use may come while a thread has it
        self._trials = GrammarTrials(tokens)

    @property
    def are_too_large(self) -> bool:
        """Tell whether grammars exceed their memory, so that texts should be forgotten."""
        return self._num_bytes > self._max_bytes

    def warm(self) -> None:
        """Start the process for trials. Raises `LocalError` or `CapacityError` if it does not start."""
        self._trials.warm()

    def matcher(self, grammar: str) -> Matcher:
        """Return a matcher for one text. Raises `UserError` for a grammar that is refused or costs too much,
        `CapacityError` and `LocalError` if the trial cannot run (`GrammarTrials.check`)."""
        return Matcher(self, grammar, self.compiled(grammar))

    def compiled(self, grammar: str) -> Compiled:
        """Return a grammar's compiled form, from the cache if possible. Raises as `matcher`."""
        with self._lock:
            kept = self._kept.get(grammar)
            if kept is not None:
                self._kept.move_to_end(grammar)
                return kept
        made = self.anew(grammar)  # another thread may make it, too
        with self._lock:
            self._kept[grammar] = made
            while len(self._kept) > self._capacity or (self.are_too_large and len(self._kept) > 1):
                self._kept.popitem(last=False)
        return made

    def anew(self, grammar: str) -> Compiled:
        """Compile a grammar for one text alone. Raises as `matcher`."""
        size = self._trials.check(grammar) + LEXER_BYTES
        made = Compiled(new_matcher(unforced(grammar), self.tokens.tokenizer))
        with self._lock:
            self._num_bytes += size
        weakref.finalize(made, self._freed, size).atexit = False
        return made

    def forget(self, grammar: str, compiled: Compiled) -> None:
        """Remove a compiled grammar from the cache."""
        with self._lock:
            if self._kept.get(grammar) is compiled:
                del self._kept[grammar]

    def _freed(self, size: int) -> None:
        with self._lock:
            self._num_bytes -= size


class Matcher:
    """Follows one text under one grammar. For one thread.

    Three rules make the mask a function of the path alone. Only end tokens follow an end token. If no token
    fits, because the vocabulary lacks it or the grammar has become too complex (`strings.limits`), the text
    can only end. If the shared lexer has too many states, the grammar is compiled again for this path alone.
    """

    def __init__(self, grammars: Grammars, grammar: str, compiled: Compiled) -> None:
        self._grammars = grammars
        self._grammar = grammar
        self._compiled = compiled
        self._stop_at = math.inf  # seconds of this thread's processor time
        self._tokens = grammars.tokens
        self._live: LLMatcher | None = None
        self._at = NO_TOKENS  # what `_live` has consumed
        self._ended: Path | None = None  # a path behind which end tokens may come, of the latest look

    @property
    def grammar(self) -> str:
        return self._grammar

    def allowed(self, path: Path, patience: float = math.inf) -> Mask | None:
        """Return bool [width], read-only: the tokens, at least one, that may follow the generated tokens
        `path` int [G]. Return None if the path breaks the grammar. Raises `UserError` if reading the path
        takes more than `patience` seconds of a processor."""
        self._stop_at = time.thread_time() + patience
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
        """Return `allowed` of a path without end tokens."""
        reading = None if self._compiled.is_spoilt else self._read(path)
        if reading is None or self._compiled.is_spoilt:
            self._renew()
            reading = self._read(path)
        live, num_missing, packed = reading
        if live.is_error():
            self._live = None  # it would never leave this state
        if num_missing > 1 or (num_missing and not live.is_error()):
            return None
        if live.is_error():
            return self._tokens.ends
        bits = np.frombuffer(packed, np.uint8)
        mask = np.unpackbits(bits, count=self._tokens.width, bitorder="little").view(np.bool_)
        return mask if mask.any() else self._tokens.ends

    def _read(self, path: Path) -> tuple[LLMatcher, int, bytes]:
        """Return the result of `_move` and the mask's bits."""
        live, num_missing = self._move(path)
        packed = b"" if num_missing or live.is_error() else live.compute_bitmask()
        if live.is_error() and LEXER_ERROR in live.get_error():
            self._compiled.is_spoilt = True
        return live, num_missing, packed

    def _renew(self) -> None:
        """Continue with a new lexer that no other text shares."""
        self._grammars.forget(self._grammar, self._compiled)
        self._live, self._at = None, NO_TOKENS
        self._compiled = self._grammars.anew(self._grammar)

    def _move(self, path: Path) -> tuple[LLMatcher, int]:
        """Return the matcher, moved along the path, and the number of tokens that it did not consume. The
        first of these breaks the grammar, or exceeds a limit if the matcher has an error. A matcher that
        cannot roll back (some grammars count tokens) is copied again. Raises `UserError`, see `allowed`."""
        live, known = self._live, common_length(self._at, path)
        if live is not None and len(self._at) > known and not live.rollback(len(self._at) - known):
            live = None
        if live is None:
            live, known = self._compiled.copy(), 0
        self._live, self._at = None, NO_TOKENS
        missing, count = path[known:].tolist(), 0
        while count < len(missing):
            if time.thread_time() > self._stop_at:
                raise UserError(
                    f"the grammar takes too long to read the text's first {len(path)} tokens; make it simpler"
                )
            # One by one: if one of several fails, llguidance counts none.
            if not live.try_consume_tokens(missing[count : count + 1]):
                break
            count += 1
        if not live.is_error():
            self._live, self._at = live, path[: known + count].copy()
        return live, len(missing) - count


class Masks:
    """Holds the matchers of many texts by key. For one thread, except `forget_one`."""

    def __init__(self, grammars: Grammars, capacity: int = MAX_MATCHERS) -> None:
        self._grammars = grammars
        self._capacity = capacity
        self._matchers: OrderedDict[int, Matcher] = OrderedDict()
        self._lock = threading.Lock()

    def adopt(self, key: int, matcher: Matcher) -> None:
        """Use an existing matcher for the text with this key."""
        with self._lock:
            self._matchers.setdefault(key, matcher)

    def allowed(self, key: int, grammar: str, path: Path) -> Mask | None:
        """Return `Matcher.allowed` of the text with this key. Raises `UserError` for a refused grammar."""
        matcher = self._matchers.get(key)
        if matcher is None or matcher.grammar != grammar:
            matcher = self._grammars.matcher(grammar)
        with self._lock:
            self._matchers[key] = matcher
            self._matchers.move_to_end(key)
        while len(self._matchers) > self._capacity or self._grammars.are_too_large:
            if not self.forget_one():
                break
        return matcher.allowed(path)

    def forget_one(self) -> bool:
        """Forget the least recently used text, except the last one. Return whether there was any.
        Thread-safe."""
        with self._lock:
            if len(self._matchers) < 2:
                return False
            _, forgotten = self._matchers.popitem(last=False)
        del forgotten  # outside of the lock: much may end with it
        return True


def common_length(one: Path, other: Path) -> int:
    """Return the length of the longest common prefix of two paths."""
    shorter = min(len(one), len(other))
    differing = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differing[0]) if len(differing) else shorter
