"""llama-cpp-python's ways to write a text: `Llama.generate` alone, with prompt lookup, with a draft model.

The bundled target is written as GGUF in float32, the precision that the others compute in. `Llama` takes any
callable as its draft model; the package has one for prompt lookup and none that runs a model, so `GgufDraft`
is ours. llama-cpp-python runs draft and target in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from numpy.typing import NDArray

import demo_models
from benchmarks.rivals import Arrivals, Job, Lookahead, Rival, Setting, TargetMeter
from common.errors import LocalError, UserError
from edge_client.llama.library import extra_bufts_are_safe
from edge_client.llama.runtime import LlamaRuntime
from edge_client.llama.settings import LlamaSettings

IntArray = NDArray[np.intc]
FloatArray = NDArray[np.float32]

UNQUANTISED = ("0", "1", "32")
"""general.file_type of f32, f16 and bf16."""


class Written:
    """`Llama.generate`, which calls the draft model that it is given, if any."""

    def __init__(self, name: str, variant: str, llama: Any, meter: TargetMeter, draft: Any = None) -> None:
        self.name = name
        self.variant = variant
        self._llama = llama
        self._meter = meter
        self._draft = draft

    def write(self, job: Job) -> dict[str, Any]:
        """See `Rival.write`. One draw of the seeded sampler a token, so drafts do not change the text."""
        llama, draft = self._llama, self._draft
        llama.draft_model = draft
        llama.set_seed(job.seed)
        llama.reset()  # nothing of this prompt is known from before
        self._meter.reset()
        num_drafted, arrivals = getattr(draft, "num_drafted", 0), Arrivals()
        for token in islice(llama.generate(job.token_ids, **sampling(job.temperature)), job.max_tokens):
            arrivals.add([int(token)])
        return arrivals.record(self._meter, getattr(draft, "num_drafted", 0) - num_drafted)


class GgufDraft:
    """A draft model for `Llama`: greedy tokens of a GGUF, whose KV is kept as far as the text agrees with it.

    Raises `LocalError` from a call if llama.cpp fails.
    """

    def __init__(self, runtime: LlamaRuntime, lookahead: Lookahead) -> None:
        self.num_drafted = 0  # tokens
        self._runtime = runtime
        self._lookahead = lookahead
        self._held: list[int] = []  # tokens whose KV is there

    def __call__(self, input_ids: IntArray, /, **_: Any) -> IntArray:
        """What may follow `input_ids` [length]: up to `num_tokens` tokens, fewer if the context is full."""
        text = [int(token) for token in input_ids]
        limit = min(self._lookahead.num_tokens, self._runtime.n_ctx - len(text))
        found: list[int] = []
        while len(found) < limit:
            scores = self._evaluate(found[-1:]) if found else self._read(text)
            if confidence(scores) < self._lookahead.min_confidence:
                break
            found.append(int(scores.argmax()))
        self.num_drafted += len(found)
        return np.array(found, dtype=np.intc)

    def _read(self, text: list[int]) -> FloatArray:
        """Scores [vocabulary] after `text`; only what differs from what is held is evaluated."""
        keep = min(common_prefix(self._held, text), len(text) - 1)
        self._runtime.seq_remove(0, keep)
        del self._held[keep:]
        scores = None
        for start in range(keep, len(text), self._runtime.n_batch):
            scores = self._evaluate(text[start : start + self._runtime.n_batch])
        assert scores is not None, "keep is below the text's length"
        return scores

    def _evaluate(self, tokens: list[int]) -> FloatArray:
        size, held = len(tokens), len(self._held)
        positions = list(range(held, held + size))
        self._runtime.batch.fill(tokens, positions, [0] * size, [0] * (size - 1) + [1])
        if code := self._runtime.decode():
            raise LocalError(f"llama.cpp's decode of the draft returned {code}; please report this")
        self._held += tokens
        scores: FloatArray = self._runtime.logits(1)[0]
        return scores


def confidence(scores: FloatArray) -> float:
    """The probability of the best of `scores` [vocabulary], which are logits."""
    return float(1.0 / np.exp(scores - scores.max()).sum())


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def sampling(temperature: float) -> dict[str, Any]:
    """Arguments of `Llama.generate`: greedy, or the whole distribution, with none of its own filters."""
    return {"temp": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}


def load_rivals(setting: Setting, stack: ExitStack) -> list[Rival]:
    """All of them, on one target and one draft; what they hold is freed with `stack`.

    Raises `UserError` for files that cannot be used.
    """
    path = setting.target_gguf or stack.enter_context(exported(setting.target))
    meter = TargetMeter(setting.floor_s)
    # With a draft model `Llama` keeps all logits, so it is set up for it from the start.
    alone = open_llama(path, setting, meter, None, stack)
    assisted = open_llama(path, setting, meter, LlamaPromptLookupDecoding(), stack)
    settings = LlamaSettings(setting.draft, n_ctx=setting.num_positions, threads=setting.threads)
    runtime = stack.enter_context(LlamaRuntime(settings))
    rivals: list[Rival] = [Written("llama_cpp", "", alone, meter)]
    for lookahead in setting.lookaheads:
        draft = GgufDraft(runtime, lookahead)
        rivals.append(Written("llama_cpp_draft", str(lookahead), assisted, meter, draft))
    for length in setting.lengths:
        lookup = LlamaPromptLookupDecoding(num_pred_tokens=length)
        rivals.append(Written("llama_cpp_prompt_lookup", str(length), assisted, meter, lookup))
    return rivals


def open_llama(path: str, setting: Setting, meter: TargetMeter, draft: Any, stack: ExitStack) -> Any:
    """A `Llama` whose steps go through `meter`. Raises `UserError` for weights that would crash it."""
    llama: Any = llama_cpp.Llama(
        path,
        n_ctx=setting.num_positions,
        n_threads=setting.threads,
        n_threads_batch=setting.threads,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        draft_model=draft,
        verbose=False,
    )
    stack.callback(llama.close)
    system = llama_cpp.llama_print_system_info().decode()
    refuse_crashing(path, llama.metadata.get("general.file_type", ""), system)
    llama.eval = metered(llama, meter)
    return llama


def metered(llama: Any, meter: TargetMeter) -> Callable[[Sequence[int]], None]:
    """`llama.eval`, counted and slowed down by `meter`."""
    evaluate = llama.eval

    def step(tokens: Sequence[int]) -> None:
        with meter.step(len(tokens) if llama.n_tokens else 1):
            evaluate(tokens)

    return step


def refuse_crashing(path: str, file_type: str, system_info: str) -> None:
    """Raise `UserError` for quantised weights where a llama.cpp dies of them (`extra_bufts_are_safe`).

    `Llama` cannot turn the extra buffers off.
    """
    if not extra_bufts_are_safe(system_info) and file_type not in UNQUANTISED:
        raise UserError(
            f"{path} is quantised, which can crash this build of llama.cpp; give it in f32 or f16"
        )


@contextmanager
def exported(target: str) -> Iterator[str]:
    """The bundled target as a GGUF file in float32. Raises `UserError` for another target."""
    if Path(target).resolve() != demo_models.TARGET_DIR:
        raise UserError(f"llama.cpp needs {target} as a GGUF file; give it with --target-gguf")
    from demo_models.evaluate import load_target
    from demo_models.gguf_export import write_gguf

    with TemporaryDirectory(prefix="forerun-") as folder:
        path = Path(folder) / "target-f32.gguf"
        write_gguf(load_target(), demo_models.TARGET_DIR / "tokenizer.json", path, quantised=False)
        yield str(path)
