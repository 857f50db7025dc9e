"""The texts of a load: prompts that share no beginning, and what the target writes after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from common.errors import UserError

SHORTEST = 16
"""Tokens of a prompt at least, where it is cut."""

LONGEST_CUT = 7
"""Tokens, at most, that one prompt lacks of the one it was cut from."""


@dataclass(frozen=True, slots=True)
class Text:
    """`reference` is what the target wrote without drafts; empty until that is known."""

    number: int
    prompt: tuple[int, ...]
    reference: tuple[int, ...] = ()

    @property
    def whole(self) -> tuple[int, ...]:
        return self.prompt + self.reference

    def written(self, reference: Sequence[int]) -> Text:
        return replace(self, reference=tuple(reference))

    def as_json(self) -> list[Any]:
        return [self.number, self.prompt, self.reference]

    @classmethod
    def from_json(cls, found: Sequence[Any]) -> Self:
        number, prompt, reference = found
        return cls(number, tuple(prompt), tuple(reference))


def prompts_of(tokens: Sequence[Sequence[int]], count: int) -> list[tuple[int, ...]]:
    """`count` prompts, all different: first the given ones, then the same without their first tokens.

    No two begin alike, else a verifier that keeps prefixes would read most of them once: what that is worth
    is another question. Raises `UserError` if the prompts are too short for so many.
    """
    shortest, cuts = min(map(len, tokens)), -(-count // len(tokens)) - 1
    step = min(LONGEST_CUT, (shortest - SHORTEST) // cuts) if cuts else 0
    if cuts and step < 1:
        raise UserError(
            f"{len(tokens)} prompts of {shortest} tokens or more do not make {count} different ones; give "
            "more with --prompts, or ask for fewer sessions"
        )
    return [tuple(tokens[place % len(tokens)][step * (place // len(tokens)) :]) for place in range(count)]


def first_difference(written: Sequence[int], reference: Sequence[int]) -> int | None:
    """Number of the first token that is not the reference's, counted from 0; None if all are."""
    for place, (token, right) in enumerate(zip(written, reference, strict=False)):
        if token != right:
            return place
    return None if len(written) == len(reference) else min(len(written), len(reference))
