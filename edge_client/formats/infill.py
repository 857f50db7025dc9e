"""Writes prompts for filling in the middle of a text, by the tokens that a model was trained with for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from common.vocabulary import Vocabulary

UNNAMED = "unnamed"
"""Name of the repository, and of files without a name, which requests do not tell."""


@dataclass(frozen=True, slots=True)
class InfillFamily:
    """Names the tokens of models that were trained alike, by their texts in the tokenizer's file."""

    prefix: str
    suffix: str
    middle: str = ""  # before the text to be written; empty: it follows the prefix directly
    suffix_first: bool = False
    repository: str = ""  # before a repository's name
    file: str = ""  # before a file's name
    ends: tuple[str, ...] = ()  # further tokens that end the text

    @property
    def needed(self) -> tuple[str, ...]:
        """Return the texts of the tokens that a model must have."""
        return tuple(filter(None, (self.prefix, self.suffix, self.middle)))

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(filter(None, (*self.needed, self.repository, self.file, *self.ends)))


FAMILIES = (
    # Qwen2.5-Coder's report (arXiv 2409.12186, 3.1); Granite 3.3 and later use the same first three
    InfillFamily(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        repository="<|repo_name|>",
        file="<|file_sep|>",
        ends=("<|fim_pad|>", "<|endoftext|>", "<|file_separator|>"),  # the last: CodeGemma's
    ),
    # StarCoder 2 (arXiv 2402.19173, 5.1); Granite's code models
    InfillFamily(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        repository="<repo_name>",
        file="<file_sep>",
        ends=("<fim_pad>", "<|endoftext|>"),
    ),
    # Code Llama (arXiv 2308.12950, 2.3)
    InfillFamily("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
    # DeepSeek-Coder's model card
    InfillFamily("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ends=("<|EOT|>",)),
    # CodeGeeX4's model card, which GLM-4's later vocabularies follow
    InfillFamily(
        "<|code_prefix|>",
        "<|code_suffix|>",
        "<|code_middle|>",
        suffix_first=True,
        ends=("<|endoftext|>", "<|user|>"),
    ),
    # Codestral, as mistral-common encodes it
    InfillFamily("[PREFIX]", "[SUFFIX]", suffix_first=True),
)


@dataclass(frozen=True, slots=True)
class ExtraFile:
    """Holds a piece of another file, as context."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Holds the text around the place to be filled. `begun` is the beginning of the text to be written."""

    prefix: str
    suffix: str
    begun: str = ""
    extra: Sequence[ExtraFile] = ()

    @property
    def num_chars(self) -> int:
        """Return the characters of all texts."""
        extra = sum(len(each.name) + len(each.text) for each in self.extra)
        return len(self.prefix) + len(self.suffix) + len(self.begun) + extra


class Infill:
    """Writes prompts with the tokens of one family, `ids` by text."""

    def __init__(self, family: InfillFamily, ids: dict[str, int]) -> None:
        self._family = family
        self._ids = ids

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Infill | None:
        """Return the infill of a model with this vocabulary; None if it has no family's tokens."""
        wanted = {text.encode(): text for family in FAMILIES for text in family.texts}
        ids = {wanted[each]: token for token, each in enumerate(vocabulary.table) if each in wanted}
        matching = (family for family in FAMILIES if all(text in ids for text in family.needed))
        return next((cls(family, ids) for family in matching), None)

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the tokens that end a text beside the model's own end tokens."""
        return tuple(sorted({self._ids[each] for each in self._family.texts if each in self._ids}))

    def prompt(self, gap: Gap, tokenize: Callable[[str], list[int]]) -> tuple[int, ...]:
        """Return the prompt's tokens without a begin token. `tokenize` reads text without control tokens.

        Other files come first, as a repository if the model knows its form. Texts of the family's own tokens
        in the gap stay text.
        """
        family = self._family

        def after(mark: str, text: str) -> list[int]:
            return [*([self._ids[mark]] if mark else []), *self._plain(text, tokenize)]

        sides = [after(family.prefix, gap.prefix), after(family.suffix, gap.suffix)]
        first, second = reversed(sides) if family.suffix_first else sides
        around = (*first, *second, *after(family.middle, gap.begun))
        if not gap.extra:
            return around
        if family.file not in self._ids:
            loose = "".join(f"{each.name}\n{each.text}\n" for each in gap.extra)
            return (*after("", loose), *around)
        files = list[int]()
        if family.repository in self._ids:
            files += after(family.repository, f"{UNNAMED}\n")
        for each in (*gap.extra, ExtraFile(UNNAMED, "")):
            files += after(family.file, f"{each.name or UNNAMED}\n{each.text}")
        return (*files, *around)

    def _plain(self, text: str, tokenize: Callable[[str], list[int]]) -> list[int]:
        """Return the tokens of a text, in which the family's texts are broken after their first character.

        Some files list these tokens as text of users, which llama.cpp reads as tokens anywhere.
        """
        places = [match.start() + 1 for match in self._own.finditer(text)]
        pieces = (text[a:b] for a, b in zip([0, *places], [*places, None], strict=True))
        return [token for piece in pieces if piece for token in tokenize(piece)]

    @cached_property
    def _own(self) -> re.Pattern[str]:
        """Matches where a text of the family begins. A text may lie within another."""
        texts = sorted((each for each in self._ids if len(each) > 1), key=len, reverse=True)
        return re.compile(f"(?={'|'.join(map(re.escape, texts))})")
