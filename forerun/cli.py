"""The command `forerun`: finds the subcommand, turns errors into sentences and exit codes."""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from typing import Any, NoReturn

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

EPILOG = "`forerun help COMMAND` explains a command, `forerun version` prints the version."


class Parser(argparse.ArgumentParser):
    """An error is a sentence that names what was probably meant, without the whole usage."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = [*(sys.argv[1:] if args is None else args)]
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        words = _about_option(self._given, _options(self)) or _about_choice(message) or message
        self.exit(2, f"{self.prog}: {words}\nSee `{self.prog} --help`.\n")


def _about_option(given: Iterable[str], known: Iterable[str]) -> str:
    """Of the first option that does not exist; empty if all do. argparse complains of what follows it."""
    before = takewhile(lambda each: each != "--", given)
    options = [each.partition("=")[0] for each in before if each.startswith("--")]
    known = [*known]
    unknown = next((each for each in options if not any(name.startswith(each) for name in known)), "")
    return f"{unknown} is no option here{_meant(unknown, known)}" if unknown else ""


def _about_choice(message: str) -> str:
    """Of a command or a value that is none of those that argparse names; empty for other complaints."""
    found = re.fullmatch(r"(?:argument .*: )?invalid choice: '(.*)' \(choose from (.*)\)", message)
    if found is None:
        return ""
    choices = re.findall(r"[\w./:-]+", found[2])
    return f"{found[1]!r} is unknown{_meant(found[1], choices) or '; choose one of ' + ', '.join(choices)}"


def _meant(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, [*known], 1)
    return f"; did you mean {near[0]}?" if near else ""


def _options(parser: argparse.ArgumentParser) -> set[str]:
    """Of a command and its subcommands."""
    found = set[str]()
    for action in parser._actions:
        found.update(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            found.update(*(_options(each) for each in action.choices.values()))
    return found


def own_version() -> str:
    """Of the installed package; `source` where it runs from a clone."""
    try:
        return version("forerun")
    except PackageNotFoundError:
        return "source"


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """All subcommands with their options, or one."""
    parser = Parser(
        prog="forerun",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"forerun {own_version()}")
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


def _in_options(argv: Sequence[str]) -> Sequence[str]:
    """`help COMMAND` and `version` as argparse knows them."""
    match argv[:1]:
        case ["help"]:
            return [*argv[1:], "--help"]
        case ["version"]:
            return ["--version", *argv[1:]]
    return argv


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0; 1 after an error, 2 after a user's (as argparse), 130 after Ctrl-C."""
    hush_libraries()
    argv = _in_options(sys.argv[1:] if argv is None else argv)
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
