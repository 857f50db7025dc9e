"""Provides prompts and the target's texts after them, computed once and kept beside the pair.

llama.cpp computes them with the target's own weights, and `common.choice` chooses. A choice at a temperature
depends on the seed and the position only, so a draft of the same weights mostly chooses alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from common.choice import choose, process_logits
from common.errors import LocalError, UserError
from common.llama.model import LlamaSettings
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from lab.benchmarks.real_sizes.pair import Pair, PairText, Prompt, read_text, sampling_of
from lab.demo_models.corpus import HELD_OUT, library_root, read_source
from simulator.documents import write_whole

SHORT = 120
"""Tokens of a short prompt, to the end of the line that reaches them."""

Logits = NDArray[np.float32]


def open_model(path: Path, *, cells: int = 4096, threads: int = 1) -> LlamaRuntime:
    """Open a GGUF of the pair, to read and write texts with. It repeats its texts as a verifier does."""
    return LlamaRuntime(LlamaSettings(str(path), cells, n_seq_max=2, threads=threads, batch_invariant=True))


# Prompts ----------------------------------------------------------------------------------------------------


def short_prompts(model: LlamaRuntime, count: int, size: int = SHORT) -> list[Prompt]:
    """Return `count` prompts, each from another standard library module. Raises `UserError` if too many."""
    if not 1 <= count <= len(HELD_OUT):
        raise UserError(f"--texts is {count}; it must be 1 to {len(HELD_OUT)}")
    return [_prompt(model, name, size) for name in HELD_OUT[:count]]


def _prompt(model: LlamaRuntime, name: str, size: int) -> Prompt:
    """From the first definition of a module to the end of the line that brings `size` tokens."""
    source = read_source(library_root() / name)
    lines = source[source.index("\ndef ") + 1 if "\ndef " in source else 0 :].splitlines(keepends=True)
    low, high = 1, len(lines)
    while low < high:
        middle = (low + high) // 2
        enough = len(model.tokenize("".join(lines[:middle]), parse_special=False)) >= size
        low, high = (low, middle) if enough else (middle + 1, high)
    text = "".join(lines[:low])
    return Prompt(f"code:{name}", text, tuple(model.tokenize(text, parse_special=False)))


# Texts ------------------------------------------------------------------------------------------------------


def texts_of(pair: Pair, prompts: Sequence[Prompt], temperature: float, count: int) -> list[PairText]:
    """Return the target's texts of `count` tokens, from the pair's folder or written now.

    The seed of a prompt's text is its place in `prompts`, from 1.
    """
    asked = [
        PairText(prompt.tokens, temperature, seed, (0,) * count) for seed, prompt in enumerate(prompts, 1)
    ]
    missing = [each for each in asked if not _path(pair, each).exists()]
    if missing:
        longest = max(len(each.prompt) for each in missing) + count
        pair.texts.mkdir(parents=True, exist_ok=True)
        with open_model(pair.writer, cells=longest + 64) as model:
            for each in missing:
                written = write_text(model, each.prompt, temperature, each.seed, count)
                write_whole(_path(pair, written), json.dumps(asdict(written)) + "\n")
    return [read_text(_path(pair, each)) for each in asked]


def _path(pair: Pair, text: PairText) -> Path:
    """Return the path of the kept texts, by the options that made them."""
    digest = hashlib.sha256(json.dumps(text.prompt).encode()).hexdigest()[:12]
    kind = f"t{text.temperature:g}-s{text.seed}-n{len(text.tokens)}"
    return pair.texts / f"p{len(text.prompt)}-{digest}-{kind}.json"


def write_text(
    model: LlamaRuntime, prompt: Sequence[int], temperature: float, seed: int, count: int
) -> PairText:
    """Write a text token by token."""
    sampling = sampling_of(temperature, seed, count)
    model.clear()
    tokens: list[int] = []
    logits = read(model, prompt, 0)
    while True:
        position = len(prompt) + len(tokens) - 1
        tokens.append(choose(logits[0], sampling, position).token)
        if len(tokens) == count:
            return PairText(tuple(prompt), temperature, seed, tuple(tokens))
        logits = read(model, tokens[-1:], position + 1)


def read(model: LlamaRuntime, tokens: Sequence[int], start: int, outputs: int = 1) -> Logits:
    """Evaluate `tokens` from position `start`; return the last `outputs` logits, at most `max_rows`."""
    for at in range(0, len(tokens), model.n_batch):
        part = list(tokens[at : at + model.n_batch])
        size = len(part)
        wanted = min(outputs, size) if at + size == len(tokens) else 0
        positions = list(range(start + at, start + at + size))
        model.batch.fill(part, positions, [0] * size, [0] * (size - wanted) + [1] * wanted)
        if code := model.decode():
            raise LocalError(f"llama.cpp's decode returned {code}; please report this")
    return model.logits(outputs)


# What the pair is like --------------------------------------------------------------------------------------


def rows_of(model: LlamaRuntime, text: PairText) -> Iterator[tuple[int, Logits]]:
    """Yield position and logits of each row that chose a token of `text`, as `model` computes them."""
    model.clear()
    whole = text.prompt + text.tokens
    first = len(text.prompt) - 1
    read(model, whole[:first], 0)
    for start in range(first, len(whole) - 1, model.max_rows):
        rows = whole[start : min(start + model.max_rows, len(whole) - 1)]
        yield from enumerate(read(model, rows, start, len(rows)), start)


def agreement(model: LlamaRuntime, texts: Sequence[PairText]) -> float:
    """Return the share of tokens that `model` chooses as the target did, after the target's own text."""
    hits = [
        choose(logits, text.sampling, position).token == (text.prompt + text.tokens)[position + 1]
        for text in texts
        for position, logits in rows_of(model, text)
    ]
    return fmean(hits)


def certainty(model: LlamaRuntime, texts: Sequence[PairText]) -> dict[str, object]:
    """Return how sure the target is: logits' spread, gap of the two best, entropy at T 0.8 in nats."""
    spreads, gaps, entropies = list[float](), list[float](), list[float]()
    for text in texts:
        for _, logits in rows_of(model, text):
            second, best = np.partition(logits, -2)[-2:]
            spreads.append(float(logits.std()))
            gaps.append(float(best - second))
            scaled = process_logits(logits, SamplingParams(temperature=0.8))
            chances = np.exp(scaled)
            total = chances.sum()
            entropies.append(float(np.log(total) - (chances * scaled).sum() / total))
    low, high = np.quantile(entropies, (0.1, 0.9))
    return {
        "spread": round(median(spreads), 2),
        "median_gap": round(median(gaps), 2),
        "entropy_nats_p10_p90": [round(float(low), 2), round(float(high), 2)],
        "repeated": round(fmean(text.repeated for text in texts), 3),
    }
