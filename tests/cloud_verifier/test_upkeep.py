"""Laws of the look after files: each is looked at again, whatever came of the last look."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cloud_verifier import upkeep
from cloud_verifier.telemetry.trust import TENANT_LIMITS
from cloud_verifier.upkeep import Upkeep
from common.rpc.live_files import LiveFiles


async def test_a_look_that_fails_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of one reader must not end the renewal of everything for as long as the verifier runs."""
    monkeypatch.setattr(upkeep, "LOOK_EVERY", 0.0)
    path, taken = tmp_path / "n", asyncio.Event()
    path.write_text("1")

    def read() -> int:
        return 10 // int(path.read_text())

    files = LiveFiles("the number", (path,), read)
    looking = asyncio.create_task(Upkeep(None, {TENANT_LIMITS: files}, lambda name: taken.set()).run())
    path.write_text("000")
    async with asyncio.timeout(10):
        while files.num_reloads == 0:
            if files._mark[0][2] == 3:
                path.write_text("5 ")
            await asyncio.sleep(0)
        await taken.wait()
    assert files.value == 2
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
