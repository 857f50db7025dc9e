"""`forerun link`: the fault proxy of the package `link`, under one roof with the rest."""

from __future__ import annotations

import argparse
from typing import Any

from link.cli import main as link_main


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "link",
        help="emulate a distant or failing network between an edge and a verifier",
        description="Passes all arguments to the link; see `forerun link --help`.",
        add_help=False,
        prefix_chars="\0",  # every argument is the link's
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(run=lambda options: link_main(options.arguments, prog="forerun link"))
