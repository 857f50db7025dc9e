"""`forerun` with a wall clock that jumps a day ahead on SIGUSR1, as on a board whose clock is set late.

Only `time.time` is moved, and before anything of the daemon is imported. The machine's own clock stays.
"""

from __future__ import annotations

import signal
import sys
import time

DAY = 86_400.0

_time, _ahead = time.time, 0.0


def _stepped() -> float:
    return _time() + _ahead


def _jump(*_: object) -> None:
    global _ahead  # noqa: PLW0603 - a clock is one for a process
    _ahead += DAY


if __name__ == "__main__":
    time.time = _stepped
    signal.signal(signal.SIGUSR1, _jump)
    from forerun.cli import main

    sys.exit(main())
