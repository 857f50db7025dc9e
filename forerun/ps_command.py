"""`forerun ps`: the texts that the running daemon writes now."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from edge_client.local_client import connect
from forerun.daemon_table import as_json, look, rows
from forerun.edge_places import add_json, add_place, places


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "ps",
        help="list the texts that the running daemon writes now",
        description="Lists the texts that the running daemon writes now: of each its client, who writes, how "
        "fast, and how much of it was drafted here. Paces are means since each began.",
    )
    add_place(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    now = look(connect(places(options).daemon), time.monotonic())
    if options.json:
        print(json.dumps(as_json(now), indent=1))
        return 0
    print("\n".join(rows(now)) if now.texts else "nothing is written now")
    if now.waiting:
        print(f"{now.waiting} waiting")
    return 0
