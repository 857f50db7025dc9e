"""How long to wait until a verifier is asked again whether it is there. Pure; seconds."""

from __future__ import annotations

SOON, IN_USE = 0.25, 5.0
"""While somebody needs a verifier: at first after one that failed, and while all is well."""

LONGEST_IN_USE = 2.0
"""After a verifier that failed, however often: who waits for it should not wait for the next question,
too."""

IDLE, LONGEST_IDLE = 30.0, 300.0
"""While nobody does. A status page is that old at worst; a radio sleeps meanwhile, and so does the
processor."""

SPREAD = 0.25
"""Share by which a pause may be shorter or longer, so that devices do not ask in step."""


def pause(failures: int, idle: int, chance: float) -> float:
    """Until the next question, after `failures` in a row without an answer and `idle` in a row for nobody; 0
    if somebody needs it. `chance` in [0, 1)."""
    if idle:
        first = SOON if failures else IDLE
        wait = min(LONGEST_IDLE, first * 2.0 ** min(failures or idle - 1, 16))
    else:
        wait = min(LONGEST_IN_USE, SOON * 2.0 ** min(failures - 1, 16)) if failures else IN_USE
    return wait * (1.0 - SPREAD + 2.0 * SPREAD * chance)
