"""A text by the draft model alone, without a verifier: its own, which need not be the target's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence

from common.errors import ForerunError, LocalError
from common.messages import FinishReason
from common.sampling import SamplingParams
from edge_client.core.drafter import DraftRow, Expansion, Reading, Reroot
from edge_client.core.effects import Expand, MoveTip, StartDrafter
from edge_client.core.stats import SessionStats
from edge_client.draft_worker import Drafts, Outcome


class DeviceGeneration:
    """Takes the drafter's best candidate again and again, one row a draft step: all that a user without a
    server has.

    Iterate over it for the tokens; after the loop `reason` says why it ended. The candidates are ranked under
    the session's noise, so this is sampling from the draft model with the parameters asked for. In `stats`
    every token counts as accepted, and no target step is taken. Raises, from the iteration, the
    `ForerunError` of a drafter that failed.
    """

    def __init__(
        self,
        drafts: Drafts,
        prompt: Sequence[int],
        sampling: SamplingParams,
        eos_ids: Collection[int],
        clock: Callable[[], float] = time.monotonic,
        text: Sequence[int] = (),
    ) -> None:
        """`text` is what the answer has already; it goes on behind that."""
        self.stats = SessionStats()
        self.reason: FinishReason | None = None
        self._drafts = drafts
        self._tokens = (*prompt, *text)
        self._num_text = len(text)
        self._sampling = sampling
        self._stop_ids = sampling.ends(eos_ids)
        self._clock = clock

    async def __aiter__(self) -> AsyncGenerator[int]:
        self._drafts.submit(StartDrafter(self._tokens, 0, self._sampling, generated=self._num_text))
        token, position = self._tokens[-1], len(self._tokens) - 1
        for tip in range(self._sampling.max_tokens - self._num_text):  # the tip's node id, too
            token = await self._next(DraftRow(tip, None, token, position + tip))
            self._drafts.submit(MoveTip(Reroot(((tip + 1, token),), ())))
            yield token
            if token in self._stop_ids:
                self.reason = FinishReason.STOP
                return
        self.reason = FinishReason.LENGTH

    async def _next(self, tip: DraftRow) -> int:
        """The draft's choice after the tip."""
        began = self._clock()
        (expansion,) = await self._expansions(tip)
        if not expansion.tokens:
            raise LocalError(f"the draft model offers nothing at position {tip.position + 1}")
        stats = self.stats
        stats.draft_time += self._clock() - began
        stats.draft_steps += 1
        stats.drafted += 1
        stats.committed += 1
        stats.accepted += 1
        return expansion.tokens[0]

    async def _expansions(self, row: DraftRow) -> Sequence[Expansion]:
        answer: asyncio.Future[Sequence[Expansion]] = asyncio.get_running_loop().create_future()

        def on_drafted(outcome: Outcome, _: Reading) -> None:
            if answer.done():  # the user stopped while the step ran
                return
            if isinstance(outcome, ForerunError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        self._drafts.expand(Expand((row,)), on_drafted)
        return await answer
