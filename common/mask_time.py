"""Limit the time that grammar masks take in steps, by delaying texts with expensive masks.

All texts of a target's step, or of a draft model's turn, wait while masks are made. A usual mask takes a
tenth of a millisecond, but a hostile grammar can need 20 ms for each, which would add up in every step. So a
step has at most one text with expensive ("dear") masks, with one row only. All such texts together take at
most `SHARE` of the time. Their content does not change; they come later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
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
"""Seconds between the first masks of two sessions with dear masks. So a session with a new grammar need not
wait for the debt of others' masks, which may be half a minute. With steps of 30 ms it is one step of 67."""

MAX_KNOWN = 256
"""Most grammars remembered as cheap, and most tenants whose masks are counted."""


@dataclass(slots=True)
class MaskCost:
    """Says what one session's masks cost. Only `MaskTime` changes it."""

    dear: bool = False
    known: bool = False  # its first masks have been made


class Masked(Protocol):
    """Describes a session for `MaskTime`."""

    @property
    def masks(self) -> MaskCost: ...

    @property
    def grammar(self) -> str:
        """The session's grammar; empty without one."""
        ...

    @property
    def tenant(self) -> str:
        """The session's tenant; tenants share the time for dear masks."""
        ...


Session = TypeVar("Session", bound=Masked)


class MaskTime:
    """Decides on the sessions that may have masks in a step. The caller uses `begin` for a new session,
    `let_in` when it plans a step, and `note` after the step.

    A session with an unknown grammar counts as dear until its first masks have been made. For these it waits
    at most `TRY_EVERY` behind each other session of that kind.
    """

    def __init__(self) -> None:
        self._cheap = OrderedDict[str, None]()  # grammars
        self._had = OrderedDict[str, float]()  # seconds of dear masks, by tenant
        self._next_at = 0.0  # seconds; when a session with dear masks may join a step again
        self._try_at = 0.0  # seconds; when a session with unknown masks may join in any case

    def begin(self, session: Masked) -> None:
        """Classify a session whose masks are not known yet."""
        session.masks.known = False
        session.masks.dear = bool(session.grammar) and session.grammar not in self._cheap

    def let_in(self, ready: list[Session], now: float) -> tuple[list[Session], float | None]:
        """Return the sessions of `ready` that may join the next step, in order, and when another one may. At
        most one session with dear masks joins: one of the tenant with the least mask time."""
        dear = [session for session in ready if session.masks.dear]
        for session in dear:
            if not session.masks.known:  # another session may have shown it meanwhile
                self.begin(session)
        dear = [session for session in dear if session.masks.dear]
        if not dear:
            return ready, None
        chosen, next_at = None, self._next_at
        if next_at > now and (new := [session for session in dear if not session.masks.known]):
            dear, next_at = new, min(next_at, self._try_at)
        if next_at <= now:
            chosen = min(dear, key=lambda session: self._had.get(session.tenant, 0.0))
        let = [session for session in ready if not session.masks.dear or session is chosen]
        return let, next_at if chosen is None else None

    def note(
        self, sessions: Mapping[int, Masked], costs: Mapping[int, float], now: float, duration: float
    ) -> None:
        """Note a step of `duration` seconds. Masks of its `sessions` took `costs`, seconds by key."""
        over = sum(costs.values()) - FREE - FREE_PART * duration
        for key, cost in sorted(costs.items(), key=lambda item: -item[1]):
            session = sessions[key]
            known = session.masks.known
            dear = session.masks.dear and known
            session.masks.known, session.masks.dear = True, cost > CHEAP and (dear or over > 0)
            if session.masks.dear:
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
