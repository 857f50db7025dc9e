"""The drafter's thread: takes effects in order, hands the draft steps back to the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from common.errors import ForerunError, LocalError
from edge_client.core.drafter import NOTHING_READ, Drafter, Expansion, Reading, begin
from edge_client.core.effects import Expand, MoveTip, StartDrafter

logger = logging.getLogger(__name__)

Outcome = Sequence[Expansion] | ForerunError
Drafted = Callable[[Outcome, Reading], None]
"""Called with a draft step's expansions or its failure, and with what of the text it had to read."""

Job = tuple[StartDrafter | Expand | MoveTip, Drafted | None]


class Drafts(Protocol):
    """Where a generation's draft steps run."""

    def submit(self, effect: StartDrafter | MoveTip) -> None:
        """Carry it out before what is asked for later."""
        ...

    def expand(self, effect: Expand, on_drafted: Drafted) -> None:
        """Run a draft step. `on_drafted` is called later, in the thread of the event loop that runs now."""
        ...


class DraftWorker:
    """Owns a drafter for one session: it is called from this worker's one thread only. A context manager.

    Leaving it waits for the draft step under way; in an event loop, `await close()` instead. A context of
    llama.cpp that several sessions share belongs to a `DraftPool`.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="drafter", daemon=True)

    def __enter__(self) -> DraftWorker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)
        self._thread.join()

    async def close(self) -> None:
        """As leaving the context, without a pause of the event loop."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def submit(self, effect: StartDrafter | MoveTip) -> None:
        self._jobs.put((effect, None))

    def expand(self, effect: Expand, on_drafted: Drafted) -> None:
        """`on_drafted` is called in the running event loop's thread."""
        loop = asyncio.get_running_loop()

        def hand_back(outcome: Outcome, reading: Reading) -> None:
            try:
                loop.call_soon_threadsafe(on_drafted, outcome, reading)
            except RuntimeError:  # the loop was closed while the step ran: nobody waits for it
                logger.debug("x a draft step ended after its loop")

        self._jobs.put((effect, hand_back))

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
                    logger.warning("x drafting ends: %s", error)
                    outcome = failure = error
                except Exception as error:  # outermost frame of this thread: drafting ends, the text does not
                    logger.exception("! the drafter failed")
                    outcome = failure = LocalError(f"the drafter failed: {error}")
            if hand_back is not None:
                hand_back(outcome, NOTHING_READ if failure else self._drafter.reading)

    def _do(self, effect: StartDrafter | Expand | MoveTip) -> Sequence[Expansion]:
        match effect:
            case StartDrafter():
                begin(
                    self._drafter, effect.tokens, effect.tip, effect.sampling, effect.plain, effect.generated
                )
            case MoveTip():
                self._drafter.reroot(effect.change)
            case Expand():
                return self._drafter.expand(effect.rows)
        return ()
