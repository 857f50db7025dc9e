"""Writes a text by the draft model alone, without a verifier. The target might write another text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence

from common.errors import ForerunError, LocalError
from common.messages import FinishReason
from common.sampling import SamplingParams
from edge_client.core.effects import (
    DraftRow,
    Expand,
    Expansion,
    MoveTip,
    Outcome,
    Preview,
    ReadingTime,
    Reroot,
    SessionStats,
    StartDrafter,
    Traffic,
)
from edge_client.draft.late_seat import Drafts


class AloneRun:
    """Takes the drafter's best candidate again and again, one row a draft step. A `SessionRun`.

    Iterate over `shown()`; after the loop `reason` says why the text ended. Every token is a preview that no
    target confirms. The candidates are ranked under the session's noise, so this is sampling from the draft
    model with the parameters asked for. Raises, from the iteration, the `ForerunError` of a drafter that
    failed.
    """

    verifier = ""
    rtts: Sequence[float] = ()
    streaming_time = 0.0

    def __init__(
        self,
        drafts: Drafts,
        prompt: Sequence[int],
        sampling: SamplingParams,
        eos_ids: Collection[int],
        clock: Callable[[], float] = time.monotonic,
        text: Sequence[int] = (),
    ) -> None:
        """Continue after `text`, the answer so far."""
        self.traffic = Traffic()
        self.stats = SessionStats()  # nothing is proposed, so nothing is accepted
        self.reason: FinishReason | None = None
        self._drafts = drafts
        self._tokens = (*prompt, *text)
        self._num_text = len(text)
        self._sampling = sampling
        self._stop_ids = sampling.ends(eos_ids)
        self._clock = clock

    async def shown(self) -> AsyncGenerator[Preview]:
        """Yield the text, token by token."""
        self._drafts.submit(StartDrafter(self._tokens, 0, self._sampling, generated=self._num_text), _ignored)
        token, position = self._tokens[-1], len(self._tokens) - 1
        for tip in range(self._sampling.max_tokens - self._num_text):  # the tip's node id, too
            token = await self._next(DraftRow(tip, None, token, position + tip))
            self._drafts.submit(MoveTip(Reroot(((tip + 1, token),), ())), _ignored)
            yield Preview(position + tip + 1, (token,))
            if token in self._stop_ids:
                self.reason = FinishReason.STOP
                return
        self.reason = FinishReason.LENGTH

    async def _next(self, tip: DraftRow) -> int:
        """Return the draft's choice after the tip."""
        answer: asyncio.Future[Sequence[Expansion]] = asyncio.get_running_loop().create_future()

        def on_drafted(outcome: Outcome, _: ReadingTime) -> None:
            if answer.done():  # the user stopped while the step ran
                return
            if isinstance(outcome, ForerunError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        began = self._clock()
        self._drafts.submit(Expand((tip,)), on_drafted)
        (expansion,) = await answer
        if not expansion.tokens:
            raise LocalError(f"the draft model offers nothing at position {tip.position + 1}")
        self.stats.draft_time += self._clock() - began
        self.stats.draft_steps += 1
        self.stats.drafted += 1
        return expansion.tokens[0]


def _ignored(outcome: Outcome, reading: ReadingTime) -> None:
    """Only a draft step has an outcome."""
