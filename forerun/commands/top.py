"""Implements `forerun top` and `ps`: shows the live work of a verifier or of this device's daemon."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc.aio

from common.errors import ForerunError, UnavailableError, UserError
from common.pb import admin_pb2 as pb
from common.pb import admin_pb2_grpc as pb_grpc
from common.wire.admin import Overview, decode_overview
from common.wire.options import channel_options
from common.wire.status import to_error
from edge_client.process.client import connect
from forerun.commands import daemon_table, verifier_table
from forerun.options import DaemonOptions, PlaceOption, add_command, option
from forerun.terminal import Look, watch

DESCRIPTION = """\
Show the live texts of this device's daemon, updated every second until Ctrl-C. With --admin, show the live
sessions of a verifier that was started with --admin. Of the texts themselves only lengths are shown.

  forerun top
  forerun verify --model lab/demo_models/target --admin 127.0.0.1:50061
  forerun top --admin 127.0.0.1:50061"""

CALL_TIMEOUT = 5.0
"""Seconds to wait for one answer."""


@dataclass(frozen=True, kw_only=True)
class TopOptions(PlaceOption):
    """Declares what is shown, how often and in which order. Raises `UserError`."""

    admin: str | None = option(None, "admin address of a verifier, as given to its --admin", "ADDRESS")
    once: bool = option(False, "show one table; rates are then means since each text began")
    json: bool = option(False, "print an object a line, with all known fields")
    interval: float = option(1.0, "seconds between updates", "S")
    sort: str = option("pace", "sort key of the rows", choices=tuple(verifier_table.SORTS))

    def __post_init__(self) -> None:
        if not 0.1 <= self.interval < float("inf"):
            raise UserError(f"--interval is {self.interval}; it must be 0.1 or more")
        if self.admin is None and self.sort not in daemon_table.SORTS:
            allowed = ", ".join(daemon_table.SORTS)
            raise UserError(f"--sort {self.sort} belongs to --admin; without it, choose one of {allowed}")


def add_parser(commands: Any) -> None:
    words = "show the live texts of the daemon, or the live sessions of a verifier"
    add_command(commands, "top", words, _top, TopOptions, DESCRIPTION)


def add_ps(commands: Any) -> None:
    description = (
        "List the texts that the running daemon is writing: client, mode, tokens per second, and the share\n"
        "drafted on this device. Rates are means since each text began."
    )
    add_command(
        commands, "ps", "list the texts that the running daemon is writing", _ps, DaemonOptions, description
    )


def _top(options: TopOptions) -> int:
    asyncio.run(_daemon(options) if options.admin is None else _verifier(options, options.admin))
    return 0


def _ps(options: DaemonOptions) -> int:
    now = daemon_table.look(connect(options.paths.daemon), time.monotonic())
    if options.json:
        print(json.dumps(daemon_table.as_json(now), indent=1))
        return 0
    print("\n".join(daemon_table.rows(now)) if now.texts else "nothing is written now")
    if now.waiting:
        print(f"{now.waiting} waiting")
    return 0


class AdminChannel:
    """Holds a channel to a verifier's admin listener at `address`. An async context manager."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=channel_options())
        self._stub = pb_grpc.AdminServiceStub(self._channel)

    async def __aenter__(self) -> AdminChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def overview(self) -> Overview:
        """Return the verifier's live sessions. Raise `UnavailableError` if it cannot be reached."""
        try:
            response = await self._stub.ListSessions(pb.ListSessionsRequest(), timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error
        return decode_overview(response)

    def _failure(self, error: grpc.aio.AioRpcError) -> ForerunError:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return UserError(f"{self.address} is no admin listener; give that of `forerun verify --admin`")
        failure = to_error(error)
        if isinstance(failure, UnavailableError):
            words = f"no verifier's admin listener can be reached at {self.address} ({failure})"
            return UnavailableError(f"{words}; was `forerun verify` started with --admin?")
        return failure


async def _verifier(options: TopOptions, address: str) -> None:
    async with AdminChannel(address) as channel:
        await _show(options, channel.overview, verifier_table.as_json, verifier_table.table)


async def _daemon(options: TopOptions) -> None:
    async def look() -> daemon_table.DaemonLook:
        """Find the daemon each time, as a restarted daemon may listen elsewhere."""
        return daemon_table.look(connect(options.paths.daemon), time.monotonic())

    await _show(options, look, daemon_table.as_json, daemon_table.screen)


async def _show(
    options: TopOptions,
    look: Callable[[], Awaitable[Look]],
    as_json: Callable[[Look, Look | None], Any],
    lines: Callable[..., list[str]],
) -> None:
    def as_line(now: Look, before: Look | None) -> list[str]:
        return [json.dumps(as_json(now, before))]

    frame = as_line if options.json else partial(lines, sort=options.sort)
    live = sys.stdout.isatty() and not options.json and not options.once
    await watch(look, frame, interval=options.interval, live=live, once=options.once)
