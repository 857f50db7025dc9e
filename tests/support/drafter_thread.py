"""A drafter of a test in a thread of its own, as the `Drafts` of one generation after another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from queue import SimpleQueue

from common.errors import ForerunError, LocalError
from edge_client.core.effects import (
    NOTHING_READ,
    Drafted,
    DraftEffect,
    Expand,
    Expansion,
    MoveTip,
    Outcome,
    ReadingTime,
    StartDrafter,
)
from tests.worlds.models import begin
from training.session_drafter import SessionDrafter

Job = tuple[DraftEffect, Drafted | None]


class DrafterThread:
    """A context manager. Leaving it waits for the draft step under way."""

    def __init__(self, drafter: SessionDrafter) -> None:
        self._drafter = drafter
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="drafter", daemon=True)

    def __enter__(self) -> DrafterThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)
        self._thread.join()

    def submit(self, effect: DraftEffect, on_drafted: Drafted) -> None:
        loop = asyncio.get_running_loop()

        def hand_back(outcome: Outcome, reading: ReadingTime) -> None:
            loop.call_soon_threadsafe(on_drafted, outcome, reading)

        self._jobs.put((effect, hand_back if isinstance(effect, Expand) else None))

    def _run(self) -> None:
        failure: ForerunError | None = None  # since the last StartDrafter
        while (job := self._jobs.get()) is not None:
            effect, hand_back = job
            if isinstance(effect, StartDrafter):
                failure = None
            outcome: Outcome = failure or ()
            if failure is None:
                try:
                    outcome = self._do(effect)
                except ForerunError as error:
                    outcome = failure = error
                except Exception as error:  # noqa: BLE001  as a `DraftPool` does
                    outcome = failure = LocalError(f"the drafter failed: {error}")
            if hand_back is not None:
                hand_back(outcome, NOTHING_READ if failure else self._drafter.reading)

    def _do(self, effect: DraftEffect) -> Sequence[Expansion]:
        match effect:
            case StartDrafter():
                start = effect.tokens, effect.tip, effect.sampling, effect.plain, effect.generated
                begin(self._drafter, *start)
            case MoveTip():
                self._drafter.reroot(effect.change)
            case Expand():
                return self._drafter.expand(effect.rows)
        return ()
