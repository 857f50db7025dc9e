"""A device in a process of its own, to be killed: PORT FOLDER KEY. Prints a line when it is connected."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from edge_client.fleet.fleet import Fleet
from edge_client.fleet.settings import BrokerSettings, FleetSettings
from tests.edge_client.fleet.world import ABOUT, Daemon, until


async def main(port: str, folder: str, key: str) -> None:
    settings = FleetSettings(
        BrokerSettings("127.0.0.1", int(port), tls=False), "acme", "pi-1", Path(folder), (bytes.fromhex(key),)
    )
    fleet = Fleet(settings, ABOUT, Daemon().hooks)
    task = asyncio.create_task(fleet.run())
    await until(lambda: fleet.status().connected)
    sys.stdout.write("connected\n")
    sys.stdout.flush()
    await task


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
