"""How long a step waits for nodes that a session's edge has announced.

A commit that the edge did not foresee leaves the tree without its nodes. It tells how long its next ones take
from there (`Wait`). If they are close, a step that waits for them brings more than one that begins without.
"""

from __future__ import annotations

from collections import deque

from common.messages import Wait

MOST_VAIN = 2
"""Waits in a row that brought no node, after which there are none until nodes come again."""

MOST_UNSEEN = 256
"""Commits that the edge has not seen, of which the time is kept."""


class Awaited:
    """Knows when one session's next nodes are due. Times in seconds."""

    def __init__(self) -> None:
        self.is_pending = False  # whether the step after the next one may have to
        self._due = self._most = 0.0
        self._unseen = deque[tuple[int, float]](maxlen=MOST_UNSEEN)  # commits: the tip's position, and when
        self._since: float | None = None  # the commit that the awaited nodes answer; None: none are awaited
        self._waited = False  # since the last step
        self._vain = 0

    @property
    def is_told(self) -> bool:
        """Whether steps may have to wait."""
        return self._most > 0.0

    def told(self, wait: Wait) -> None:
        """Take what the edge says."""
        self._due, self._most = wait.due_us * 1e-6, wait.most_us * 1e-6
        if not self.is_told:
            self._since, self.is_pending = None, False

    def committed(self, position: int, had_nodes: bool, has_nodes: bool, now: float) -> None:
        """Note that a step moved the tip to `position`; whether it evaluated nodes of the edge, and whether
        some are left."""
        self._unseen.append((position, now))
        if self._waited and not (had_nodes or has_nodes):
            self._vain += 1
        self._waited = False
        if has_nodes:
            self._since = None
        elif had_nodes or self._since is None:
            self._since = now
        self.is_pending = self._next_due is not None and now < self._next_due

    def arrived(self, seen: int, has_nodes: bool) -> None:
        """Note a Propose of an edge that has seen the text up to position `seen`. If its nodes are dead, the
        next ones answer the first commit that it had not seen."""
        while self._unseen and self._unseen[0][0] <= seen:
            self._unseen.popleft()
        if has_nodes:
            self._vain = 0
        elif self._since is not None:
            self._since = self._unseen[0][1] if self._unseen else None

    def until(self, now: float) -> float | None:
        """Return the time until which the next step waits; None if it need not."""
        due = self._next_due
        if due is None or not now < due <= now + self._most:
            return None
        self._waited = True
        return due

    def is_due_by(self, time: float) -> bool:
        """Return whether the next nodes should have come by then. False if that is not known."""
        return self._next_due is not None and self._next_due <= time

    @property
    def _next_due(self) -> float | None:
        if self._since is None or self._vain >= MOST_VAIN:
            return None
        return self._since + self._due
