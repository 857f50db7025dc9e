"""Runs `forerun` with draft steps that take a least time, to imitate a slower device.

python -m lab.rig_slow_edge 60 edge --draft FILE --verifier HOST:PORT
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from common.llama.runtime import LlamaRuntime
from forerun.cli import main as forerun


def floored(decode: Callable[[LlamaRuntime], int], least: float) -> Callable[[LlamaRuntime], int]:
    """Return a `LlamaRuntime.decode` that takes `least` seconds, however many rows it has."""

    def slow(runtime: LlamaRuntime) -> int:
        ends_at = time.perf_counter() + least
        code = decode(runtime)
        time.sleep(max(0.0, ends_at - time.perf_counter()))
        return code

    return slow


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line behind the least milliseconds of a draft step."""
    floor_ms, *rest = sys.argv[1:] if arguments is None else arguments
    setattr(LlamaRuntime, "decode", floored(LlamaRuntime.decode, float(floor_ms) / 1e3))  # noqa: B010 - a method
    return forerun(rest)


if __name__ == "__main__":
    sys.exit(main())
