"""Words of `benchmarks.one_machine`: a text to write, how far to draft, a target's steps counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from common.errors import UserError

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Job:
    """One text to write. `token_ids` are the prompt's, without begin or end tokens."""

    text: str
    token_ids: tuple[int, ...]
    max_tokens: int
    temperature: float  # 0 = greedy
    seed: int


class Rival(Protocol):
    """One way to write texts on this machine. Not thread-safe."""

    name: str
    variant: str  # its draft length; empty without drafts

    def write(self, job: Job) -> dict[str, Any]:
        """Write `max_tokens`, end tokens or not. The record has the keys of a rig's `done` event."""


@dataclass(frozen=True, slots=True)
class Lookahead:
    """How far a draft model goes before the target checks: at most `num_tokens`, and no further than a token
    that it gives less than `min_confidence`."""

    num_tokens: int
    min_confidence: float = 0.0

    def __post_init__(self) -> None:
        if not (1 <= self.num_tokens <= 256 and 0.0 <= self.min_confidence < 1.0):
            raise UserError(f"a draft length is {self}; it needs 1 to 256 tokens and a confidence in [0, 1)")

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `8` or `16@0.4`. Raises `UserError` for anything else."""
        length, _, confidence = text.partition("@")
        try:
            return cls(int(length), float(confidence or 0.0))
        except ValueError as error:
            raise UserError(
                f"a draft length is {text!r}; write 8, or 16@0.4 to stop below a confidence of 0.4"
            ) from error

    def __str__(self) -> str:
        return f"{self.num_tokens}@{self.min_confidence:g}" if self.min_confidence else f"{self.num_tokens}"


@dataclass(frozen=True, slots=True)
class Setting:
    """What the rivals run on, and how."""

    target: str  # Hugging Face folder
    draft: str  # GGUF
    target_gguf: str  # of the same weights; empty = written from the bundled target
    draft_folder: str  # Hugging Face folder of the same weights; empty = read from the bundled GGUF
    lookaheads: tuple[Lookahead, ...]
    floor_s: float  # least time of a target step
    threads: int  # of a model's step
    num_positions: int  # tokens that prompt, text and draft take at most

    @property
    def lengths(self) -> list[int]:
        """What prompt lookup tries, which has no confidence."""
        return sorted({lookahead.num_tokens for lookahead in self.lookaheads})


class TargetMeter:
    """Counts a target's steps; makes each last `floor_s` seconds, as `forerun verify --step-floor` does."""

    def __init__(
        self, floor_s: float, clock: Clock = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._floor_s = floor_s
        self._clock = clock
        self._sleep = sleep
        self._end_at = 0.0
        self.steps = 0
        self.rows = 0  # evaluated for a choice: in the step that reads the prompt, one

    def reset(self) -> None:
        """Count from zero."""
        self.steps = self.rows = 0

    def begin(self) -> None:
        """A step begins."""
        self._end_at = self._clock() + self._floor_s

    def end(self, rows: int) -> None:
        """It was computed; wait for the rest of its time."""
        self.steps += 1
        self.rows += rows
        rest = self._end_at - self._clock()
        if rest > 0.0:
            self._sleep(rest)

    @contextmanager
    def step(self, rows: int) -> Iterator[None]:
        """Around one step."""
        self.begin()
        yield
        self.end(rows)


@dataclass(slots=True)
class Arrivals:
    """Tokens with their times of arrival, since its making."""

    clock: Clock = time.perf_counter
    tokens: list[int] = field(default_factory=list)
    times_ms: list[float] = field(default_factory=list)
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def add(self, tokens: list[int]) -> None:
        """These came now."""
        self.tokens += tokens
        self.times_ms += [(self.clock() - self._began) * 1e3] * len(tokens)

    def record(self, meter: TargetMeter, drafted: int) -> dict[str, Any]:
        """As a rig's `done` event has it, without a link. A step's rows are one tip and what was proposed."""
        stats = {
            "target_steps": meter.steps,
            "evaluated": meter.rows,
            "proposed": meter.rows - meter.steps,
            "drafted": drafted,
        }
        return {
            "tokens": self.tokens,
            "arrivals_ms": self.times_ms,
            "stats": stats,
            "link_bytes_up": 0,
            "link_bytes_down": 0,
        }
