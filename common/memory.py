"""Bounds KV memory by this machine's free memory, where a setting is `auto`. Both ends use the same rule."""

from __future__ import annotations

VERIFIER_SHARE = 0.5
"""Share of the free memory that a target's KV may take where other programs use the memory, too."""

DRAFT_SHARE = 0.25
"""Share of the free memory that a draft's KV may take. The device belongs to its user."""


def slots_that_fit(
    slot_bytes: int, longest: int, free: int | None, *, least: int, share: float = VERIFIER_SHARE
) -> int:
    """Return the KV slots of `auto`: enough for one text of `longest` tokens and for `least` tokens in all.

    They take at most `share` of the `free` bytes, beside the weights, with `slot_bytes` for one token's keys
    and values over all layers (0: the model has none). With `free` unknown (None, or 0 as
    `available_memory` reports it) the result is `least`. Where nothing fits it is 0.
    """
    if not slot_bytes:
        return max(longest, least)
    if not free:
        return least
    return min(max(longest, least), max(0, int(share * free)) // slot_bytes)
