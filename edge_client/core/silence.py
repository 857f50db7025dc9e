"""When a stream that owes text has been silent for long enough to ask whether anybody is there."""

from __future__ import annotations

import math
from collections import deque

SHORTEST, LONGEST = 0.25, 2.5
"""Seconds of silence until the question, however fast or slow the text came before. With the longest time for
an answer a peer that froze is found within 4.5 s."""

USUAL = 4.0
"""Times what all but one of twenty gaps take. Silence is no evidence of a loss, only a reason to ask."""

FEWEST = 8
"""Gaps before which nothing is usual."""

LEAST_PATIENCE, MOST_PATIENCE = 1.0, 2.0
"""Seconds for the answer; within them a mobile link that was asleep has woken up."""

ROUND_TRIPS = 8.0
"""Of patience: a lost packet costs TCP two or three."""


class Silence:
    """Measures the gaps between messages of streams that owed text, and says `at` which second to ask.

    A verifier that is busy is silent, too: it reads prompts, it has many sessions. So nothing is given up for
    being slow: after `at` the driver asks the verifier something that its engine has no part in, and only if
    that stays without an answer the stream counts as lost. Driven by `listen` whenever it may have changed
    whether text is due, `heard` for each message, `asked` and `answered` around a question.
    """

    def __init__(self) -> None:
        self.at: float | None = None
        self.asked_at: float | None = None  # the question that is under way
        self._since: float | None = None  # when text was due, or last came; None: none is due
        self._gaps = deque[float](maxlen=32)
        self._usual = LONGEST
        self._wait = LONGEST
        self._counted = 0

    def listen(self, due: bool, now: float) -> None:
        """Whether the stream owes text."""
        if due and self._since is None:
            self._begin(now, self._usual)
        elif not due and self._since is not None:
            self.at = self._since = self.asked_at = None

    def opening(self, now: float, wait: float = LONGEST) -> None:
        """A stream begins. How long it takes to be let in, and to read the prompt, tells nothing."""
        self._begin(now, min(LONGEST, wait))

    def opened(self, now: float) -> None:
        """It was let in; the prompt comes next."""
        self._begin(now, LONGEST)

    def heard(self, now: float, usual: bool) -> None:
        """A message came. `usual`: the one before it was text, too."""
        if usual and self._since is not None:
            self._learn(now - self._since)
        self._begin(now, self._usual)

    def asked(self, now: float) -> None:
        """The question leaves."""
        self.asked_at, self.at = now, None

    def answered(self, now: float) -> None:
        """The verifier is there, and slow: the next question may wait longer."""
        if self.asked_at is not None and self._since is not None:
            self.asked_at = None
            self._wait = min(LONGEST, 2.0 * self._wait)
            self.at = now + self._wait

    def quiet_for(self, now: float) -> float:
        """Seconds since anything came."""
        return 0.0 if self._since is None else now - self._since

    def _begin(self, now: float, wait: float) -> None:
        self._since, self.asked_at, self._wait = now, None, wait
        self.at = now + wait

    def _learn(self, gap: float) -> None:
        self._gaps.append(gap)
        self._counted += 1
        if self._counted % FEWEST == 0:  # sorted for every message it would cost more than it tells
            ordered = sorted(self._gaps)
            self._usual = min(LONGEST, max(SHORTEST, USUAL * ordered[math.ceil(0.95 * len(ordered)) - 1]))


def patience_for(smoothed_rtt: float) -> float:
    """Seconds that an answer may take over a link of that round trip time."""
    return min(MOST_PATIENCE, max(LEAST_PATIENCE, ROUND_TRIPS * smoothed_rtt))
