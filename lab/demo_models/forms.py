"""Draws functions that are no pipeline, from the templates of forms.txt."""

from __future__ import annotations

import random
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.demo_models import values
from lab.demo_models.functions import Function, Values, parameters_of, singular
from lab.demo_models.pipelines import NUMBER_NOUNS, WORD_NOUNS, replaced

BY_TYPE: Final[dict[str, Values]] = {
    "list[int]": values.integers,
    "list[str]": values.words,
    "str": values.text,
    "int": values.natural,
    "dict[str, int]": values.mapping,
    "list[list[int]]": values.matrix,
}
BY_NAME: Final[dict[str, Values]] = {
    "k": values.small,
    "size": values.small,
    "n": values.bound,
    "sentence": values.sentence,
}
"""Values of a parameter: by its name, else by its type."""

FEWEST_TO_HOLD_OUT: Final = 12
"""Constants K of a form of which some are kept for evaluation. With fewer, a model learns the
constants that it sees and not to copy them."""

TEMPLATE: Final = re.compile(
    r'''(?:\#\ (?P<options>.*)\n)?
    def\ (?P<name>\w+)\((?P<parameters>.*)\)\ ->\ (?P<returns>.*):\n
    \ {4}"""(?P<description>.*)\."""\n
    (?P<body>(?:\ {4}.*\n)+)''',
    re.VERBOSE,
)


@dataclass(frozen=True)
class Form:
    """One template. `options` are the pools of its constants and the names of what draws its arguments."""

    name: str
    parameters: str
    returns: str
    description: str
    body: str
    options: dict[str, str]

    def draw(self, rng: random.Random) -> Function:
        """Return the function with a noun and constants filled in."""
        noun = rng.choice(WORD_NOUNS if "NS: list[str]" in self.parameters else NUMBER_NOUNS)
        pools = [pool(self.options.get(mark, "")) for mark in "KJ"]
        first, second = (rng.choice(each) if each else "" for each in pools)
        marks = {"NS": noun, "N": singular(noun), "K": first, "J": second}
        parameters = replaced(self.parameters, **marks)
        return Function(
            name=self.name.replace("K", first).replace("J", second),
            parameters=parameters,
            returns=self.returns,
            description=replaced(self.description, **marks),
            spoken=replaced(self.description.replace("the NS", "the NS in a list"), **marks),
            body=replaced(self.body, **marks),
            combination="|".join((self.name, first, second)) if first else "",
            holds_out=len(pools[0]) >= FEWEST_TO_HOLD_OUT,
            values=self.values or tuple(map(values_of, parameters_of(parameters))),
        )

    @property
    def values(self) -> tuple[Values, ...]:
        """Return what draws the arguments, as far as the template names it."""
        return tuple(getattr(values, name) for name in self.options.get("draws", "").split())


def pool(text: str) -> list[str]:
    """Return the constants that `1-9`, `10-30/5` or `a b c` stands for."""
    if (match := re.fullmatch(r"(\d+)-(\d+)(?:/(\d+))?", text)) is None:
        return text.split()
    first, last, step = (int(group or 1) for group in match.groups())
    return list(map(str, range(first, last + 1, step)))


def values_of(parameter: str) -> Values:
    """Return what draws the argument of `name: type`."""
    name, _, type_ = parameter.partition(": ")
    return BY_NAME.get(name) or BY_TYPE[type_]


def read_forms(text: str) -> list[Form]:
    """Return the templates of a text, in order."""
    forms = []
    for match in TEMPLATE.finditer(text):
        parts = match.groupdict("")
        options = dict(each.split(": ", 1) for each in parts.pop("options").split("; ") if each)
        body = textwrap.dedent(parts.pop("body")).strip()
        forms.append(Form(**parts, body=body, options=options))
    return forms


FORMS: Final = read_forms(Path(__file__).with_name("forms.txt").read_text(encoding="utf-8"))


def draw_form(rng: random.Random) -> Function:
    """Return one of the forms."""
    return rng.choice(FORMS).draw(rng)
