"""Implements `forerun edge`: runs the daemon in the foreground, or one of its actions."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from common.config.command_line import add_command, add_flags, add_options, flags_from
from common.errors import UserError
from edge_client.process.paths import EdgePaths
from edge_client.settings import SCHEMA, EdgeConfig, load_config
from forerun.cli import own_version
from forerun.commands import config as config_command
from forerun.commands import pair as pairing
from forerun.commands import process, service
from forerun.log_format import writing
from forerun.options import ConfigOption, add_server_words, given_flags, joined_address, loaded, places
from forerun.terminal import note

if TYPE_CHECKING:
    from edge_client.edge_daemon import DaemonSurroundings
    from edge_client.pair import DraftFiles

DESCRIPTION = """\
Run the edge daemon in the foreground. It drafts with a model on this device, uses verifiers elsewhere, and
serves an OpenAI-compatible API on this machine. Point any tool at it:

  forerun edge --draft hf://ORGANISATION/REPOSITORY/FILE.gguf --verifier HOST:PORT
  export OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=$(cat TOKEN_FILE)

The daemon makes TOKEN_FILE; `forerun edge status` prints its name and the page's address (docs/edge.md).
A file or the environment can also set every setting: `forerun edge config init` writes such a file
(docs/edge_config.md), also those that have no option here.
Without an action the daemon runs. The actions query, stop or install it."""

logger = logging.getLogger(__name__)

LISTEN = "api.listen"

SWITCH_INTERVAL = 0.0002
"""Seconds after which the draft model's thread yields to the event loop, which passes text on. Python's
default of 5 ms exceeds the time of a whole token here."""


INTERRUPT_GRACE = 3.0
"""Seconds for live texts to end after Ctrl-C; after SIGTERM the limit is `service.stop_timeout`."""


def add_parser(commands: Any) -> None:
    words = "run the daemon on this device: it drafts for verifiers and serves an API to local programs"
    parser = add_command(commands, "edge", words, description=DESCRIPTION)
    add_all_options(parser)
    words = "first ask for the line that `forerun serve --pair` printed, and connect to that verifier"
    parser.add_argument("--pair", action="store_true", help=words)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    for module in (process, config_command, service):
        module.add_actions(actions)


def add_all_options(parser: argparse.ArgumentParser) -> None:
    """Add the daemon's own options and those of all settings."""
    add_options(parser, ConfigOption)
    add_flags(parser, SCHEMA)
    add_server_words(parser, SCHEMA.by_name["log.level"])
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the daemon until SIGTERM or Ctrl-C."""
    paths = places(options)
    if getattr(options, "pair", False):
        if options.config or options.system:
            raise UserError("--pair is for this user's daemon; leave it out beside --config and --system")
        pairing.connect(pairing.asked())
    config = loaded(options, paths).config
    listen = joined_address(options, LISTEN, config.api.listen)
    if listen != config.api.listen:  # loaded anew, since checks of other settings read it
        setattr(options, LISTEN, listen)
        config = loaded(options, paths).config

    def reconfigure(values: Mapping[str, Any]) -> EdgeConfig:
        files = paths.files_read(options.config)
        return load_config(flags_from(options, SCHEMA), os.environ, files, values).config

    with contextlib.ExitStack() as stack:
        out = stack.enter_context(_log_file(config.log.file)) if config.log.file else None
        stack.enter_context(writing(config.log.level, config.log.format, out))
        logger.info("> starting the daemon, version %s", own_version())
        around = surroundings(config, paths)  # before the event loop, so that Ctrl-C ends a download
        return asyncio.run(
            _run(config, paths, replace(around, reconfigure=reconfigure, flags=given_flags(options)))
        )


async def _run(config: EdgeConfig, paths: EdgePaths, around: DaemonSurroundings) -> int:
    from edge_client.edge_daemon import EdgeDaemon

    sys.setswitchinterval(SWITCH_INTERVAL)
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            hurry.set()
        elif number is signal.SIGINT:  # a user at a terminal waits for the prompt
            note(f"stopping; live texts have {INTERRUPT_GRACE:g} s to end, Ctrl-C again ends them at once")
            loop.call_later(INTERRUPT_GRACE, hurry.set)
        stop.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, on_signal, each)
    await EdgeDaemon(config, paths, around).run(stop, hurry)
    return 0


def surroundings(config: EdgeConfig, paths: EdgePaths) -> DaemonSurroundings:
    """Return what only the command line knows: environment, files and version."""
    from edge_client.edge_daemon import DaemonSurroundings
    from edge_client.process.notify import watchdog_interval

    return DaemonSurroundings(
        version=own_version(),
        drafts={name: draft_files(name, each, paths) for name, each in config.each_pair.items()},
        notify_socket=os.environ.get("NOTIFY_SOCKET", ""),
        watchdog=watchdog_interval(os.environ, os.getpid()),
        on_ready=_greet,
    )


def draft_files(pair: str, config: EdgeConfig, paths: EdgePaths) -> DraftFiles:
    """Return a pair's local files, fetched first if they are remote. Raise as `find_model`."""
    from common.llama.files import find_model
    from edge_client.pair import DraftFiles
    from edge_client.texts.index_file import SUFFIX
    from schemes.drafters.file_index import IndexFiles, place_of

    name = config.draft.model
    if not name:
        setting = f"pairs.{pair}.draft.model" if pair else "draft.model"
        raise UserError(
            "no draft model is named; give --draft FILE (a GGUF file, hf://organisation/repository/file.gguf "
            f"or an https:// address), or set {setting}. --no-drafting and --policy off need the file, too, "
            "for its tokenizer"
        )
    if config.draft.sha256:
        logger.info("> checking the SHA-256 of %s", name)
    model = find_model(name, config.draft.sha256)
    others = (config.draft.small, config.draft.tokens, config.draft.second)
    small, tokens, second = (file and find_model(file) for file in others)
    indexes = [place_of(each, paths.indexes) for each in config.draft.index]
    earlier = paths.earlier / f"{pair or 'default'}{SUFFIX}" if config.draft.remember_on_disk else None
    texts = partial(IndexFiles, indexes) if indexes else None
    return DraftFiles(model, small, texts, earlier, tokens, second)


def _log_file(name: str) -> TextIO:
    """Open the log file, readable by its owner only. Raise `UserError`."""
    path = Path(name).expanduser()
    try:
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="ascii")
    except OSError as error:
        raise UserError(f"the log file {path} cannot be written: {error.strerror or error}") from error


def _greet(address: str, token: str) -> None:
    """Show the addresses if a terminal started the daemon."""
    if not sys.stderr.isatty():
        return
    if address.startswith("unix:"):
        note(f"serving at {address}; Ctrl-C ends")
        return
    note(f"serving at http://{address}/v1; Ctrl-C ends")
    note(f"the page: http://{address}/" + (f"#token={token}" if token else ""))
