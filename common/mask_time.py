"""What masks of grammars cost a step, and texts that wait because theirs cost much.

Masks are made while all texts of a step wait: of a target's step, or of a draft model's turn. Usual ones take
a tenth of a millisecond. A grammar can be written so that each mask takes 20 ms, and the masks of all such
texts would add up in every step. So a step has one text with dear masks at most, with one row only. All such
texts together take at most `SHARE` of the time. They stay the same, and come later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Protocol, TypeVar

CHEAP = 0.002
"""Seconds in one step up to which a session's masks are never dear."""

FREE, FREE_PART = 0.005, 0.25
"""No masks are dear while those of a step take less than so many seconds and this part of its duration."""

SHARE = 0.05
"""Share of the time for sessions with dear masks. Of steps that take s seconds, those with such masks of c
seconds are the share s * SHARE / c. So the 95th percentile of steps stays below 3 s: where c is above 2 s,
they are one step of forty at most."""

TRY_EVERY = 2.0
"""Seconds after dear first masks of a session at which another one may have its first. So a session with a
new grammar does not wait for what the masks of others owe, which may be half a minute. With steps of 30 ms it
is one step of 67."""

MAX_KNOWN = 256
"""Grammars whose masks are known to be cheap, and tenants whose masks are counted."""


class Masked(Protocol):
    """A session. `MaskTime` sets whether its masks are dear, and whether they are known."""

    dear_masks: bool
    masks_known: bool

    @property
    def grammar(self) -> str:
        """Empty if it has none."""
        ...

    @property
    def tenant(self) -> str:
        """Dear masks are shared out by it."""
        ...


Session = TypeVar("Session", bound=Masked)


class MaskTime:
    """`begin` for a session that begins, `let_in` as a step is planned, `note` when it is over.

    A session with a grammar that is not known counts as dear until its first masks have been made. For these
    it waits `TRY_EVERY` at most behind each other session of that kind.
    """

    def __init__(self) -> None:
        self._cheap = OrderedDict[str, None]()  # grammars
        self._had = OrderedDict[str, float]()  # seconds of dear masks, by tenant
        self._next_at = 0.0  # seconds; when a session with dear masks may join a step again
        self._try_at = 0.0  # seconds; when one whose masks are not known may in any case

    def begin(self, session: Masked) -> None:
        """No mask of the session has been made."""
        session.masks_known = False
        session.dear_masks = bool(session.grammar) and session.grammar not in self._cheap

    def let_in(self, ready: list[Session], now: float) -> tuple[list[Session], float | None]:
        """The sessions of `ready` that may be in the next step, in the same order; and when one of the others
        may be. Of the sessions with dear masks one may: of the tenant whose masks have taken least."""
        dear = [session for session in ready if session.dear_masks]
        for session in dear:
            if not session.masks_known:  # another session may have shown it meanwhile
                self.begin(session)
        dear = [session for session in dear if session.dear_masks]
        if not dear:
            return ready, None
        chosen, next_at = None, self._next_at
        if next_at > now and (new := [session for session in dear if not session.masks_known]):
            dear, next_at = new, min(next_at, self._try_at)
        if next_at <= now:
            chosen = min(dear, key=lambda session: self._had.get(session.tenant, 0.0))
        let = [session for session in ready if not session.dear_masks or session is chosen]
        return let, next_at if chosen is None else None

    def note(
        self, sessions: Mapping[int, Masked], costs: Mapping[int, float], now: float, duration: float
    ) -> None:
        """A step of `duration` seconds is over. Masks of its `sessions` took `costs`, seconds by key."""
        over = sum(costs.values()) - FREE - FREE_PART * duration
        for key, cost in sorted(costs.items(), key=lambda item: -item[1]):
            session = sessions[key]
            known = session.masks_known
            dear = session.dear_masks and known
            session.masks_known, session.dear_masks = True, cost > CHEAP and (dear or over > 0)
            if session.dear_masks:
                over -= cost
                self._charge(session, cost, now)
                if not known:
                    self._try_at = now + TRY_EVERY
            elif cost <= CHEAP:
                self._learn(session.grammar)

    def _charge(self, session: Masked, cost: float, now: float) -> None:
        self._cheap.pop(session.grammar, None)
        self._next_at = max(self._next_at, now) + cost / SHARE
        self._had[session.tenant] = self._had.get(session.tenant, 0.0) + cost
        self._had.move_to_end(session.tenant)
        if len(self._had) > MAX_KNOWN:
            self._had.popitem(last=False)

    def _learn(self, grammar: str) -> None:
        self._cheap[grammar] = None
        self._cheap.move_to_end(grammar)
        if len(self._cheap) > MAX_KNOWN:
            self._cheap.popitem(last=False)
