"""Runs the verifier of a rig: `forerun verify` whose steps take a least time, to imitate a larger target.

python -m lab.rig_verifier --step-floor 30 --model lab/demo_models/target
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from cloud_verifier.settings import VerifierConfig
from forerun.cli import reported
from forerun.commands import verify
from forerun.log_format import hush_libraries


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of `forerun verify` and the floor."""
    parser = argparse.ArgumentParser(description=description)
    verify.add_options(parser)
    parser.add_argument(
        "--step-floor", type=float, default=0.0, metavar="MS", help="least time of a step (default: none)"
    )
    parser.set_defaults(log_level="warning")
    return parser


def config_of(options: argparse.Namespace) -> VerifierConfig:
    """Return the configuration with the floor. Raise `UserError`."""
    config = verify.config_of(options)
    return replace(config, target=replace(config.target, step_floor=options.step_floor / 1e3))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    hush_libraries()
    options = parser_of(__doc__).parse_args(arguments)
    return reported(lambda: verify.serve_config(config_of(options)))


if __name__ == "__main__":
    sys.exit(main())
