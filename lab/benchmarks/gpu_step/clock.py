"""Measures time on a device, and the run's remaining time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cloud_verifier.engine.graphs import Capture, CudaCapture


@dataclass(frozen=True, slots=True)
class Times:
    """Holds seconds of repeated runs."""

    median: float
    least: float
    most: float

    def as_ms(self) -> dict[str, float]:
        names = ("median", "least", "most")
        return {f"{name}_ms": round(getattr(self, name) * 1e3, 4) for name in names}


def times_of(run: Callable[[], object], repeats: int, device: torch.device, warm_up: int) -> Times:
    """Return wall-clock times of `run`, each begun and ended with an idle device."""
    seconds = []
    for _ in range(warm_up + repeats):
        finish(device)
        begun_at = time.perf_counter()
        run()
        finish(device)
        seconds.append(time.perf_counter() - begun_at)
    return _times(seconds[warm_up:])


def device_times_of(run: Callable[[], object], repeats: int, device: torch.device, inner: int = 10) -> Times:
    """Time `run` on the device alone: `inner` runs between two events, so that the host is ahead."""
    if device.type != "cuda":
        return times_of(run, repeats, device, warm_up=0)
    seconds = []
    for _ in range(2 + repeats):
        begin, end = _event(), _event()
        begin.record()
        for _ in range(inner):
            run()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3 / inner)
    return _times(seconds[2:])


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _event() -> Any:
    event: Callable[..., Any] = torch.cuda.Event
    return event(enable_timing=True)


def _times(seconds: list[float]) -> Times:
    return Times(statistics.median(seconds), min(seconds), max(seconds))


@dataclass
class TimedCapture:
    """Times replays of CUDA graphs on the device, or on a CPU calls of the body. A `Capture`."""

    device: torch.device
    replays: list[tuple[Any, Any]] = field(default_factory=list)  # events around each

    def __post_init__(self) -> None:
        self._capture: Capture = CudaCapture() if self.device.type == "cuda" else _CallAgain()

    def rehearsal(self) -> AbstractContextManager[Any]:
        return self._capture.rehearsal()

    def __call__(self, body: Callable[[], Tensor]) -> Callable[[], Tensor]:
        repeat = self._capture(body)
        if self.device.type != "cuda":
            return repeat

        def replay() -> Tensor:
            begin, end = _event(), _event()
            begin.record()
            result = repeat()
            end.record()
            self.replays.append((begin, end))
            return result

        return replay

    def take(self) -> Times | None:
        """Return times of the replays since the last call, or None without any. The device must be idle."""
        seconds = [begin.elapsed_time(end) / 1e3 for begin, end in self.replays]
        self.replays.clear()
        return _times(seconds) if seconds else None


class _CallAgain:
    """A `Capture` that records nothing."""

    def rehearsal(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def __call__(self, body: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return body


class TimeBudget:
    """Holds the seconds of the whole run; parts that do not fit are left out."""

    def __init__(self, seconds: float) -> None:
        self._until = time.perf_counter() + seconds

    @property
    def left(self) -> float:
        return self._until - time.perf_counter()
