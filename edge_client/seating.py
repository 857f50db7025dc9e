"""Which free seat a new text gets: the one whose kept text it continues, and none that would lose more than
it gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_client.llama.session import num_equal


@dataclass(frozen=True, slots=True)
class Kept:
    """A free seat and the token ids that are evaluated there."""

    place: int
    text: Sequence[int]
    released_at: int  # count of releases


def best_place(prompt: Sequence[int], free: Sequence[Kept]) -> int:
    """The place for a text that begins with `prompt`; `free` is not empty.

    The longest prefix wins, of equal ones the seat that loses least of its own text. A seat that would lose
    more than the prefix saves is left to its own continuation while there is an empty one, and else the text
    that was released first is given up: any seat may share a prefix that another has (`LlamaSession.borrow`).
    """
    shared = {kept.place: num_equal(kept.text, prompt) for kept in free}
    worthy = [kept for kept in free if 2 * shared[kept.place] >= len(kept.text) > 0]
    if worthy:
        return max(worthy, key=lambda kept: (shared[kept.place], -len(kept.text))).place
    empty = [kept for kept in free if not kept.text]
    return min(empty or free, key=lambda kept: kept.released_at).place
