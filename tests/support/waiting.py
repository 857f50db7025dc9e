"""Waits for what announces nothing."""

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object], patience: float = 60.0, pause: float = 0.005) -> None:
    """Turn the event loop until something holds, for `patience` seconds at most."""
    async with asyncio.timeout(patience):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(pause)
