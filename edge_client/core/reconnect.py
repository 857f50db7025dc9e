"""When a session whose stream broke tries again: after pauses that grow and that no two devices share."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from common.errors import CapacityError, ForerunError, UnavailableError
from common.noise import MASK_64, noise_output, noise_stream
from edge_client.core.config import SessionConfig

GROWTH = 3.0
"""A pause is drawn from the smallest up to so many times the one before it: "decorrelated jitter" (M.
Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog 2015), which spreads a crowd that was cut off
at once."""

SPREAD = 0.25
"""Share of a verifier's own advice that is added by chance: all that it refused at once heard the same."""

LONGEST_ADVICE = 60.0
"""Seconds; a verifier that tells an edge to stay away for longer is asked again all the same."""

OWN_STREAM = 0x5D4A8C3B9E172F61
"""Combined with the seed, so that no number here is one of the noise's. Arbitrary."""

Luck = Callable[[int], float]
"""The n-th number in [0, 1), the same however often it is asked for."""


def own_luck(seed: int, session_id: str) -> Luck:
    """Of a session: devices that ask for the same text with the same seed pause differently if their ids
    do."""
    name = int.from_bytes(blake2b(session_id.encode(), digest_size=8).digest(), "big")
    stream = noise_stream((seed ^ name ^ OWN_STREAM) & MASK_64)
    return lambda number: (noise_output(stream, number) >> 11) * 2.0**-53


class Reconnects:
    """Counts attempts, and says `at` which second the next one is due; None: none is.

    Driven by `lost` for each stream that ended badly, `began` when the next is opened, and `text_came`.
    """

    def __init__(self, config: SessionConfig, luck: Luck | None = None) -> None:
        self.at: float | None = None
        self.attempts = 0  # in a row that brought no text
        self.last_error: ForerunError | None = None
        self._config = config
        self._luck = luck or own_luck(config.sampling.seed, config.session_id)
        self._pause = config.first_backoff
        self._drawn = 0

    def can_help(self, error: ForerunError) -> bool:
        """Whether another attempt may bring what this one did not."""
        most = self._config.max_attempts
        passing = isinstance(error, UnavailableError | CapacityError)
        return passing and (most is None or self.attempts < most)

    def lost(self, error: ForerunError, now: float, elsewhere: bool = False) -> None:
        """A stream ended with `error`. Without a pause if another verifier is there `elsewhere`."""
        self.last_error = error
        self.attempts += 1
        self.at = now if elsewhere else now + max(self._next_pause(), self._advice(error))

    def leave(self, error: ForerunError, now: float) -> None:
        """A verifier said that it goes. At once, unless the attempt before brought no text either: one that
        takes sessions and sends them away would be asked as fast as it answers."""
        self.lost(error, now, elsewhere=not self.attempts)

    def hurry(self, now: float) -> bool:
        """A verifier is there that did not refuse this session: whether that shortens the wait."""
        waits = self.at is not None and self.at > now
        if waits:
            self.at = now
        return waits

    def began(self) -> None:
        """A new stream is being opened."""
        self.at = None

    def text_came(self) -> None:
        """Only text is progress: a verifier that opens and drops would be tried for ever."""
        self.attempts = 0
        self._pause = self._config.first_backoff

    def given_up(self, error: ForerunError) -> ForerunError:
        """What ended the last stream, with how often it was tried."""
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
        """Seconds that the verifier asked to stay away for, and a little more."""
        if not isinstance(error, CapacityError) or error.retry_after is None:
            return 0.0
        return min(error.retry_after, LONGEST_ADVICE) * (1.0 + SPREAD * self._chance())

    def _chance(self) -> float:
        self._drawn += 1
        return self._luck(self._drawn)


def same_kind(error: ForerunError, words: str) -> ForerunError:
    """The same error in other words."""
    if isinstance(error, CapacityError):
        return CapacityError(words, error.code, error.retry_after)
    return type(error)(words, error.code)
