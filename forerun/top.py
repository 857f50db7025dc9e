"""`forerun top`: what a verifier, or this device's daemon, does now, and for whom."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from typing import Any, TextIO

import grpc.aio

from common.errors import ForerunError, UnavailableError, UserError
from common.pb import admin_pb2 as pb
from common.pb import admin_pb2_grpc as pb_grpc
from common.rpc.admin import Overview, decode_overview
from common.rpc.options import channel_options
from common.rpc.status import to_error
from forerun import daemon_top
from forerun.edge_places import add_place
from forerun.top_table import SORTS, as_json, table

DESCRIPTION = """\
Shows the live texts of this device's daemon, anew every second until Ctrl-C; with --admin the live sessions
of a verifier, which must have been started with --admin. Of the texts it tells nothing but their lengths.

  forerun top
  forerun verify --model demo_models/target --admin 127.0.0.1:50061
  forerun top --admin 127.0.0.1:50061"""

CALL_TIMEOUT = 5.0
"""Seconds for one answer."""

HOME, TO_LINE_END, TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"
OTHER_SCREEN, BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "top",
        help="show the live texts of the daemon, or the live sessions of a verifier",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--admin", metavar="ADDRESS", help="of a verifier: what its --admin says")
    option("--once", action="store_true", help="show it once; paces are then means since each began")
    option("--json", action="store_true", help="an object a line, with all that is known")
    option("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (%(default)s)")
    option("--sort", choices=tuple(SORTS), default="pace", help="what stands first (%(default)s)")
    add_place(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if not 0.1 <= options.interval < float("inf"):
        raise UserError(f"--interval is {options.interval}; it must be 0.1 or more")
    if options.admin is None:
        return daemon_top.run(options)
    asyncio.run(_watch(options))
    return 0


class AdminChannel:
    """A channel to a verifier's admin listener at `address`. An async context manager."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=channel_options())
        self._stub = pb_grpc.AdminServiceStub(self._channel)

    async def __aenter__(self) -> AdminChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def overview(self) -> Overview:
        """What goes on there now. Raises `UnavailableError` when it cannot be reached."""
        try:
            response = await self._stub.ListSessions(pb.ListSessionsRequest(), timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error
        return decode_overview(response)

    def _failure(self, error: grpc.aio.AioRpcError) -> ForerunError:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return UserError(f"{self.address} is no admin listener; give what `forerun verify --admin` says")
        failure = to_error(error)
        if isinstance(failure, UnavailableError):
            words = f"no verifier's admin listener can be reached at {self.address} ({failure})"
            return UnavailableError(f"{words}; was `forerun verify` started with --admin?")
        return failure


async def _watch(options: argparse.Namespace) -> None:
    async with AdminChannel(options.admin) as channel:
        if options.once:
            _say(_frame(await channel.overview(), None, options, None), sys.stdout)
        elif options.json or not sys.stdout.isatty():
            await _repeat(channel, options)
        else:
            await _redraw(channel, options, sys.stdout)


async def _repeat(channel: AdminChannel, options: argparse.Namespace) -> None:
    """One look after the other, for a file or a pipe."""
    before: Overview | None = None
    while True:
        now = await channel.overview()
        _say(_frame(now, before, options, None), sys.stdout)
        before = now
        await asyncio.sleep(options.interval)


async def _redraw(channel: AdminChannel, options: argparse.Namespace, out: TextIO) -> None:
    """Each look in the place of the one before. A verifier that cannot be reached may come back."""
    before: Overview | None = None
    out.write(OTHER_SCREEN)
    try:
        while True:
            size = shutil.get_terminal_size()
            try:
                now = await channel.overview()
                lines, before = _frame(now, before, options, (size.columns, size.lines)), now
            except UnavailableError as error:
                lines, before = [str(error)], None
            out.write(HOME)
            _say([TO_LINE_END + line for line in lines], out, end="\n" + TO_SCREEN_END)
            await asyncio.sleep(options.interval)
    finally:
        out.write(BACK)
        out.flush()


def _frame(
    now: Overview, before: Overview | None, options: argparse.Namespace, size: tuple[int, int] | None
) -> list[str]:
    if options.json:
        return [json.dumps(as_json(now, before))]
    return table(now, before, sort=options.sort, size=size)


def _say(lines: list[str], out: TextIO, end: str = "\n") -> None:
    """With a question mark for each character that this output cannot show: edges choose names."""
    text = "\n".join(lines) + end
    encoding = out.encoding or "ascii"
    out.write(text.encode(encoding, "replace").decode(encoding))
    out.flush()
