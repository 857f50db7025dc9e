"""The process that first loads a model's file (`common.llama.load_trial`).

It reads one JSON object (`TrialRequest`). It ends with 0 if the file can be loaded and used.
It ends with 1 and a sentence on standard output for a refused file, and by a signal if llama.cpp crashes.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from common.child import die_first, limit
from common.errors import UserError
from common.llama.library import library
from common.llama.load_trial import TrialRequest
from common.llama.model import LlamaModel, LlamaSettings

if TYPE_CHECKING:
    from common.llama.runtime import LlamaRuntime

TEXT = "A text of some words, <|and marks|>."
CELLS = 64
MAX_ASKED = 1 << 16  # characters of the request
FREE_MEMORY = 4 << 30  # bytes of addresses: Python, numpy, llama.cpp's buffers and its threads' stacks
COPIES = 3  # of the file: as it is mapped, repacked for the processor, and something over


def main() -> int:
    asked = TrialRequest(**json.loads(sys.stdin.read(MAX_ASKED)))
    try:
        try_file(asked)
    except UserError as error:
        print(error)  # noqa: T201  the parent reads it
        return 1
    return 0


def try_file(asked: TrialRequest) -> None:
    """Load and use a file, under lowered limits of this process. Raises `UserError`."""
    die_first()
    limit(RLIMIT_CORE=0)
    # The limit refuses memory for false sizes in the file. Drivers of accelerators reserve far more
    # addresses than they use; with them only `die_first` helps.
    if not library().llama_supports_gpu_offload():
        limit(RLIMIT_AS=FREE_MEMORY + COPIES * os.stat(asked.path).st_size)
    if asked.weights:
        _with_weights(asked)
    else:
        with LlamaModel(_settings(asked), weights=False) as model:
            _use_tokens(model)


def _with_weights(asked: TrialRequest) -> None:
    """Decode several tokens (products of matrices) in two sequences (a draft tree), then one token."""
    from common.llama.runtime import LlamaRuntime

    with LlamaRuntime(_settings(asked)) as runtime:
        tokens = _use_tokens(runtime)[:4]
        count = len(tokens)
        _decode(runtime, tokens, list(range(count)), [0] * count)
        runtime.seq_copy(0, 1, 0, -1)
        _decode(runtime, [tokens[0], tokens[-1]], [count, count], [0, 1])
        _decode(runtime, tokens[:1], [count + 1], [1])


def _settings(asked: TrialRequest) -> LlamaSettings:
    """Return settings with a small context, which suffices to find a broken file."""
    return LlamaSettings(
        asked.path,
        n_ctx=CELLS,
        n_seq_max=2,
        n_batch=CELLS,
        max_rows=4,
        gpu_layers=asked.gpu_layers,
        batch_invariant=asked.batch_invariant,
    )


def _use_tokens(model: LlamaModel) -> list[int]:
    """Read all parts of the vocabulary. Return the ids of some text."""
    model.token_table()
    _ = model.chat_template, model.eos_ids, model.description
    return [*model.begin_ids, *model.tokenize(TEXT, True)] or [0]


def _decode(runtime: LlamaRuntime, tokens: list[int], positions: list[int], sequences: list[int]) -> None:
    runtime.batch.fill(tokens, positions, sequences, [0] * (len(tokens) - 1) + [1])
    code = runtime.decode()
    if code:
        raise UserError(
            f"llama.cpp loads {runtime.path} and cannot evaluate it (code {code}); the file is damaged, or "
            "memory is short. Fetch it again, or choose a smaller model"
        )
    runtime.logits(1).max()  # read, as the ranker does


if __name__ == "__main__":
    sys.exit(main())
