"""Ends a process that waits in a collective which nobody will complete.

A collective cannot be cancelled from Python: a rank whose peer hangs, or whose peer's machine has lost its
power, waits in native code. What is left is to end the process and let whoever supervises it start anew.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

EXIT_CODE = 1


def end_process(words: str) -> None:
    """Say why and go, without clean-up: the main thread is stuck."""
    print(f"forerun: {words}", file=sys.stderr, flush=True)  # noqa: T201 - the last words
    os._exit(EXIT_CODE)


class Watchdog:
    """Calls `on_late` if `feed` is not called again within `patience` seconds; `rest` makes it wait no more.

    A thread of its own looks after the deadline; `on_late` runs there, once.
    """

    def __init__(self, patience: float, words: str, on_late: Callable[[str], None] = end_process) -> None:
        self._patience = patience
        self._words = words
        self._on_late = on_late
        self._changed = threading.Condition()
        self._due_at: float | None = None  # monotonic seconds; None = at rest
        self._stopped = False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def feed(self) -> None:
        """All is well; the next call is due within `patience` seconds."""
        self._set(time.monotonic() + self._patience)

    def rest(self) -> None:
        """Nothing is awaited."""
        self._set(None)

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _set(self, due_at: float | None) -> None:
        with self._changed:
            self._due_at = due_at
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._stopped:
                left = None if self._due_at is None else self._due_at - time.monotonic()
                if left is not None and left <= 0.0:
                    break
                self._changed.wait(left)
        if not self._stopped:
            self._on_late(self._words)
