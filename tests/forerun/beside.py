"""Commands beside a daemon: a real API over the tiny verifier, found by its file as ever."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from edge_client.process import run_file as daemon_file
from edge_client.process.run_file import this_process
from forerun.cli import main
from tests.edge_client.api.served import TOKEN, Served, served


def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands look from now on. There is no daemon yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    folder = tmp_path / "forerun"
    folder.mkdir(exist_ok=True)
    return folder


def announce(state: Path, address: str) -> None:
    """As a daemon does that is ready."""
    token = state / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    record = this_process(started_at=0.0, listen=address, version="1.2.3", token_file=str(token))
    daemon_file.write(state / "edge.pid", record)


@contextlib.asynccontextmanager
async def daemon(state: Path, step_time: float = 0.0, **more: Any) -> AsyncIterator[Served]:
    """One that runs until the block ends."""
    async with served(step_time=step_time, **more) as found:
        announce(state, found.address)
        yield found
    (state / "edge.pid").unlink()


async def command(*words: str) -> int:
    """A command, in a thread: it blocks, and the daemon lives in this loop."""
    return await asyncio.to_thread(main, list(words))
