"""What is known of a verifier, for people and status pages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from edge_client.held import Held


class Health(Enum):
    """Of one verifier, as an edge sees it."""

    ASKED = "asked"  # for the first time; it has not answered yet
    READY = "ready"
    FULL = "full"  # it has as many sessions as it takes
    DRAINING = "draining"  # it goes away
    UNFIT = "unfit"  # its tokens or its protocol are others
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class VerifierStatus:
    """One verifier now. Times in seconds; None and empty where it has not been told."""

    address: str
    health: Health
    why: str  # a sentence
    lasts: float  # that it has been so
    latest_rtt: float | None = None
    min_rtt: float | None = None
    smoothed_rtt: float | None = None
    model: str = ""
    version: str = ""
    fits: bool | None = None  # its token table is ours
    num_sessions: int | None = None  # of all edges
    max_sessions: int | None = None
    num_streams: int = 0  # of this edge
    last_error: str = ""  # also of one that is well again
    held: Held | None = None  # the privacy of the newest stream there
