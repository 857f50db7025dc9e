"""Whether new sessions should come here, told to whoever sends them; those that are here are not meant."""

from __future__ import annotations

from dataclasses import dataclass

FULL, ROOMY = 0.02, 0.05
"""Share of KV slots that nobody has been promised: below the first nobody should be sent here, above the
second somebody may again. Between them it stays as it was, so that a full verifier does not come and go with
every session that ends."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What readiness is judged by."""

    draining: bool
    num_sessions: int
    max_sessions: int
    num_available: int  # slots that nobody has been promised
    num_slots: int


class Readiness:
    """Asked again and again with how things stand."""

    def __init__(self) -> None:
        self._full = False

    def why_not(self, standing: Standing) -> str:
        """Why nobody should be sent here, as a sentence; empty if somebody may."""
        share = standing.num_available / standing.num_slots
        self._full = share < (ROOMY if self._full else FULL)
        if standing.draining:
            return "it is draining: it goes away and takes no new sessions"
        if standing.num_sessions >= standing.max_sessions:
            return f"all {standing.max_sessions} sessions that it takes are here"
        if self._full:
            return f"{standing.num_available} of {standing.num_slots} KV slots are left to be promised"
        return ""
