"""Describes a pair: the places of its files, and a text of its target."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from common.sampling import SamplingParams

GRAM = 4
"""Tokens in a row that count as repeated if they stood in the text or its prompt before."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Locates a pair's GGUF files, and the folder that keeps the target's texts."""

    target: Path
    draft: Path
    folder: Path
    has_other_tokens: bool = False  # the draft has, and drafts through a translation

    @property
    def texts(self) -> Path:
        return self.folder / "texts"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Holds a prompt. The word of `name` before a colon is its kind."""

    name: str
    text: str
    tokens: tuple[int, ...]

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]


@dataclass(frozen=True, slots=True)
class PairText:
    """Holds the target's text after a prompt. `tokens` are without the prompt's."""

    prompt: tuple[int, ...]
    temperature: float
    seed: int
    tokens: tuple[int, ...]

    @property
    def sampling(self) -> SamplingParams:
        return sampling_of(self.temperature, self.seed, len(self.tokens))

    @property
    def repeated(self) -> float:
        """Return the share of tokens that end a run of `GRAM` tokens which occurred before."""
        whole, seen, count = self.prompt + self.tokens, set[tuple[int, ...]](), 0
        for end in range(GRAM, len(whole) + 1):
            gram = whole[end - GRAM : end]
            count += end > len(self.prompt) and gram in seen
            seen.add(gram)
        return count / len(self.tokens)


def sampling_of(temperature: float, seed: int, count: int) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=seed, max_tokens=count, ignore_eos=True)


def read_text(path: Path) -> PairText:
    text = json.loads(path.read_text())
    return PairText(tuple(text["prompt"]), text["temperature"], text["seed"], tuple(text["tokens"]))
