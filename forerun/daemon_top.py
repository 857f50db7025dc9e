"""`forerun top` without `--admin`: the running daemon of this device, live."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from common.errors import UnavailableError, UserError
from edge_client.local_client import LocalClient, connect
from forerun.daemon_table import SORTS, Look, as_json, look, screen
from forerun.edge_places import places

HOME, TO_LINE_END, TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"
OTHER_SCREEN, BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"

Sleep = Callable[[float], None]


def run(options: argparse.Namespace) -> int:
    """Options as `forerun top` has them: once, json, interval, sort."""
    if options.sort not in SORTS:
        raise UserError(f"--sort {options.sort} belongs to --admin; here it is one of {', '.join(SORTS)}")
    if options.once:
        _say(_frame(look(_daemon(options), time.monotonic()), None, options, None), sys.stdout)
    elif options.json or not sys.stdout.isatty():
        repeat(options, sys.stdout)
    else:
        redraw(options, sys.stdout)
    return 0


def repeat(options: argparse.Namespace, out: TextIO, sleep: Sleep = time.sleep) -> None:
    """One look after the other, for a file or a pipe. Ends with the daemon: `UnavailableError`."""
    before: Look | None = None
    while True:
        now = look(_daemon(options), time.monotonic())
        _say(_frame(now, before, options, None), out)
        before = now
        sleep(options.interval)


def redraw(options: argparse.Namespace, out: TextIO, sleep: Sleep = time.sleep) -> None:
    """Each look in the place of the one before. A daemon that is not there may come back."""
    before: Look | None = None
    out.write(OTHER_SCREEN)
    try:
        while True:
            size = shutil.get_terminal_size()
            try:
                now = look(_daemon(options), time.monotonic())
                lines, before = _frame(now, before, options, (size.columns, size.lines)), now
            except UnavailableError as error:
                lines, before = [str(error)], None
            out.write(HOME)
            _say([f"{line}{TO_LINE_END}" for line in lines], out, end="\n" + TO_SCREEN_END)
            sleep(options.interval)
    finally:
        out.write(BACK)
        out.flush()


def _daemon(options: argparse.Namespace) -> LocalClient:
    """Looked for each time: it may have been started again, and listen elsewhere."""
    return connect(places(options).daemon)


def _frame(
    now: Look, before: Look | None, options: argparse.Namespace, size: tuple[int, int] | None
) -> list[str]:
    if options.json:
        return [json.dumps(as_json(now, before))]
    return screen(now, before, sort=options.sort, size=size)


def _say(lines: list[str], out: TextIO, end: str = "\n") -> None:
    """With a question mark for each character that this output cannot show."""
    encoding = out.encoding or "ascii"
    out.write(("\n".join(lines) + end).encode(encoding, "replace").decode(encoding))
    out.flush()
