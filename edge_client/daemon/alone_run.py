"""A text by the draft model alone, as `Answer` takes it: nothing but guesses, which nobody will confirm."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

from common.messages import FinishReason
from edge_client.alone import DeviceGeneration
from edge_client.core.effects import Preview
from edge_client.core.stats import SessionStats
from edge_client.generation import Shown, Traffic


class AloneRun:
    """Args: generation, new; start, the position of its first token."""

    def __init__(self, generation: DeviceGeneration, start: int) -> None:
        self.traffic = Traffic()
        self.verifier = ""  # there is none
        self.reason: FinishReason | None = None
        self._generation = generation
        self._start = start

    @property
    def stats(self) -> SessionStats:
        """Its draft steps; nothing was proposed to anybody, and nothing accepted."""
        own = self._generation.stats
        return SessionStats(draft_steps=own.draft_steps, drafted=own.drafted, draft_time=own.draft_time)

    @property
    def rtts(self) -> Sequence[float]:
        return ()

    @property
    def streaming_time(self) -> float:
        return 0.0

    async def shown(self) -> AsyncGenerator[Shown]:
        """The text, token by token."""
        position = self._start
        async with contextlib.aclosing(aiter(self._generation)) as tokens:
            async for token in tokens:
                yield Preview(position, (token,))
                position += 1
        self.reason = self._generation.reason
