"""Defines the texts and jobs of a load. Jobs and results travel as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

from common.errors import UserError
from common.sampling import SamplingParams
from lab.bench.formula import FORMULA, VOCAB_SIZE
from lab.rig import LONGEST_LINE

OFF, ORACLE, RECORDED = "off", "oracle", "recorded"

SEQUENTIAL = "sequential"
STREAMING = "streaming"
"""Scheme of plain streaming by the same engine, N sessions at a time."""

KINDS_IN_WORDS = (
    "off (plain streaming), oracle=0.8 (probability that a draft is right, 0 to 1) or recorded (the draft "
    "model's own candidates along the text)"
)

SHORTEST = 16
"""Fewest tokens of a shortened prompt."""

LONGEST_CUT = 7
"""Most tokens by which one prompt is shorter than its source."""

FORMULA_PROMPTS, FORMULA_PROMPT = 64, 48
"""Number of the formula's prompts, and the tokens of each."""


async def json_lines() -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON lines of standard input to its end: the other side of `RigProcess.write`."""
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


@dataclass(frozen=True, slots=True)
class LoadText:
    """Holds one text. `reference` is the target's own text without drafts; empty until known."""

    number: int
    prompt: tuple[int, ...]
    reference: tuple[int, ...] = ()

    @property
    def whole(self) -> tuple[int, ...]:
        return self.prompt + self.reference

    def written(self, reference: Sequence[int]) -> LoadText:
        return replace(self, reference=tuple(reference))


def prompts_of(tokens: Sequence[Sequence[int]], count: int) -> list[tuple[int, ...]]:
    """Return `count` different prompts: first the given ones, then the same without their first tokens.

    No two begin alike, because a verifier that keeps prefixes would otherwise read most of them only once.
    Raise `UserError` if the prompts are too short.
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
    """Return the index of the first token that differs from the reference; None if none does."""
    pairs = enumerate(zip_longest(written, reference))
    return next((place for place, (token, right) in pairs if token != right), None)


def prompt_tokens(target: str, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text without a begin token. The formula has its own prompts.

    Raise `UserError` if there is no tokenizer, or a prompt is empty.
    """
    if target == FORMULA:
        return [
            [(place * 613 + position * 29) % VOCAB_SIZE for position in range(FORMULA_PROMPT)]
            for place in range(FORMULA_PROMPTS)
        ]
    try:
        encode = _tokenizer(target)
    except (OSError, ValueError) as error:
        raise UserError(
            f"the tokenizer of {target} cannot be loaded ({error}); give a model folder"
        ) from error
    ids_of_texts = [encode(text) for text in texts]
    empty = next((text for text, ids in zip(texts, ids_of_texts, strict=True) if not ids), None)
    if empty is not None:
        raise UserError(f"the prompt {empty!r} has no tokens; give other prompts")
    return ids_of_texts


def _tokenizer(target: str) -> Callable[[str], list[int]]:
    """Load a folder's tokenizer without transformers if possible, as its import takes seconds."""
    path = Path(target).expanduser() / "tokenizer.json"
    if path.is_file():
        from tokenizers import Tokenizer

        words = Tokenizer.from_file(str(path))
        return lambda text: list(words.encode(text, add_special_tokens=False).ids)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target, trust_remote_code=False)
    return lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])


def frozen(value: Any) -> Any:
    """Convert decoded JSON: tuples replace lists."""
    if isinstance(value, Mapping):
        return {name: frozen(each) for name, each in value.items()}
    return tuple(map(frozen, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class DraftOption:
    """Names the source of a load's drafts."""

    kind: str
    acceptance: float = 0.0  # an oracle's

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `off`, `oracle=0.8` or `recorded`. Raise `UserError` for other texts."""
        kind, _, number = text.partition("=")
        if kind == ORACLE:
            with contextlib.suppress(ValueError):
                if 0.0 <= float(number) <= 1.0:
                    return cls(kind, float(number))
        elif text in (OFF, RECORDED):
            return cls(kind)
        raise UserError(f"--drafts {text!r} is not understood; it may be {KINDS_IN_WORDS}")

    def __str__(self) -> str:
        return f"{self.kind}={self.acceptance:g}" if self.kind == ORACLE else self.kind


@dataclass(frozen=True, slots=True)
class LoadJob:
    """Describes one load on one verifier. Each of `clients` devices opens the next text when its last one
    ends, until all of `numbers` are written."""

    address: str
    numbers: tuple[int, ...]  # of the texts, in order
    drafts: DraftOption
    policy: str
    sampling: SamplingParams
    clients: int = 1
    draft_time: float = 0.0  # of a draft step on a device, in seconds; costs no processor time here
    seed: int = 0  # of oracles
    tell_tokens: bool = False  # report the written tokens, too

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        drafts, sampling = DraftOption(**document["drafts"]), SamplingParams(**frozen(document["sampling"]))
        return cls(**{**frozen(document), "drafts": drafts, "sampling": sampling})


@dataclass(slots=True)
class TextRun:
    """Holds one text as its client saw it. Times are in seconds; `opened_at` is monotonic and comparable
    among processes of a machine."""

    number: int
    opened_at: float
    arrivals: list[float] = field(default_factory=list)  # of each token, since `opened_at`
    difference: int | None = None  # first token that is not the reference's; None if all are
    finished: bool = False
    refused: bool = False  # by a full verifier, before the first token
    error: str = ""  # why it ended early
    stats: dict[str, Any] = field(default_factory=dict)  # `SessionStats`
    bytes_up: int = 0  # serialised messages
    bytes_down: int = 0
    asked: int = 0  # tokens of the text whose candidates the session asked for
    right: int = 0  # of those, the first candidate was right
    tokens: list[int] = field(default_factory=list)  # if the job has `tell_tokens`

    @property
    def ended_at(self) -> float:
        return self.opened_at + (self.arrivals[-1] if self.arrivals else 0.0)
