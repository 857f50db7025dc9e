"""One timer that an event loop runs, sharper than the loop's own where the system allows.

asyncio on Linux waits in epoll, whose timeouts CPython rounds up to whole milliseconds, so `loop.call_at` is
late by half a millisecond on average. A timerfd is a file that becomes readable at a set nanosecond.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from typing import Protocol

from link.errors import LinkStateError

_CLOCK_MONOTONIC = 1  # <linux/time.h>; the clock of `loop.time()`
_TFD_TIMER_ABSTIME = 1  # <linux/timerfd.h>


class Alarm(Protocol):
    """Calls back once at a set time. One time at most is set."""

    def set(self, at: float | None) -> None:
        """Ring at `at` (seconds of `loop.time()`) and not at the time set before; `None`: do not ring."""

    def close(self) -> None:
        """Never ring again, and free what the alarm holds. May be called twice."""


def make_alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Alarm:
    """The sharpest alarm that this system has."""
    if sys.platform == "linux" and ctypes.sizeof(ctypes.c_long) == 8:  # the structures below assume 64 bits
        with contextlib.suppress(OSError, AttributeError, NotImplementedError):
            return TimerFdAlarm(loop, ring)
    return LoopAlarm(loop, ring)


class LoopAlarm:
    """An alarm made of `loop.call_at`, which every system has."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float | None) -> None:
        """See `Alarm`."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None if at is None else self._loop.call_at(at, self._ring)

    def close(self) -> None:
        """See `Alarm`."""
        self.set(None)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class TimerFdAlarm:
    """An alarm made of a Linux timerfd. Python has `os.timerfd_create` from 3.13 on only, hence ctypes.

    Raises `OSError` when there are no file descriptors left, `AttributeError` where libc has no timerfd.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._loop = loop
        self._ring = ring
        self._at: float | None = None
        self._fd = int(libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        loop.add_reader(self._fd, self._on_readable)

    def set(self, at: float | None) -> None:
        """See `Alarm`. Raises `LinkStateError` after `close`."""
        if self._fd < 0:
            raise LinkStateError("an alarm was set after it was closed; this is a fault of the link itself")
        if at == self._at:
            return
        self._at = at
        nanoseconds = 0  # disarms
        if at is not None:
            nanoseconds = max(1, int(at * 1e9) + 1)  # + 1: never early
        value = _Timespec(*divmod(nanoseconds, 1_000_000_000))
        self._settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(_Itimerspec(_Timespec(0, 0), value)), None)

    def close(self) -> None:
        """See `Alarm`."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _on_readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew between the loop's poll and this call
            return
        self._at = None
        self._ring()
