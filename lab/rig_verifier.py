"""Runs the verifier of a rig: `forerun verify` whose steps take a least time, to imitate a larger target.

python -m lab.rig_verifier --step-floor 30 --model lab/demo_models/target
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from cloud_verifier.core.engine_protocol import TargetEngine
from forerun.cli import reported
from forerun.commands import verify
from forerun.log_format import hush_libraries
from lab.floored_engine import FlooredEngine


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of `forerun verify` and the floor."""
    parser = argparse.ArgumentParser(description=description)
    verify.add_options(parser)
    parser.add_argument(
        "--step-floor", type=float, default=0.0, metavar="MS", help="least time of a step (default: none)"
    )
    parser.set_defaults(log_level="warning")
    return parser


def floored(options: argparse.Namespace, engine: TargetEngine) -> TargetEngine:
    """Return the engine, slowed to the least time of a step if there is one."""
    return FlooredEngine(engine, options.step_floor / 1e3) if options.step_floor else engine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    hush_libraries()
    options = parser_of(__doc__).parse_args(arguments)
    return reported(lambda: verify.serve_config(verify.config_of(options), partial(floored, options)))


if __name__ == "__main__":
    sys.exit(main())
