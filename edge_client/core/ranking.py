"""Which of several verifiers a session goes to, each time that it opens a stream.

Pure: `now` (seconds, monotonic) and chances come in as arguments. Near verifiers come first; among those that
are as near as the nearest, rendezvous hashing (Thaler & Ravishankar, "Using Name-Based Mappings to Increase
Hit Rates", 1998) of the session's key decides. So a session comes back to where its text is cached, a
verifier that goes moves its own sessions only, and one that comes takes its share and no more; nobody need
know of the others.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

NEAR, NEAR_SHARE = 0.010, 0.25
"""Seconds, and share of the shortest round trip, by which a verifier may be farther than the nearest and
count as near: the larger of both. Less is the scatter of probes among busy verifiers, drafts go ahead of it,
and whoever goes elsewhere for it has his prompt read anew, which takes longer."""

FIRST_DEMERIT, LONGEST_DEMERIT = 2.0, 60.0
"""Seconds for which a session passes over a verifier that failed it; doubles with every failure in a row."""

HEAD = 64
"""Tokens of a prompt that decide where it goes: more than a template's own beginning, and no more than the
first turn of a chat has."""

SPREAD = 0.25
"""Share of that which is added by chance, so that a crowd does not come back at once."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A verifier as one probe after the other has shown it."""

    name: str  # the address; all devices that name it alike prefer it for the same sessions
    ready: bool = True  # it answers, is not draining, and has room
    fits: bool | None = None  # its token table and its protocol are ours; None: nobody knows yet
    rtt: float | None = None  # seconds; None: not measured


class Demerits:
    """Which verifiers have just failed one session, and until when it passes over them."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._in_a_row: dict[str, int] = {}

    def failed(self, name: str, now: float, chance: float, retry_after: float | None = None) -> None:
        """A stream there was lost, or refused: for `retry_after` seconds at least. `chance` in [0, 1)."""
        count = self._in_a_row[name] = self._in_a_row.get(name, 0) + 1
        lasts = min(LONGEST_DEMERIT, FIRST_DEMERIT * 2.0 ** min(count - 1, 16))
        lasts = max(lasts, min(retry_after or 0.0, LONGEST_DEMERIT))
        self._until[name] = now + lasts * (1.0 + SPREAD * chance)

    def forget(self, name: str) -> None:
        """Text came from there, or it is another one by now."""
        self._until.pop(name, None)
        self._in_a_row.pop(name, None)

    def passed_over(self, now: float) -> frozenset[str]:
        """Those that are not to be asked while another is there."""
        return frozenset(name for name, until in self._until.items() if now < until)


def key_of(device: str, prompt: Sequence[int]) -> str:
    """By which the verifier of a text is chosen: 32 hex digits. Texts of one device that begin alike, as the
    turns of a chat do, have the same, so that each finds the KV of the one before it. Nobody who does not
    know `device` can tell from it how a text begins."""
    head = ",".join(map(str, prompt[:HEAD]))
    return blake2b(
        head.encode(), key=blake2b(device.encode(), digest_size=16).digest(), digest_size=16
    ).hexdigest()


def choose(key: str, candidates: Sequence[Candidate], passed_over: Container[str]) -> Candidate | None:
    """Where the session's next stream goes; None if no candidate fits.

    The first of these that there is: ready and not passed over, ready, not passed over, any. A verifier that
    is known to be unfit gets no session, and so no prompt: rule 17 of docs/protocol.md.
    """
    fitting = [each for each in candidates if each.fits is not False]
    kinds = (
        [each for each in fitting if each.ready and each.name not in passed_over],
        [each for each in fitting if each.ready],
        [each for each in fitting if each.name not in passed_over],
        fitting,
    )
    found = next((kind for kind in kinds if kind), [])
    return max(nearest(found), key=lambda each: weight(key, each.name), default=None)


def has_another(candidates: Iterable[Candidate], passed_over: Container[str]) -> bool:
    """Whether a stream that is opened now has a fair chance."""
    return any(each.ready and each.fits is not False and each.name not in passed_over for each in candidates)


def nearest(candidates: Sequence[Candidate]) -> list[Candidate]:
    """All that are as near as the nearest. Those not measured count only among themselves."""
    measured = [each.rtt for each in candidates if each.rtt is not None]
    if not measured:
        return list(candidates)
    best = min(measured)
    limit = best + max(NEAR, NEAR_SHARE * best)
    return [each for each in candidates if each.rtt is not None and each.rtt <= limit]


def weight(key: str, name: str) -> int:
    """How much a session of this key prefers that verifier: 64 bits that depend on both and on nothing
    else."""
    return int.from_bytes(blake2b(f"{key}\0{name}".encode(), digest_size=8).digest(), "big")
