"""A clock that stands still until a test moves it."""

from dataclasses import dataclass


@dataclass
class Clock:
    """Returns `now`, in seconds, when it is called. A sleep moves it."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-5)
