"""A function of the training text: its source, examples that are computed, and the texts it appears in."""

from __future__ import annotations

import hashlib
import random
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

LINE_WIDTH: Final = 88
HELD_OUT_SHARE: Final = 50
"""One of so many combinations is never trained on."""

NUM_EXAMPLES: Final = 2
MOST_CANDIDATES: Final = 24
MOST_RESULT_CHARACTERS: Final = 60

Values: TypeAlias = Callable[[random.Random], Any]
"""Draws one argument."""


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function without a docstring. `combination` names everything that decides what its body computes; it
    is empty where the name alone does. One of `HELD_OUT_SHARE` combinations is not trained on if `holds_out`.
    `spoken` is the description as somebody would ask for it in a chat."""

    name: str
    parameters: str
    returns: str
    description: str
    body: str
    combination: str = ""
    holds_out: bool = True
    spoken: str = ""
    values: tuple[Values, ...] = ()

    @property
    def is_held_out(self) -> bool:
        """Return whether the combination is kept for evaluation."""
        digest = hashlib.sha256(self.combination.encode()).digest()
        return self.holds_out and bool(self.combination) and int.from_bytes(digest[:4]) % HELD_OUT_SHARE == 0

    @property
    def head(self) -> str:
        """Return the `def` line."""
        return f"def {self.name}({self.parameters}) -> {self.returns}:\n"

    @property
    def indented_body(self) -> str:
        return textwrap.indent(self.body, "    ") + "\n"

    @property
    def fits(self) -> bool:
        """Return whether no line is longer than `LINE_WIDTH`."""
        return all(len(line) < LINE_WIDTH for line in (self.head + self.indented_body).split("\n"))

    def prompt(self, rng: random.Random) -> str | None:
        """Return the `def` line and a docstring whose examples show what the body returns.

        None if there are not two examples with short and different results.
        """
        examples = self._examples(rng)
        if len(examples) < NUM_EXAMPLES:
            return None
        lines = [line for call, result in examples for line in (f"    >>> {call}", f"    {result}")]
        return "\n".join([self._begin(""), "", *lines, '    """', ""])

    @property
    def short_prompt(self) -> str:
        """Return the `def` line and a docstring without examples."""
        return self._begin('"""') + "\n"

    def _begin(self, end: str) -> str:
        words = textwrap.fill(
            f'"""{self.description}.{end}',
            LINE_WIDTH,
            initial_indent="    ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
        return self.head + words

    def _examples(self, rng: random.Random) -> list[tuple[str, str]]:
        namespace: dict[str, Any] = {}
        exec(self.head + self.indented_body, namespace)  # noqa: S102  # our own text, to see what it returns
        by_result: dict[str, str] = {}
        for _ in range(MOST_CANDIDATES):
            arguments = [draw(rng) for draw in self.values]
            call = f"{self.name}({', '.join(map(repr, arguments))})"
            try:
                result = repr(namespace[self.name](*arguments))
            except (ValueError, IndexError, ZeroDivisionError):  # no example of ours shows an error
                continue
            if result in by_result or result == "None" or len(result) > MOST_RESULT_CHARACTERS:
                continue
            if len(call) + 8 < LINE_WIDTH:
                by_result[result] = call
            if len(by_result) == NUM_EXAMPLES:
                break
        return [(escaped(call), escaped(result)) for result, call in by_result.items()]

    def request(self, rng: random.Random) -> str:
        """Return a comment that asks for the function, in one of the ways of a chat."""
        asked = self.spoken or self.description
        if rng.random() < 0.5:
            asked = asked.split(", or ")[0]
        if rng.random() < 0.5:
            asked = re.sub(r"\b(of|whether) n\b", r"\1 a number", asked).replace("whether", "if")
        asked = asked.replace(" in a list", rng.choice((" in a list", " in a list", " of a list", "")))
        verb, _, rest = asked.partition(" ")
        third = f"{verb.lower()}{'es' if verb.endswith('ch') else 's'} {rest}"
        return "# " + rng.choice(
            (
                f"{asked}.",
                f"{asked}.",
                asked,
                f"{verb.lower()} {rest}",
                f"Write a function that {third}.",
                f"Write a Python function that {third}.",
                f"I need a function that {third}.",
                f"Write a function to {verb.lower()} {rest}.",
                rest.removeprefix("the "),
            )
        )

    @property
    def bare_head(self) -> str:
        """Return the `def` line without types, as somebody in a hurry would type it."""
        names = ", ".join(part.partition(":")[0] for part in parameters_of(self.parameters))
        return f"def {self.name}({names}):\n"


def parameters_of(declared: str) -> list[str]:
    """Split `a: dict[str, int], b: int` at the commas between parameters."""
    return re.split(r", (?=\w+:)", declared)


def escaped(line: str) -> str:
    """Return a line of a doctest as it stands in a docstring that is not raw."""
    return line.replace("\\", "\\\\")


def singular(noun: str) -> str:
    """Return the name of one of the things that `noun` names; all of our nouns are regular."""
    return noun.removesuffix("s")
