"""`forerun bench`: the command line of the benchmarks of a verifier under load."""

from __future__ import annotations

import argparse
from typing import Any

from forerun.bench import (
    cache_command,
    capacity_command,
    daemon_command,
    overhead_command,
    plot_command,
    soak_command,
)

DESCRIPTION = """\
Puts load on a verifier on this machine: a process of its own on one core, many clients on
another, gRPC over the loopback interface between them. What is measured, and what the figures mean:
docs/capacity.md."""

PARTS = (capacity_command, overhead_command, soak_command, cache_command, daemon_command, plot_command)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="put load on a verifier, or on the daemon, and measure it",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="PART")
    for part in PARTS:
        part.add_parser(actions)
