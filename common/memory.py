"""Bounds KV memory by free memory, where a setting is `auto`. Both ends use the same rule."""

from __future__ import annotations

TARGET_SHARE = 0.5
"""Share of the free memory that a target's KV may take where other programs use the memory, too."""

DRAFT_SHARE = 0.25
"""Share of the free memory that a draft's KV may take. The device belongs to its user."""

LONGEST_TEXT = 2_000_000
"""Tokens of the longest prompt and text that the wire carries (`common.wire.bounds`)."""


def tokens_that_fit(kv_bytes: int, longest: int, least: int, free: int | None, share: float) -> int:
    """Return the tokens of KV memory that `auto` means: one text of `longest` tokens, and `least` in all.

    They take at most `share` of the `free` bytes, which are those beside the weights. `kv_bytes` are one
    token's keys and values over all layers; 0: the model has none. With `free` unknown (None, or 0 as
    `available_memory` says it) the result is `least`. Where nothing fits it is 0.
    """
    longest = min(longest, LONGEST_TEXT)  # a model's file may say any number
    if not kv_bytes:
        return max(longest, least)
    if not free:
        return least
    return min(max(longest, least), max(0, int(share * free)) // kv_bytes)
