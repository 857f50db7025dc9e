"""The process that loads a draft model's file which nobody has loaded yet (`edge_client.llama.trial`).

Reads one JSON object (`trial.Asked`). Ends with 0 if the file can be loaded and used; with 1 and a sentence
on standard output if it is refused; and by a signal if llama.cpp dies of it, which is what it is for.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import TYPE_CHECKING

from common.errors import UserError
from edge_client.llama.library import library
from edge_client.llama.model import LlamaModel
from edge_client.llama.settings import LlamaSettings
from edge_client.llama.trial import Asked

if TYPE_CHECKING:
    from edge_client.llama.runtime import LlamaRuntime

TEXT = "A text of some words, <|and marks|>."
CELLS = 64
MAX_ASKED = 1 << 16  # characters of the request
FREE_MEMORY = 4 << 30  # bytes of addresses: Python, numpy, llama.cpp's buffers and its threads' stacks
COPIES = 3  # of the file: as it is mapped, repacked for the processor, and something over
WORST = 1000  # oom_score_adj: whoever runs out of memory because of this file, this process goes first


def main() -> int:
    """The whole process."""
    asked = Asked(**json.loads(sys.stdin.read(MAX_ASKED)))
    try:
        try_file(asked)
    except UserError as error:
        print(error)  # noqa: T201  the parent reads it
        return 1
    return 0


def try_file(asked: Asked) -> None:
    """Load it, and use it. For a process of its own, whose limits it lowers. Raises `UserError`."""
    _die_first()
    _hold_memory(asked.path)
    if asked.weights:
        _with_weights(asked)
    else:
        _tokens_alone(asked)


def _die_first() -> None:
    """A crash writes no core file, and costs nobody else memory."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(WORST))
    except (OSError, ValueError):
        pass  # macOS has no such file, and a service's walls may forbid either


def _hold_memory(path: str) -> None:
    """Sizes that the file only claims are refused memory, so that they cost the machine none. Drivers of
    accelerators reserve far more addresses than they use, so there only `_die_first` helps."""
    if library().llama_supports_gpu_offload():
        return
    most = FREE_MEMORY + COPIES * os.stat(path).st_size
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (OSError, ValueError):
        pass  # held to less already


def _tokens_alone(asked: Asked) -> None:
    with LlamaModel(_settings(asked), weights=False) as model:
        _use_tokens(model)


def _with_weights(asked: Asked) -> None:
    """Several tokens, so that matrices meet matrices; two sequences, as a draft tree has them; then one."""
    from edge_client.llama.runtime import LlamaRuntime

    with LlamaRuntime(_settings(asked)) as runtime:
        tokens = _use_tokens(runtime)[:4]
        count = len(tokens)
        _decode(runtime, tokens, list(range(count)), [0] * count)
        runtime.seq_copy(0, 1, 0, -1)
        _decode(runtime, [tokens[0], tokens[-1]], [count, count], [0, 1])
        _decode(runtime, tokens[:1], [count + 1], [1])


def _settings(asked: Asked) -> LlamaSettings:
    """A small context: what a file breaks, it breaks in any."""
    return LlamaSettings(
        asked.path,
        n_ctx=CELLS,
        n_seq_max=2,
        n_batch=CELLS,
        max_rows=4,
        gpu_layers=asked.gpu_layers,
        use_extra_bufts=asked.use_extra_bufts,
    )


def _use_tokens(model: LlamaModel) -> list[int]:
    """All that is read of a vocabulary; the ids of some text."""
    model.token_table()
    _ = model.chat_template, model.eos_ids, model.description
    return [*model.begin_ids, *model.tokenize(TEXT, True)] or [0]


def _decode(runtime: LlamaRuntime, tokens: list[int], positions: list[int], sequences: list[int]) -> None:
    runtime.batch.fill(tokens, positions, sequences, [0] * (len(tokens) - 1) + [1])
    code = runtime.decode()
    if code:
        raise UserError(
            f"llama.cpp loads {runtime.path} and cannot evaluate it (code {code}); the file is damaged, or "
            "memory is short. Fetch it again, or choose a smaller draft model"
        )
    runtime.logits(1).max()  # read, as whoever ranks them reads them


if __name__ == "__main__":
    sys.exit(main())
