"""Holds a target's grammars: checked in any thread when a session opens, masked in the engine's thread.

A thread reads the target's tokens once the verifier runs. A verifier without llguidance reads none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import IntArray
from common.errors import ForerunError, PeerError
from common.grammar import Grammars, Masks, Matcher, Tokens
from common.messages import Open

logger = logging.getLogger(__name__)

Mask = NDArray[np.bool_]

MaskOf = Callable[[int, str, IntArray], Mask | None]
"""The mask of a session's grammar after generated tokens int32 [G]; None where those break it."""


MAX_CHECKED = 64
"""Matchers of texts that were checked and have had no mask yet."""

READ_TIME = 2.0
"""Seconds of a processor to read a session's committed tokens. Usual grammars take microseconds a token."""


class TargetGrammars:
    """Holds the grammars of one target's sessions.

    Args: make, the target's tokens for grammars; it may take seconds and raise `UserError`.
    """

    def __init__(self, make: Callable[[], Tokens]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._grammars: Grammars | None = None
        self._masks: Masks | None = None
        self._checked = OrderedDict[tuple[str, bytes], Matcher]()
        self._times: dict[int, float] = {}

    def prepare(self) -> None:
        """Read the target's tokens, which takes a second or two for a large vocabulary. From any thread; a
        session that opens meanwhile waits. If this fails, the failure is logged, and each session with a
        grammar gets the reason."""
        try:
            self._made()
        except ForerunError as error:
            logger.warning("! no grammars: %s", error)

    def check(self, request: Open) -> None:
        """Raise `UserError` for a grammar that is refused or parsed too slowly and for a target that supports
        none. Raise `PeerError` for committed tokens that break it, which no verifier wrote. From any
        thread."""
        grammar, written = request.sampling.grammar, np.array(request.committed, np.int32)
        grammars = self._made()
        matcher = grammars.matcher(grammar)
        if matcher.allowed(written, READ_TIME) is None:
            raise PeerError("the committed tokens break the session's grammar, so they are not its text")
        with self._lock:
            self._checked[grammar, written.tobytes()] = matcher
        while len(self._checked) > MAX_CHECKED or grammars.are_too_large:
            if not self._forget_one():
                break

    def mask(self, session: int, grammar: str, generated: IntArray) -> Mask | None:
        """Return a `MaskOf`, for the engine's thread. Raises `UserError` for an unchecked grammar."""
        if self._masks is None:
            self._masks = Masks(self._made())
        began = time.monotonic()
        with self._lock:
            checked = self._checked.pop((grammar, generated.tobytes()), None) if self._checked else None
        if checked is not None:  # it has read the committed tokens already
            self._masks.adopt(session, checked)
        try:
            return self._masks.allowed(session, grammar, generated)
        finally:
            spent = time.monotonic() - began
            self._times[session] = self._times.get(session, 0.0) + spent

    def take_times(self) -> tuple[tuple[int, float], ...]:
        """Return the seconds of masks since the last call, by session. For the engine's thread."""
        times, self._times = self._times, {}
        return tuple(times.items())

    def _forget_one(self) -> bool:
        """Drop the text that was checked longest ago, or else the one whose mask was."""
        with self._lock:
            if len(self._checked) > 1:
                _, forgotten = self._checked.popitem(last=False)
                del forgotten
                return True
        return self._masks is not None and self._masks.forget_one()

    def _made(self) -> Grammars:
        with self._lock:
            if self._grammars is None:
                tokens = self._make()
                tokens.tokenizer  # noqa: B018 - made here, where others wait for it, and not twice
                self._grammars = Grammars(tokens)
                self._grammars.warm()
            return self._grammars
