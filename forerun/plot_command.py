"""`forerun simulate plot`: pictures of a sweep."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from simulator.plots import plot_bytes, plot_capacity, plot_latency, plot_pace, plot_speedup, plot_waste
from simulator.schemes import FORERUN
from simulator.sweep import axis_values, read_latencies, read_results
from simulator.tables import Row, axes_of

DESCRIPTION = """\
Draw a sweep. The kinds:

  pace      ms per token against an axis, a line per scheme: mean, and 95th percentile of windows of 16 tokens
  speedup   how many times as fast as server streaming, over round trip and acceptance
  latency   distributions of inter-token latency, a panel per network profile
  capacity  tokens per second of a client against the number of clients or the rate of sessions
  waste     what was sent or evaluated and never became text, per scheme
  bytes     what travels per token, per scheme

Axes of the sweep that a kind does not use become panels; --at keeps one value of an axis."""


def _pace(options: argparse.Namespace) -> None:
    plot_pace(_results(options), options.out, options.x)


def _speedup(options: argparse.Namespace) -> None:
    plot_speedup(_results(options), options.out, options.scheme, options.x)


KINDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "pace": _pace,
    "speedup": _speedup,
    "latency": lambda options: plot_latency(chosen(read_latencies(options.folder), options.at), options.out),
    "capacity": lambda options: plot_capacity(_results(options), options.out),
    "waste": lambda options: plot_waste(_results(options), options.out),
    "bytes": lambda options: plot_bytes(_results(options), options.out),
}


def add_parser(actions: Any) -> None:
    parser = actions.add_parser(
        "plot",
        help="pictures of a sweep",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("folder", type=Path, help="what `sweep --out` was given")
    option("--kind", choices=tuple(KINDS), default="pace", help="what is drawn (%(default)s)")
    option("--out", type=Path, required=True, metavar="FILE", help="a .png, .svg or .pdf")
    option(
        "--x",
        default="rtt_ms",
        metavar="AXIS",
        help="what runs to the right in pace and speedup (%(default)s)",
    )
    option("--scheme", default=FORERUN, metavar="NAME", help="whose speed-up (%(default)s)")
    option(
        "--at",
        action="append",
        default=[],
        metavar="AXIS=V,V,...",
        help="only these points of the sweep; several may be given",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    KINDS[options.kind](options)
    print(f"drawn: {options.out}")
    return 0


def _results(options: argparse.Namespace) -> list[Row]:
    return chosen(read_results(options.folder), options.at)


def chosen(rows: Sequence[Row], wanted: Sequence[str]) -> list[Row]:
    """The rows at the values that `wanted` names, all if it is empty. Raises `UserError`."""
    kept = list(rows)
    for axis, values in map(axis_values, wanted):
        known = axes_of(rows[0].keys()) if rows else [axis]
        if axis not in known:
            raise UserError(f"--at {axis}: the sweep did not vary it; it varied {', '.join(known)}")
        kept = [row for row in kept if row[axis] in values]
    return kept
