"""Laws of the look after files: each is looked at again, whatever came of the last look."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_verifier.server import lifecycle
from cloud_verifier.server.lifecycle import Lifecycle
from cloud_verifier.telemetry.monitor import DENIED
from tests.cloud_verifier.telemetry.desk import make


async def test_a_look_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of one reader must not end the renewal of everything for as long as the verifier runs."""
    monkeypatch.setattr(lifecycle, "LOOK_EVERY", 0.0)
    taken = asyncio.Event()

    class Files:
        looks = 0

        def refresh(self) -> bool:
            self.looks += 1
            return 1 / (self.looks - 1) < 1.0  # the first look fails, the third finds another value

    service: Any = SimpleNamespace(turn_away=taken.set)
    files: Any = {DENIED: Files()}
    looking = asyncio.create_task(Lifecycle(make(), service, files=files).keep_looking())
    async with asyncio.timeout(10):
        await taken.wait()
    assert files[DENIED].looks == 3
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
