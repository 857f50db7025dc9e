"""Define what the scheduler and its driver ask of a drafter of the verifier's own (docs/schemes.md).

Between two steps the engine may guess how texts go on. The guesses are nodes of the sessions' trees like the
edge's: the same noise, the same budget of rows and the same commit walk, so they never change a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cloud_verifier.core.engine_protocol import GuessPlan, GuessResult
from cloud_verifier.core.ledger import VerifierCounters
from cloud_verifier.core.verify_session import StepProgress, VerifySession
from common.calibration import Beliefs
from common.errors import LocalError
from common.offers import offer

GROUP = "forerun.own_drafters"


class OwnDrafter(Protocol):
    """Plans the guesses of all sessions, and learns what they win.

    The driver runs the plans of `VerifyScheduler.next_guess`, and then calls `on_guessed` or `on_failed`. The
    scheduler calls all else.
    """

    beliefs: Beliefs  # about the guesses of sessions that begin
    is_due: bool  # a step has ended since guesses were last planned
    time_spent: float  # seconds of guesses since the last step

    @property
    def is_running(self) -> bool:
        """Whether guesses are under way. No step begins until they have ended."""

    @property
    def takes_turns(self) -> bool:
        """Whether the next step should wait for a plan of guesses."""

    def begin(self, session: VerifySession) -> None:
        """Prepare for the guesses of a new session."""

    def end(self, session: VerifySession) -> None:
        """Forget a session that has ended."""

    def plan(self, ready: Sequence[VerifySession], bare: float, now: float) -> GuessPlan | None:
        """Return what to guess before the next step, or None. The step's tips alone take `bare` seconds."""

    def on_guessed(self, result: GuessResult, ended_at: float) -> None:
        """Grow the trees of the sessions that are still there by the guesses, which ended at that time."""

    def on_failed(self) -> None:
        """Ask for no more guesses: the engine's drafter has failed."""

    def settle(self, parts: Sequence[StepProgress], time: float, row_price: float, has_next: bool) -> None:
        """Learn what guesses have won in a finished step.

        Args: time and row_price, which `DraftBudget.settle` returned; has_next, whether the engine has begun
        the next step without guesses.
        """


def own_drafter(depth: int, counters: VerifierCounters) -> OwnDrafter | None:
    """Return what plans guesses of `depth` levels; None without any. An installed package offers it as an
    entry point, as `schemes` does. Raises `LocalError` if none does."""
    if not depth:
        return None
    missing = LocalError("the engine has a drafter, and no installed package plans its guesses")
    make: Callable[[int, VerifierCounters], OwnDrafter] = offer(GROUP, "guessing", missing)
    return make(depth, counters)
