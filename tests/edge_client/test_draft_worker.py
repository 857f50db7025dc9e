"""A worker ends after the draft step under way, without holding the event loop up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from common.errors import ForerunError
from common.sampling import SamplingParams
from edge_client.core.drafter import DraftRow, Expansion
from edge_client.core.effects import Expand, StartDrafter
from edge_client.draft_worker import DraftWorker
from tests.worlds.models import TinyDrafter


class Slow(TinyDrafter):
    """Waits in a draft step until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
        assert self.go_on.wait(60.0)
        return super().expand(rows)


async def test_closing_leaves_the_loop_live() -> None:
    drafter, answers = Slow(), list[Sequence[Expansion] | ForerunError]()
    worker = DraftWorker(drafter).__enter__()
    worker.submit(StartDrafter((1, 2, 3), 0, SamplingParams()))
    worker.expand(Expand((DraftRow(0, None, 3, 2),)), lambda outcome, _: answers.append(outcome))
    closing = asyncio.create_task(worker.close())
    await asyncio.sleep(0)
    assert not closing.done()
    drafter.go_on.set()
    await closing
    await asyncio.sleep(0)
    assert len(answers) == 1
