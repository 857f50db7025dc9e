"""Implements `forerun top`: shows the live work of a verifier or of this device's daemon."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from common.config.command_line import add_command
from common.config.setting import setting
from common.errors import PeerError, UnavailableError
from edge_client.process.client import LocalClient, connect
from forerun.commands import daemon_table, verifier_table
from forerun.options import PlaceOption
from forerun.terminal import Look, watch

DESCRIPTION = """\
Show the live texts of this device's daemon, updated every second until Ctrl-C. With --http, show the live
sessions of a verifier on this machine that was started with --http. Of the texts themselves only lengths are
shown.

  forerun top
  forerun top --once
  forerun verify --model lab/demo_models/target --http 127.0.0.1:9464
  forerun top --http 127.0.0.1:9464"""

VERIFIER_TIMEOUT = 5.0
"""Seconds to wait for one answer of a verifier."""


@dataclass(frozen=True, kw_only=True)
class TopOptions(PlaceOption):
    """Declares what is shown, and how often."""

    http: str | None = setting(None, "address of a verifier, as given to its --http", "HOST:PORT")
    once: bool = setting(False, "show one table; rates are then means since each text began")
    json: bool = setting(False, "print an object a line, with all known fields")
    interval: float = setting(1.0, "seconds between updates", "S", low=0.1)


def add_parser(commands: Any) -> None:
    words = "show the live texts of the daemon, or the live sessions of a verifier"
    add_command(commands, "top", words, _top, TopOptions, DESCRIPTION)


def _top(options: TopOptions) -> int:
    asyncio.run(_daemon(options) if options.http is None else _verifier(options, options.http))
    return 0


async def _verifier(options: TopOptions, address: str) -> None:
    client = LocalClient(address, timeout=VERIFIER_TIMEOUT, name="verifier")

    async def look() -> daemon_table.Json:
        try:
            told: daemon_table.Json = client.get(verifier_table.PATH)
            verifier_table.table(told)  # fails if it has another form
            return told
        except UnavailableError as error:
            raise UnavailableError(f"{error}; was `forerun verify` started with --http {address}?") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PeerError(f"{address} is no verifier's --http address, or of another version") from error

    await _show(options, look, verifier_table.as_json, verifier_table.table)


async def _daemon(options: TopOptions) -> None:
    async def look() -> daemon_table.DaemonLook:
        """Find the daemon each time, as a restarted daemon may listen elsewhere."""
        return daemon_table.look(connect(options.paths.daemon), time.monotonic())

    await _show(options, look, daemon_table.as_json, daemon_table.screen)


async def _show(
    options: TopOptions,
    look: Callable[[], Awaitable[Look]],
    as_json: Callable[[Look, Look | None], Any],
    lines: Callable[[Look, Look | None], list[str]],
) -> None:
    def as_line(now: Look, before: Look | None) -> list[str]:
        return [json.dumps(as_json(now, before))]

    frame = as_line if options.json else lines
    live = sys.stdout.isatty() and not options.json and not options.once
    await watch(look, frame, interval=options.interval, live=live, once=options.once)
