"""The command `forerun`: finds the subcommand, turns errors into sentences and exit codes."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from common.errors import ForerunError, UserError
from forerun import (
    demo,
    edge,
    fit,
    fleet_command,
    link_command,
    models_command,
    record,
    simulate,
    top,
    verify,
)
from forerun.bench import command as bench
from forerun.logs import hush_libraries

COMMANDS = (
    demo,
    verify,
    top,
    edge,
    fleet_command,
    models_command,
    link_command,
    record,
    fit,
    simulate,
    bench,
)

DESCRIPTION = """\
Forerun runs a small draft model on this device and lets a large target model on a server decide: the text is
exactly the target's own, and it comes sooner than the server could stream it.

Start with `forerun demo`. For two machines: `forerun verify` on the server, `forerun edge complete` here."""


def build_parser() -> argparse.ArgumentParser:
    """All subcommands with their options."""
    parser = argparse.ArgumentParser(
        prog="forerun", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="how much is logged to standard error; stands before the command (warning; info for verify)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0; 1 after an error, 2 after a user's (as argparse), 130 after Ctrl-C."""
    options = build_parser().parse_args(argv)
    level = (options.log_level or "warning").upper()
    logging.basicConfig(level=level, format="%(levelname).1s %(name)s: %(message)s")
    hush_libraries()
    try:
        code: int = options.run(options)
    except ForerunError as error:
        print(f"forerun: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, `head` for example, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
