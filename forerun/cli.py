"""Implements the command `forerun`: finds the subcommand and turns errors into sentences and exit codes."""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from typing import Any, NoReturn

from common.config.setting import LOG_LEVELS
from common.errors import ForerunError, UserError
from forerun.log_format import OURS, hush_libraries

GROUPS = {
    "use it": {
        "edge": "forerun.commands.edge",
        "local": "forerun.commands.local",
        "chat": "forerun.commands.chat",
        "complete": "forerun.commands.complete",
        "launch": "forerun.commands.launch",
        "index": "schemes.drafters.command",
        "pair": "forerun.commands.pair",
        "models": "forerun.commands.models:add_models",
        "pull": "forerun.commands.models:add_pull",
        "doctor": "forerun.commands.doctor",
        "top": "forerun.commands.top",
    },
    "serve a target": {
        "verify": "forerun.commands.verify",
        "certs": "forerun.commands.certs",
        "fleet": "forerun.commands.fleet",
        "align": "training.align",
    },
    "study networks": {
        "simulate": "forerun.commands.simulate",
        "link": "forerun.commands.simulate:add_link",
    },
}
RARE = {
    "completion": "forerun.commands.completion",
    "heads": "training.heads",
    "judge": "training.judge",
    "record": "training.record",
    "fit": "training.fit",
}
COMMANDS = {name: module for group in (*GROUPS.values(), RARE) for name, module in group.items()}
"""Maps a command's name to its module, and to the function if that is not `add_parser`. Only the requested
module is imported, so the daemon does not wait for the simulator."""

DESCRIPTION = """\
Forerun runs a small draft model on this device and verifies its drafts with a large target model on a server.
The text is exactly the target's own, and it arrives sooner than the server could stream it.

Run `forerun serve` on the server and `forerun edge` on the device. `forerun chat`, `forerun complete` and any
client of OpenAI's API then use the device's daemon. `forerun doctor` finds what is wrong."""

EPILOG = f"""\
Rarer: {", ".join(RARE)}.
`forerun help COMMAND` explains a command, `forerun version` prints the version."""


SERVE = "serve"
"""Another name of `verify`, which other servers use."""

WORDS_ELSEWHERE = {
    "run": ("chat",),
    "generate": ("complete",),
    "server": (SERVE,),
    "ps": ("top",),
    "list": ("models",),
    "download": ("pull",),
    "status": ("edge status",),
    "start": ("edge",),
    "stop": ("edge stop",),
    "logs": ("edge logs",),
    "--hf-repo": ("--model", "--draft"),
    "-hf": ("--model", "--draft"),
    "--model": ("--draft",),
    "-m": ("--draft",),
    "--model-draft": ("--draft",),
    "-md": ("--draft",),
    "--speculative-model": ("--draft",),
    "--ctx-size": ("--context", "--slots"),
    "-c": ("--context", "--slots"),
    "--max-model-len": ("--slots", "--context"),
    "--n-gpu-layers": ("--gpu-layers",),
    "-ngl": ("--gpu-layers",),
    "-t": ("--threads",),
    "--served-model-name": ("--name",),
    "--alias": ("--name",),
    "--tensor-parallel-size": ("--tensor-parallel",),
    "--api-key": ("--api-token-file", "--token-keys"),
    "--base-url": ("--verifier",),
}
"""Words of llama.cpp, vLLM and Ollama, and which of ours are meant, of those that exist in a place."""

COMMANDS_BY_WORD = {name: name for name in COMMANDS} | {SERVE: "verify"}

COMPLETING = "_ARGCOMPLETE"
"""Environment variable with which a shell asks for the words that may follow."""

EXTRAS = {
    "torch transformers tokenizers safetensors triton": ("verifier",),
    "jwt cryptography google.rpc grpc_reflection": ("verifier", "verifier-llama"),
    "llama_cpp huggingface_hub": ("edge", "verifier-llama"),
    "llguidance prometheus_client": ("edge", "verifier"),
    "gguf": ("train",),
    "matplotlib": ("simulation",),
    "torchao": ("quantized",),
    "accelerate": ("parallel",),
}
"""Maps modules to the extras that install them; the extra `edge` installs all others."""


class Parser(argparse.ArgumentParser):
    """Reports an error as one sentence with the nearest valid name, without the whole usage.

    A command with a default of `arguments` gets in it all words after `--`, for another program. argparse
    itself would take options there for its own, depending on its version.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = [*(sys.argv[1:] if args is None else args)]
        if self.get_default("arguments") is None:
            return super().parse_known_args(self._given, namespace)
        own = [*takewhile(lambda each: each != "--", self._given)]
        parsed, unknown = super().parse_known_args(own, namespace)
        if unknown:
            words = _about_option(unknown, _options(self)) or f"{unknown[0]!r} is unknown"
            self.exit(2, f"{self.prog}: {words}; words for the other program go after --\n")
        parsed.arguments = self._given[len(own) + 1 :]
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        words = _about_option(self._given, _options(self)) or _about_choice(message)
        words = words or re.sub(r"^argument [^:]*: (?=\S+ is )", "", message)  # a setting's own sentence
        self.exit(2, f"{self.prog}: {words}\nSee `{self.prog} --help`.\n")


def _about_option(given: Iterable[str], known: Iterable[str]) -> str:
    """Describe the first unknown option; empty if all exist. argparse would complain of its value instead."""
    before = takewhile(lambda each: each != "--", given)
    given = [each.partition("=")[0] for each in before]
    options = [
        each for each in given if each.startswith("--") or (each[:1] == "-" and each in WORDS_ELSEWHERE)
    ]
    known = [*known]
    unknown = next((each for each in options if not any(name.startswith(each) for name in known)), "")
    return f"{unknown} is no option here{_meant(unknown, known)}" if unknown else ""


def _about_choice(message: str) -> str:
    """Describe an unknown command or value by argparse's message; empty for other messages."""
    match = re.fullmatch(r"(?:argument .*: )?invalid choice: '(.*)' \(choose from (.*)\)", message)
    if match is None:
        return ""
    choices = re.findall(r"[\w./:-]+", match[2])
    return f"{match[1]!r} is unknown{_meant(match[1], choices) or '; choose one of ' + ', '.join(choices)}"


def _meant(word: str, known: Iterable[str]) -> str:
    known = [*known]
    elsewhere = [each for each in WORDS_ELSEWHERE.get(word, ()) if each.partition(" ")[0] in known]
    near = elsewhere or difflib.get_close_matches(word, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _options(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a command and its subcommands."""
    names = set[str]()
    for action in parser._actions:
        names.update(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            names.update(*(_options(each) for each in action.choices.values()))
    return names


def own_version() -> str:
    """Return the version of the installed package; `source` where it runs from a clone."""
    return version_of("forerun") or "source"


def version_of(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def build_parser(
    only: str | None = None,
    modules: Mapping[str, str] = COMMANDS,
    prog: str = "forerun",
    description: str = DESCRIPTION,
) -> argparse.ArgumentParser:
    """Build the parser of all subcommands in `modules`, or of `only` one."""
    parser = Parser(
        prog=prog,
        description=description,
        epilog=EPILOG if modules is COMMANDS else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"forerun {own_version()}")
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        help="lowest level logged to standard error; precedes the command (default: warning; verify: info)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in [only] if only is not None and only in modules else modules:
        module, _, function = modules[name].partition(":")
        getattr(import_module(module), function or "add_parser")(commands)
    if modules is COMMANDS:
        _show_groups(parser, commands)
    return parser


def _show_groups(parser: argparse.ArgumentParser, commands: Any) -> None:
    """Have the help list all but rare commands by what they are for. argparse has no groups of commands."""
    parser._positionals._group_actions.remove(commands)
    shown = {each.dest: each for each in commands._choices_actions}
    for title, names in GROUPS.items():
        parser.add_argument_group(title)._group_actions += [shown[name] for name in names if name in shown]


def _in_options(argv: Sequence[str]) -> Sequence[str]:
    """Rewrite `help COMMAND` and `version` as options of argparse, and `edge start` as `edge`."""
    match [*argv]:
        case ["help", *words]:
            return [*words, "--help"]
        case ["version", *words]:
            return ["--version", *words]
        case ["edge", "start", *words]:
            return ["edge", *words]
    return argv


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, 1 after an error, 2 after a user's error, or 130 after Ctrl-C."""
    argv = _in_options(sys.argv[1:] if argv is None else argv)
    words = os.environ.get("COMP_LINE", "").split() if COMPLETING in os.environ else argv
    named = (COMMANDS_BY_WORD.get(word) for word in words)
    parser = build_parser(next((name for name in named if name is not None), None))
    if COMPLETING in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    return run(parser, argv)


def run(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Parse the words and run the command that they name. Return as `main`."""
    hush_libraries()
    options = parser.parse_args(argv)
    level = (options.log_level or "warning").upper()
    logging.basicConfig(level=level, format="%(levelname).1s %(name)s: %(message)s")
    return reported(lambda: options.run(options))


def leave(number: int, *_: object) -> NoReturn:
    """Exit on a signal of this number, as a process does that does not handle it."""
    raise SystemExit(128 + number)


def extras_of(module: str) -> tuple[str, ...]:
    """Return the extras of which each installs a module, as `pip install 'forerun[EXTRA]'` takes them."""
    names = (module, module.partition(".")[0])
    return next((extras for words, extras in EXTRAS.items() if {*names} & {*words.split()}), ("edge",))


def reported(command: Callable[[], int | None]) -> int:
    """Run a command and report its error as a sentence on standard error. Return as `main`."""
    try:
        return command() or 0
    except ForerunError as error:
        print(f"forerun: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package in OURS:
            raise
        if package in sys.stdlib_module_names:
            words = "run Forerun within WSL (wsl --install), as its servers need Linux or macOS"
            print(
                f"forerun: the Python of this system has no {error.name}; on Windows {words}", file=sys.stderr
            )
            return 2
        extras = " or ".join(f"'forerun[{extra}]'" for extra in extras_of(str(error.name)))
        print(f"forerun: {error.name} is not installed; pip install {extras}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, `head` for example, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
