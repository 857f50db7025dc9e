"""Ranks verifiers and chooses one for each stream of a session.

Verifiers at which a text would be fast come first, of these the near ones. Among equals, rendezvous hashing
of the session's key decides (Thaler & Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998).
So a session returns to the verifier that caches its text, and a verifier that comes or goes moves its own
share only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

FAST_SHARE = 0.5
"""A verifier counts as fast if its predicted time per token is at most this share above the best. Loads
change from probe to probe, and a text that moves has its prompt read anew, so a smaller gain moves none."""

USUAL_TURN = 0.030
"""Seconds assumed of a verifier that does not tell its turn, as of a session's first."""

MOST_RIGHT = 0.98
"""The highest acceptance believed: the newest text may have been all foreseen, which the next need not be."""

NEAR, NEAR_SHARE = 0.010, 0.25
"""A verifier within this many seconds, or this share, of the shortest round trip counts as near (the larger
holds). Smaller differences are noise of probes, and cost less than reading a prompt anew."""

FIRST_DEMERIT, LONGEST_DEMERIT = 2.0, 60.0
"""Seconds for which a session passes over a verifier that failed it; each failure in a row doubles it."""

HEAD = 64
"""Tokens of a prompt that decide its verifier: more than a template's beginning, less than a chat's first
turn."""

SPREAD = 0.25
"""Random share added to a demerit, so that many edges do not come back at once."""


@dataclass(frozen=True, slots=True)
class VerifierCandidate:
    """Describes a verifier by its latest probe."""

    name: str  # the address; all devices that name it alike prefer it for the same sessions
    ready: bool = True  # it answers, is not draining, and has room
    fits: bool | None = None  # its token table and its protocol are ours; None: not known yet
    rtt: float | None = None  # seconds; None: not measured
    turn: float | None = None  # seconds that one session more would wait for its tokens there; None: not told


def target_name(model: str) -> str:
    """Return a target's name without local folders. Ids of the hub stay unchanged."""
    return model.rstrip("/").rpartition("/")[2] if model.startswith(("/", ".", "~")) else model


def common_target(served: Sequence[tuple[str, bool]]) -> str:
    """Return the target of verifiers that are used as one; empty if none is known.

    `served` holds, in the order of configuration, the name of each verifier's target and whether the verifier
    answers now. A name that a verifier answers with goes before others, so an update that renames a target
    leaves no gap. Of such names that of the most verifiers is taken, and of equals the first.
    """
    answering, counts = Counter[str](), Counter[str]()
    for name, answers in served:
        answering[name] += answers
        counts[name] += 1
    return max(counts, key=lambda name: (answering[name] > 0, counts[name]), default="")


@dataclass(frozen=True, slots=True)
class DraftSkill:
    """Describes what a session's drafts are worth: how many are right, and how fast they come."""

    acceptance: float = 0.7  # share of draft tokens that the target takes
    step_time: float = 0.005  # seconds of a draft step


NO_DRAFT = DraftSkill(0.0)


def token_time(rtt: float, turn: float, skill: DraftSkill) -> float:
    """Return the predicted seconds per token of a session that drafts ahead.

    A turn brings one token by the verifier, and the drafts below it if its path is still right when they
    arrive. They are then as many positions ahead as the text grows in a round trip:

        tokens = 1 + (a + a^2 + ... + a^n) a^(tokens rtt / turn),   n = turn / draft step - 1

    One draft step is lost to news that comes in its midst. A test compares this with the simulator.
    """
    right = min(skill.acceptance, MOST_RIGHT)
    steps = max(0.0, turn / max(skill.step_time, 1e-6) - 1.0)
    most = right * (1.0 - right**steps) / (1.0 - right)
    low, high = 1.0, 1.0 + most  # the right side of the equation falls
    for _ in range(20):
        tokens = 0.5 * (low + high)
        if 1.0 + most * right ** (tokens * rtt / turn) > tokens:
            low = tokens
        else:
            high = tokens
    return turn / low


class Demerits:
    """Records which verifiers have just failed one session, and until when it passes over them."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._in_a_row: dict[str, int] = {}

    def failed(self, name: str, now: float, chance: float, retry_after: float | None = None) -> None:
        """Book a lost or refused stream, for at least `retry_after` seconds. `chance` lies in [0, 1)."""
        count = self._in_a_row[name] = self._in_a_row.get(name, 0) + 1
        lasts = min(LONGEST_DEMERIT, FIRST_DEMERIT * 2.0 ** min(count - 1, 16))
        lasts = max(lasts, min(retry_after or 0.0, LONGEST_DEMERIT))
        self._until[name] = now + lasts * (1.0 + SPREAD * chance)

    def forget(self, name: str) -> None:
        """Clear the demerits of a verifier that sent text or was replaced."""
        self._until.pop(name, None)
        self._in_a_row.pop(name, None)

    def passed_over(self, now: float) -> frozenset[str]:
        """Return the verifiers to avoid while another is there."""
        return frozenset(name for name, until in self._until.items() if now < until)


def key_of(device: str, prompt: Sequence[int]) -> str:
    """Return the key that chooses a text's verifier: 32 hex digits. Texts of one device that begin alike,
    such as the turns of a chat, have the same key. Without `device` the key reveals nothing of the text."""
    head = ",".join(map(str, prompt[:HEAD]))
    return blake2b(
        head.encode(), key=blake2b(device.encode(), digest_size=16).digest(), digest_size=16
    ).hexdigest()


def choose(
    key: str,
    candidates: Sequence[VerifierCandidate],
    passed_over: Container[str],
    skill: DraftSkill = NO_DRAFT,
) -> VerifierCandidate | None:
    """Choose the verifier of the session's next stream; None if no candidate fits.

    The first kind that exists wins: ready and not passed over, ready, not passed over, any. A verifier that
    is known to be unfit gets no session and no prompt (rule 17 of docs/protocol.md).
    """
    fitting = [each for each in candidates if each.fits is not False]
    kinds = (
        [each for each in fitting if each.ready and each.name not in passed_over],
        [each for each in fitting if each.ready],
        [each for each in fitting if each.name not in passed_over],
        fitting,
    )
    group = next((kind for kind in kinds if kind), [])
    weights = {each.name: blake2b(f"{key}\0{each.name}".encode(), digest_size=8).digest() for each in group}
    return max(best(group, skill), key=lambda each: weights[each.name], default=None)


def has_another(candidates: Iterable[VerifierCandidate], passed_over: Container[str]) -> bool:
    """Return whether a stream opened now has a fair chance."""
    return any(each.ready and each.fits is not False and each.name not in passed_over for each in candidates)


def best(candidates: Sequence[VerifierCandidate], skill: DraftSkill) -> list[VerifierCandidate]:
    """Return all candidates that are about as fast as the fastest, and of these all that are about as near as
    the nearest. Candidates without a measured round trip count only among themselves."""
    measured = [(each, each.rtt) for each in candidates if each.rtt is not None]
    if not measured:
        return list(candidates)
    times = [token_time(rtt, each.turn or USUAL_TURN, skill) for each, rtt in measured]
    longest = (1.0 + FAST_SHARE) * min(times)
    fast = [candidate for candidate, time in zip(measured, times, strict=True) if time <= longest]
    shortest = min(rtt for _, rtt in fast)
    limit = shortest + max(NEAR, NEAR_SHARE * shortest)
    return [each for each, rtt in fast if rtt <= limit]


# How long to wait until a verifier is asked again whether it is there.

SOON, IN_USE = 0.25, 5.0
"""Seconds between probes while a session needs a verifier: first after a failure, and in normal use."""

LONGEST_IN_USE = 2.0
"""The longest pause in seconds after failures while a user waits."""

IDLE, LONGEST_IDLE = 30.0, 300.0
"""Seconds between probes while idle, the greatest age of a status page; the device sleeps meanwhile."""

PAUSE_SPREAD = 0.25
"""The share by which a pause may be shorter or longer, so that devices do not probe in step."""


def pause(failures: int, idle: int, chance: float) -> float:
    """Return the seconds until the next probe, after `failures` in a row and `idle` unneeded probes in a row.
    `chance` lies in [0, 1)."""
    if idle:
        first = SOON if failures else IDLE
        wait = min(LONGEST_IDLE, first * 2.0 ** min(failures or idle - 1, 16))
    else:
        wait = min(LONGEST_IN_USE, SOON * 2.0 ** min(failures - 1, 16)) if failures else IN_USE
    return wait * (1.0 - PAUSE_SPREAD + 2.0 * PAUSE_SPREAD * chance)
