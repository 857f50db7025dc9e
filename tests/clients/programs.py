"""Starts programs of clients with no configuration but their test's."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from forerun.commands.launch import AGENTS, ModelAccess
from tests.clients.scripted import MODEL, NUM_SLOTS
from tests.conftest import program
from tests.edge_client.api.served import TOKEN

FOLDER = Path(__file__).parent
PATIENCE = 120.0
"""Seconds. Agents and some libraries take five to start."""

WORD = "plover"

IN_ITS_ENVIRONMENT = (
    sys.executable,
    *["-m", "uv", "run", "--offline", "--quiet", "--python"],
    sys.executable,
    "--script",
)
"""Words before a script that names its own packages. `make clients` has fetched them."""


def launch(agent: str, address: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the options and the environment of `forerun launch`."""
    start = AGENTS[agent].start(ModelAccess(f"http://{address}", MODEL, NUM_SLOTS))
    return tuple(start.options), {**start.environment, start.token_name: TOKEN}


async def output_of(home: Path, *words: str | Path, **environment: str) -> str:
    """Run a program until it ends. Return what it printed, which must be something."""
    running = await asyncio.create_subprocess_exec(
        *(program(str(words[0])) or words[0], *words[1:]),
        cwd=home,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "UV_CACHE_DIR": str(Path(sys.prefix) / "clients"),
            **environment,
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(running.communicate(), PATIENCE)
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    assert out, err.decode()
    return out.decode()
