"""Plans when sessions begin and how long each is: drawn at random, or as a service recorded its requests."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import UserError
from simulator.documents import cell_number, csv_reader
from simulator.events import Draws, DrawStream

MAX_SESSIONS = 5000
"""Of one world. The verifier keeps slots for all of them, as none may find it full."""

LENGTHS = ("context_tokens", "generated_tokens")


@dataclass(frozen=True, slots=True)
class Arrival:
    """Describes one session: its begin in seconds of the world, and the lengths of prompt and text."""

    start: float
    prompt_tokens: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Poisson:
    """Begins sessions independently: gaps are drawn from an exponential distribution."""

    rate: float  # sessions per second
    sessions: int

    def __post_init__(self) -> None:
        if not (self.rate > 0 and math.isfinite(self.rate)):
            raise UserError(f"arrivals rate is {self.rate:g} per second; it must be finite and above 0")
        if not 1 <= self.sessions <= MAX_SESSIONS:
            raise UserError(f"arrivals sessions is {self.sessions}; it must lie in 1 to {MAX_SESSIONS}")

    @property
    def num_sessions(self) -> int:
        return self.sessions

    def plan(self, seed: int, prompt_tokens: int, tokens: int) -> tuple[Arrival, ...]:
        """Draw the sessions in order of time; the first comes after a gap, too."""
        draws, now, arrivals = Draws(seed), 0.0, list[Arrival]()
        for number in range(self.sessions):
            now -= math.log1p(-draws.uniform(DrawStream.ARRIVAL, number)) / self.rate
            arrivals.append(Arrival(now, prompt_tokens, tokens))
        return tuple(arrivals)


@dataclass(frozen=True, slots=True)
class Window:
    """Selects the requests that a world takes from a recording. Times are the recording's own, in seconds."""

    start: float = 0.0  # becomes the world's beginning
    duration: float | None = None  # None = to its end
    max_sessions: int | None = None  # the first so many; None = all
    time_scale: float = 1.0  # 0.5 = requests come twice as fast; their lengths stay
    max_prompt_tokens: int = 16384  # longer prompts are cut to it
    max_tokens: int = 2048  # and longer texts to this

    def __post_init__(self) -> None:
        if not (self.start >= 0 and math.isfinite(self.start)):
            raise UserError(f"arrivals start_s is {self.start:g}; it must be finite and 0 or more")
        if self.duration is not None and not (self.duration > 0 and math.isfinite(self.duration)):
            raise UserError(f"arrivals duration_s is {self.duration:g}; it must be finite and above 0")
        if not (self.time_scale > 0 and math.isfinite(self.time_scale)):
            raise UserError(f"arrivals time_scale is {self.time_scale:g}; it must be finite and above 0")
        if self.max_sessions is not None and not 1 <= self.max_sessions <= MAX_SESSIONS:
            raise UserError(
                f"arrivals max_sessions is {self.max_sessions}; it must lie in 1 to {MAX_SESSIONS}"
            )
        for name in ("max_prompt_tokens", "max_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"arrivals {name} is {getattr(self, name)}; it must be at least 1")

    def holds(self, time: float) -> bool:
        """Return whether the window takes a request at `time`; its end is outside."""
        return time >= self.start and (self.duration is None or time < self.start + self.duration)


@dataclass(frozen=True, slots=True)
class ArrivingRequest:
    """Holds one row of a recording. A length is None if the file has no column for it."""

    time: float  # seconds
    prompt_tokens: int | None
    tokens: int | None


@dataclass(frozen=True, slots=True, eq=False)
class RecordedArrivals:
    """Replays a recording's requests at their times. All seeds of a world have the same requests."""

    name: str
    requests: tuple[ArrivingRequest, ...]  # those within the window, in order of time
    window: Window = field(default_factory=Window)

    @property
    def num_sessions(self) -> int:
        return len(self.requests)

    def plan(self, seed: int, prompt_tokens: int, tokens: int) -> tuple[Arrival, ...]:
        """Return the sessions in order of time. The given lengths replace those that were not recorded."""
        window = self.window
        return tuple(
            Arrival(
                (request.time - window.start) * window.time_scale,
                min(request.prompt_tokens or prompt_tokens, window.max_prompt_tokens),
                min(request.tokens or tokens, window.max_tokens),
            )
            for request in self.requests
        )


Arrivals = Poisson | RecordedArrivals


def read_arrivals(path: Path, window: Window) -> RecordedArrivals:
    """Read a CSV with a header and at least `time_s`; `context_tokens` and `generated_tokens` are the
    lengths of prompt and text, other columns are ignored.

    Raises `UserError` that names the line, or reports that the window has no request or too many.
    """
    with csv_reader("the arrivals", path, ("time_s",), verb="are") as reader:
        requests = _requests(path, reader)
    chosen = [request for request in requests if window.holds(request.time)]
    if not requests:
        raise UserError(f"the arrivals {path} have no request")
    if not chosen:
        end = "on" if window.duration is None else f"to {window.start + window.duration:g} s"
        raise UserError(
            f"the arrivals {path} have no request from {window.start:g} s {end}; the last is at "
            f"{requests[-1].time:g} s"
        )
    if window.max_sessions is None and len(chosen) > MAX_SESSIONS:
        raise UserError(
            f"the arrivals {path} have {len(chosen)} requests where {MAX_SESSIONS} is the most; give "
            "duration_s or max_sessions"
        )
    return RecordedArrivals(path.name, tuple(chosen[: window.max_sessions]), window)


def _requests(path: Path, reader: csv.DictReader[str]) -> list[ArrivingRequest]:
    """Return all rows, checked and in order."""
    columns = reader.fieldnames or []
    requests, before = list[ArrivingRequest](), 0.0
    for row in reader:
        where = f"the arrivals {path}, line {reader.line_num}"
        now = cell_number(where, row, "time_s")
        if now < before:
            raise UserError(
                f"{where}: time_s falls from {before:g} to {now:g}; rows must be in order of time"
            )
        before = now
        lengths = [_count(where, row, name) if name in columns else None for name in LENGTHS]
        requests.append(ArrivingRequest(now, *lengths))
    return requests


def _count(where: str, row: Mapping[str, str | None], column: str) -> int:
    count = cell_number(where, row, column)
    if count < 1 or count != int(count):
        raise UserError(f"{where}: {column} is {row[column]!r}; a whole number of 1 or more was expected")
    return int(count)
