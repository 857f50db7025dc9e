"""The command `forerun`: finds the subcommand, turns errors into sentences and exit codes."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from common.errors import ForerunError, UserError
from forerun.logs import hush_libraries

COMMANDS = {
    "demo": "forerun.demo",
    "verify": "forerun.verify",
    "top": "forerun.top",
    "edge": "forerun.edge",
    "chat": "forerun.chat_command",
    "complete": "forerun.complete_command",
    "ps": "forerun.ps_command",
    "doctor": "forerun.doctor_command",
    "fleet": "forerun.fleet_command",
    "pull": "forerun.pull_command",
    "models": "forerun.models_command",
    "link": "forerun.link_command",
    "certs": "forerun.certs_command",
    "record": "forerun.record",
    "fit": "forerun.fit",
    "simulate": "forerun.simulate",
    "bench": "forerun.bench.command",
}
"""Name -> module. Only the one that is asked for is imported: a daemon need not wait for the simulator."""

DESCRIPTION = """\
Forerun runs a small draft model on this device and lets a large target model on a server decide: the text is
exactly the target's own, and it comes sooner than the server could stream it.

Start with `forerun demo`. For two machines: `forerun verify` on the server, `forerun edge` on the device;
`forerun chat`, `forerun complete` and whatever speaks OpenAI's API ask the device. If something is wrong,
`forerun doctor` says what."""


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """All subcommands with their options, or one."""
    parser = argparse.ArgumentParser(
        prog="forerun", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="how much is logged to standard error; stands before the command (warning; info for verify)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in [only] if only in COMMANDS else COMMANDS:
        import_module(COMMANDS[name]).add_parser(commands)
    return parser


def asked_for(argv: Sequence[str]) -> str | None:
    """The command in these arguments, behind the options that stand before it; None if there is none."""
    words = iter(argv)
    for word in words:
        if word == "--log-level":
            next(words, None)
        elif not word.startswith("-"):
            return word
        elif not word.startswith("--log-level="):
            return None  # --help, or one that argparse will complain of
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0; 1 after an error, 2 after a user's (as argparse), 130 after Ctrl-C."""
    hush_libraries()
    argv = sys.argv[1:] if argv is None else argv
    options = build_parser(asked_for(argv)).parse_args(argv)
    level = (options.log_level or "warning").upper()
    logging.basicConfig(level=level, format="%(levelname).1s %(name)s: %(message)s")
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
