"""Decides when a session reconnects after a broken stream: after growing pauses, different on each device."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from hashlib import blake2b

from common.errors import CapacityError, Code, ForerunError, UnavailableError
from common.noise import MASK_64, noise_output, noise_stream
from edge_client.core.effects import SessionConfig

GROWTH = 3.0
"""The greatest factor between a pause and the next: "decorrelated jitter" (M. Brooker, "Exponential Backoff
And Jitter", AWS Architecture Blog 2015)."""

SPREAD = 0.25
"""Random share added to a verifier's own advice, because all refused edges received the same advice."""

LONGEST_ADVICE = 60.0
"""The longest advice in seconds that an edge obeys; after that it tries again all the same."""

OWN_STREAM = 0x5D4A8C3B9E172F61
"""Combined with the seed, so that these numbers differ from the noise. Arbitrary."""

Luck = Callable[[int], float]
"""Returns the n-th number in [0, 1), always the same for the same n."""


def own_luck(seed: int, session_id: str) -> Luck:
    """Return a session's own numbers: they differ between ids even with the same text and seed."""
    name = int.from_bytes(blake2b(session_id.encode(), digest_size=8).digest(), "big")
    stream = noise_stream((seed ^ name ^ OWN_STREAM) & MASK_64)
    return lambda number: (noise_output(stream, number) >> 11) * 2.0**-53


class Reconnects:
    """Counts attempts and holds the second `at` which the next one is due; None if none is planned."""

    def __init__(self, config: SessionConfig, luck: Luck | None = None) -> None:
        self.at: float | None = None
        self.attempts = 0  # in a row that brought no text
        self.last_error: ForerunError | None = None
        self._config = config
        self._luck = luck or own_luck(config.sampling.seed, config.session_id)
        self._pause = config.first_backoff
        self._drawn = 0

    def can_help(self, error: ForerunError) -> bool:
        """Return whether another attempt may succeed after `error`."""
        most = self._config.max_attempts
        # A deadline passes whoever is at fault: older verifiers blame the edge for a late Open (rule 14).
        passing = isinstance(error, UnavailableError | CapacityError) or error.code is Code.DEADLINE_EXCEEDED
        return passing and (most is None or self.attempts < most)

    def lost(self, error: ForerunError, now: float, elsewhere: bool = False) -> None:
        """Plan a reconnect after `error`. Without a pause if another verifier is there `elsewhere`."""
        self.last_error = error
        self.attempts += 1
        self.at = now if elsewhere else now + max(self._next_pause(), self._advice(error))

    def leave(self, error: ForerunError, now: float) -> None:
        """Plan a reconnect after a verifier's Drain: at once, unless the attempt before brought no text. Else
        verifiers that drain every session would cause a fast loop."""
        self.lost(error, now, elsewhere=not self.attempts)

    def hurry(self, now: float) -> bool:
        """End the pause, because a verifier is there; return whether there was one."""
        waits = self.at is not None and self.at > now
        if waits:
            self.at = now
        return waits

    def began(self) -> None:
        """Note that a new stream is being opened."""
        self.at = None

    def text_came(self) -> None:
        """Reset the attempts. Only text is progress: a verifier may open and drop for ever."""
        self.attempts = 0
        self._pause = self._config.first_backoff

    def given_up(self, error: ForerunError) -> ForerunError:
        """Return the last stream's error, with the number of attempts."""
        if not self.attempts or not isinstance(error, UnavailableError | CapacityError):
            return error
        tried = f"{self.attempts} reconnects in a row brought no text; the last failed because {error}"
        return same_kind(error, tried)

    def _next_pause(self) -> float:
        if self.attempts == 1:
            self._pause = self._config.first_backoff
        least = self._config.first_backoff
        drawn = least + self._chance() * max(0.0, GROWTH * self._pause - least)
        self._pause = min(self._config.max_backoff, drawn)
        return self._pause

    def _advice(self, error: ForerunError) -> float:
        """Return the seconds that the verifier advised, plus a random share."""
        if not isinstance(error, CapacityError) or error.retry_after is None:
            return 0.0
        return min(error.retry_after, LONGEST_ADVICE) * (1.0 + SPREAD * self._chance())

    def _chance(self) -> float:
        self._drawn += 1
        return self._luck(self._drawn)


def same_kind(error: ForerunError, words: str) -> ForerunError:
    """Return an error of the same kind with other words."""
    if isinstance(error, CapacityError):
        return CapacityError(words, error.code, error.retry_after)
    return type(error)(words, error.code)


SHORTEST, LONGEST = 0.25, 2.5
"""Seconds of silence until the probe; with the longest patience a frozen peer is found within 4.5 s."""

USUAL = 4.0
"""Multiple of the 95th percentile of gaps. Silence is no proof of a loss, only a reason to probe."""

FEWEST = 8
"""Gaps to observe before a usual gap is known."""

LEAST_PATIENCE, MOST_PATIENCE = 1.0, 2.0
"""Seconds for the answer; within them a sleeping mobile link has woken up."""

ROUND_TRIPS = 8.0
"""Round trips of patience: a lost packet costs TCP two or three."""


class Silence:
    """Measures the gaps between messages of streams that owed text, and says `at` which second to probe.

    A busy verifier is silent, too. So the driver sends a probe that the verifier's engine has no part in, and
    only a probe without an answer is a loss. Driven by `listen` whenever text may be due, `heard` for each
    message, `asked` and `answered`.
    """

    def __init__(self, asks: bool = True) -> None:
        """With `asks` False, measure nothing and never probe."""
        self._asks = asks
        self.at: float | None = None
        self.asked_at: float | None = None  # when the pending probe left
        self._since: float | None = None  # when text became due, or last came; None: no text is due
        self._gaps = deque[float](maxlen=32)
        self._usual = LONGEST
        self._wait = LONGEST
        self._counted = 0

    def listen(self, due: bool, now: float) -> None:
        """Start or stop the wait: `due` if the stream owes text."""
        if due and self._since is None:
            self._begin(now, self._usual)
        elif not due and self._since is not None:
            self.at = self._since = self.asked_at = None

    def opening(self, now: float, wait: float = LONGEST) -> None:
        """Start the wait of a new stream. The time to open and read the prompt measures no gap."""
        self._begin(now, min(LONGEST, wait))

    def opened(self, now: float) -> None:
        """Restart the wait, because the verifier opened the stream; it reads the prompt next."""
        self._begin(now, LONGEST)

    def heard(self, now: float, usual: bool) -> None:
        """Take a message. `usual`: the message before it was text, too."""
        if usual and self._since is not None:
            self._learn(now - self._since)
        self._begin(now, self._usual)

    def asked(self, now: float) -> None:
        """Note that the probe leaves."""
        self.asked_at, self.at = now, None

    def answered(self, now: float) -> None:
        """Double the wait: the verifier is there, but slow."""
        if self.asked_at is not None and self._since is not None:
            self.asked_at = None
            self._wait = min(LONGEST, 2.0 * self._wait)
            self.at = now + self._wait

    def quiet_for(self, now: float) -> float:
        """Return the seconds since the last message."""
        return 0.0 if self._since is None else now - self._since

    def _begin(self, now: float, wait: float) -> None:
        if self._asks:
            self._since, self.asked_at, self._wait = now, None, wait
            self.at = now + wait

    def _learn(self, gap: float) -> None:
        self._gaps.append(gap)
        self._counted += 1
        if self._counted % FEWEST == 0:  # sorting at every message would cost too much
            ordered = sorted(self._gaps)
            self._usual = min(LONGEST, max(SHORTEST, USUAL * ordered[math.ceil(0.95 * len(ordered)) - 1]))


def patience_for(smoothed_rtt: float) -> float:
    """Return the seconds to wait for an answer over a link with this round trip time."""
    return min(MOST_PATIENCE, max(LEAST_PATIENCE, ROUND_TRIPS * smoothed_rtt))
