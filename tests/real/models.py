"""Which published GGUF files this machine has, and what llama.cpp alone writes with one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from cloud_verifier.core.engine_protocol import FloatArray
from cloud_verifier.llama.llama_loading import LlamaOptions
from cloud_verifier.llama.shapes import prompt_cuts
from common import choice as reference
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from tests.conftest import REAL_MODELS, SMOLLM2

SLOTS, MAX_ROWS, MAX_STEP = 1024, 64, 256
ONE_THREAD = LlamaOptions(threads=1)


def each_file(kinds: Iterable[str]) -> list[object]:
    """Return a parameter for each file of the folder and each kind. All but SmolLM2 are for `make real`."""
    names = sorted({path.name for path in REAL_MODELS.glob("*.gguf")} | {SMOLLM2})
    return [
        pytest.param(
            (name, kind),
            marks=[] if name == SMOLLM2 else pytest.mark.large,
            id=f"{name.removesuffix('.gguf')}-{kind}",
        )
        for name in names
        for kind in kinds
    ]


@dataclass
class Alone:
    """Writes texts by llama.cpp alone, in decodes of the kinds that a verifier uses."""

    runtime: LlamaRuntime

    def text(self, prompt: Sequence[int], sampling: SamplingParams) -> list[int]:
        return [token for token, _ in self.steps(prompt, sampling)]

    def steps(self, prompt: Sequence[int], sampling: SamplingParams) -> Iterator[tuple[int, FloatArray]]:
        """Yield each token of a text, with the logits that it was chosen from."""
        logits, text = self._read(prompt), list[int]()
        while True:
            chosen = reference.choose(
                logits,
                sampling,
                len(prompt) + len(text) - 1,
                np.array(prompt, np.int32),
                np.array(text, np.int32),
            ).token
            text.append(chosen)
            yield chosen, logits
            ended = chosen in self.runtime.eos_ids and not sampling.ignore_eos
            if ended or len(text) == sampling.max_tokens:
                return
            logits = self._decode([chosen], len(prompt) + len(text) - 1)

    def _read(self, prompt: Sequence[int]) -> FloatArray:
        self.runtime.clear()
        logits, start = np.empty(0, np.float32), 0
        for size in prompt_cuts(len(prompt), min(self.runtime.n_together, self.runtime.max_rows)):
            part = prompt[start : start + size]
            logits = self._decode(part, start, size - len(part))
            start += size
        return logits

    def _decode(self, tokens: Sequence[int], start: int, filling: int = 0) -> FloatArray:
        """Return the logits of the last token; `filling` rows of another sequence round the decode up."""
        count = len(tokens)
        self.runtime.batch.fill(
            [*tokens, *[0] * filling],
            [*range(start, start + count), *range(filling)],
            [0] * count + [1] * filling,
            [0] * (count - 1) + [1] + [0] * filling,
        )
        assert self.runtime.decode() == 0
        if filling:
            self.runtime.seq_remove(1, 0)
        logits: FloatArray = self.runtime.logits(1)[0].copy()
        return logits
