"""Describes a pair: the places of its files, the shape of a made one, and a text of its target."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from common.sampling import SamplingParams

VERSION = 3
"""Of the recipe in `make`. A folder of another version is made again."""

FORMATS = {"q8_0": 7, "q4_K_M": 15, "q4_0": 2}
"""llama.cpp's `llama_ftype` of each draft."""

GRAM = 4
"""Tokens in a row that count as repeated if they stood in the text or its prompt before."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Describes the shape; the architecture is Qwen2 with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    rows: int  # of the embedding, padding included
    tokens: int  # ordinary ones; special ones follow
    positions: int = 32768
    seed: int = 1

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


SHAPES = {
    "0.5b": Shape(896, 24, 14, 2, 4864, 151_936, 151_643),
    "wide": Shape(128, 8, 2, 1, 512, 151_936, 151_643),
    "tiny": Shape(128, 2, 2, 1, 256, 2_048, 2_000),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Locates a pair's files: a made one's, or two given GGUF files with a folder for the target's texts."""

    folder: Path
    given: tuple[Path, Path] | None = None  # target and draft

    @property
    def target(self) -> Path:
        """Return what the verifier describes."""
        return self.given[0] if self.given else self.folder / "target"

    @property
    def writer(self) -> Path:
        """Return the GGUF of the target's own weights."""
        return self.given[0] if self.given else self.draft("bf16")

    @property
    def recipe(self) -> Path:
        """Return the path of the recipe, which describes the other files and is written last."""
        return self.folder / "made.json"

    @property
    def texts(self) -> Path:
        return self.folder / "texts"

    def draft(self, kind: str) -> Path:
        """Return the draft of a key of `FORMATS`, or of bf16: the target's own weights. A given draft has the
        kind of its name."""
        return self.given[1] if self.given else self.folder / f"draft-{kind}.gguf"

    def is_made(self, shape: Shape) -> bool:
        return self.recipe.exists() and self.recipe.read_text() == recipe_of(shape)


def recipe_of(shape: Shape) -> str:
    return json.dumps({"version": VERSION, **asdict(shape)}) + "\n"


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
