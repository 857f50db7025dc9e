"""The watchdog speaks once, and only after patience without food."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cloud_verifier.engine.watchdog import EXIT_CODE, Watchdog

LONG = 3600.0


def test_it_calls_when_nothing_came() -> None:
    heard, words = threading.Event(), []

    def on_late(text: str) -> None:
        words.append(text)
        heard.set()

    watchdog = Watchdog(0.01, "too late", on_late)
    watchdog.feed()
    assert heard.wait(30)
    watchdog.stop()
    assert words == ["too late"]


@pytest.mark.parametrize("at_rest", [True, False])
def test_it_is_silent_at_rest_and_before_its_time(at_rest: bool) -> None:
    def on_late(text: str) -> None:
        raise AssertionError(text)

    watchdog = Watchdog(0.01 if at_rest else LONG, "too late", on_late)
    if not at_rest:
        watchdog.feed()
        watchdog.rest()
        watchdog.feed()
    watchdog.stop()
    assert not watchdog._thread.is_alive()


def test_a_process_that_is_stuck_ends_with_the_words() -> None:
    stuck = """
import threading
from cloud_verifier.engine.watchdog import Watchdog
Watchdog(0.05, "nobody answers").feed()
threading.Event().wait()
"""
    run = subprocess.run(
        [sys.executable, "-c", stuck],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == EXIT_CODE
    assert run.stderr == "forerun: nobody answers\n"
