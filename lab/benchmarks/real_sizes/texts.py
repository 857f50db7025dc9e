"""Provides the target's texts after prompts, computed once and kept beside the pair.

llama.cpp computes them with the target's own weights, and `common.choice` chooses. A choice at a temperature
depends on the seed and the position only, so a draft of the same weights mostly chooses alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.choice import choose
from common.errors import LocalError
from common.llama.model import LlamaSettings
from common.llama.runtime import LlamaRuntime
from lab.benchmarks.real_sizes.pair import Pair, PairText, Prompt, read_text, sampling_of
from simulator.documents import write_whole

Logits = NDArray[np.float32]


def open_model(path: Path, *, cells: int = 4096, threads: int = 1) -> LlamaRuntime:
    """Open a GGUF of the pair, to read and write texts with. It repeats its texts as a verifier does."""
    return LlamaRuntime(LlamaSettings(str(path), cells, n_seq_max=2, threads=threads, batch_invariant=True))


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
        with open_model(pair.target, cells=longest + 64) as model:
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
