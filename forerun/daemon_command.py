"""`forerun edge`, without an action: the daemon, in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from common.errors import UserError
from edge_client.config import EdgeConfig, Overlay, load_config
from edge_client.config.flags import add_flags, flags_from
from edge_client.config.schema import BY_NAME
from edge_client.paths import EdgePaths
from edge_client.prior_file import read_priors
from forerun.cli import own_version
from forerun.edge_places import add_config, add_place, files_read, given_flags, loaded, models_folder, places
from forerun.logs import writing
from forerun.paint import note

if TYPE_CHECKING:
    from edge_client.edge_daemon import Surroundings
    from edge_client.fleet_link import Reconfigure

DESCRIPTION = """\
Runs the edge daemon in the foreground: a draft model on this device, verifiers elsewhere, and an API on this
machine that speaks OpenAI's words. Point any tool at it:

  forerun edge --draft hf://ORGANISATION/REPOSITORY/FILE.gguf --verifier HOST:PORT
  export OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=$(cat TOKEN_FILE)

`forerun edge status` names TOKEN_FILE, which the daemon makes, and the page's address (docs/edge.md).
Every setting can stand in a file or the environment, too: `forerun edge config init` writes one
(docs/edge_config.md). Below are the usual ones; --help-all lists them all.
Without an action the daemon runs; the actions ask it, stop it, install it, or write a text without it."""

SWITCH_INTERVAL = 0.0002
"""Seconds after which the draft model's thread yields to the event loop, which has text to pass on (Python's
default is 5 ms, longer than all that a token takes here)."""


INTERRUPT_GRACE = 3.0
"""Seconds that texts under way have to end after Ctrl-C; after SIGTERM they have `service.stop_timeout`."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The daemon's own, beside those of all settings."""
    add_place(parser)
    add_config(parser)
    add_flags(parser)
    parser.set_defaults(run=run)
    rare = [each for each in parser._actions if each.dest in BY_NAME and not BY_NAME[each.dest].setting.alias]
    parser.add_argument(
        "--help-all", action=HelpAll, rare=rare, help="show this message with the options of every setting"
    )


class HelpAll(argparse.Action):
    """Hides the options `rare` from the usual help, and shows them too when it is asked for."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, rare: list[argparse.Action], help: str
    ) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)
        self._rare = [(each, each.help) for each in rare]
        for each in rare:
            each.help = argparse.SUPPRESS

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        for each, words in self._rare:
            each.help = words
        parser.print_help()
        parser.exit()


def run(options: argparse.Namespace) -> int:
    """Until SIGTERM or Ctrl-C."""
    paths = places(options)
    config = loaded(options, paths).config

    def reconfigure(values: Mapping[str, Any]) -> EdgeConfig:
        overlay = Overlay("the fleet", _by_section(values))
        return load_config(flags_from(options), os.environ, files_read(options, paths), overlay).config

    with contextlib.ExitStack() as stack:
        out = stack.enter_context(_log_file(config.log.file)) if config.log.file else None
        stack.enter_context(writing(config.log.level, config.log.format, out))
        return asyncio.run(_run(config, paths, reconfigure, given_flags(options)))


async def _run(config: EdgeConfig, paths: EdgePaths, reconfigure: Reconfigure, flags: str) -> int:
    try:
        from edge_client.edge_daemon import EdgeDaemon
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'forerun[edge]'") from error
    sys.setswitchinterval(SWITCH_INTERVAL)
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            hurry.set()
        elif number is signal.SIGINT:  # somebody at a terminal waits for the prompt
            note(f"stopping; texts under way have {INTERRUPT_GRACE:g} s, Ctrl-C again ends them at once")
            loop.call_later(INTERRUPT_GRACE, hurry.set)
        stop.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, on_signal, each)
    around = replace(surroundings(config), reconfigure=reconfigure, flags=flags)
    await EdgeDaemon(config, paths, around).run(stop, hurry)
    return 0


def surroundings(config: EdgeConfig) -> Surroundings:
    """What only the command line knows: the environment, files by their names, the version."""
    from edge_client.edge_daemon import Surroundings
    from edge_client.notify import watchdog_interval

    return Surroundings(
        version=own_version(),
        draft_file=draft_file(config),
        priors=read_priors(Path(config.draft.prior)) if config.draft.prior else None,
        notify_socket=os.environ.get("NOTIFY_SOCKET", ""),
        watchdog=watchdog_interval(os.environ, os.getpid()),
        on_ready=_greet,
    )


def draft_file(config: EdgeConfig) -> str:
    """The draft model's file on this machine. Raises `UserError` if there is none, or it is another one."""
    from edge_client.llama.files import find_model

    name = config.draft.model
    if not name:
        raise UserError(
            "no draft model is named; give --draft FILE (a GGUF file, or a name that `forerun pull` knows), "
            "or set draft.model. With --policy off nothing is drafted, and the file only tells the tokens"
        )
    return find_model(name, models_folder(name), config.draft.sha256)


def _by_section(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`draft.policy` as a file has it."""
    sections = dict[str, dict[str, Any]]()
    for name, value in values.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    return sections


def _log_file(name: str) -> TextIO:
    """For its owner alone. Raises `UserError`."""
    path = Path(name).expanduser()
    try:
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="ascii")
    except OSError as error:
        raise UserError(f"the log file {path} cannot be written: {error.strerror or error}") from error


def _greet(address: str, token: str) -> None:
    """For a person who started it in a terminal."""
    if not sys.stderr.isatty():
        return
    if address.startswith("unix:"):
        note(f"serving at {address}; Ctrl-C ends")
        return
    note(f"serving at http://{address}/v1; Ctrl-C ends")
    note(f"the page: http://{address}/" + (f"#token={token}" if token else ""))
