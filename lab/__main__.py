"""What only a clone can: `python -m lab demo` and `bench`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from forerun.cli import build_parser, run

COMMANDS = {"demo": "lab.demo.command", "bench": "lab.bench.capacity"}
"""Maps a command's name to its module."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return as `forerun.cli.main`."""
    return run(build_parser(None, COMMANDS, "python -m lab", __doc__ or ""), argv)


if __name__ == "__main__":
    sys.exit(main())
