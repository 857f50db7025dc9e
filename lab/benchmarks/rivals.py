"""Runs transformers' and llama.cpp's own ways to write a text, for `lab.benchmarks.one_machine`. The
libraries are imported on use, as imports take seconds.

Transformers: `generate` alone, with a draft model, and with prompt lookup. llama-cpp-python: `Llama.generate`
alone, with prompt lookup, and with a draft model; the package has no draft that runs a model, so `GgufDraft`
is ours. Both libraries run draft and target in turns. Everything is float32, as `forerun verify` computes on
a CPU: the bundled target is written as GGUF in float32, and the bundled draft is dequantised for
transformers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from common.errors import LocalError, UserError
from lab.demo_models import DRAFT_GGUF, TARGET_DIR

Clock = Callable[[], float]
IntArray = NDArray[np.intc]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MachineJob:
    """Holds one text to write. `token_ids` are the prompt's, without begin or end tokens."""

    text: str
    token_ids: tuple[int, ...]
    max_tokens: int
    temperature: float  # 0 = greedy
    seed: int


@dataclass(frozen=True, slots=True)
class LookupDecoding:
    """Limits a draft model between checks of the target: at most `num_tokens`, and no further than a token
    that it gives less than `min_confidence`."""

    num_tokens: int
    min_confidence: float = 0.0

    def __post_init__(self) -> None:
        if not (1 <= self.num_tokens <= 256 and 0.0 <= self.min_confidence < 1.0):
            raise UserError(f"a draft length is {self}; it needs 1 to 256 tokens and a confidence in [0, 1)")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `8` or `16@0.4`. Raises `UserError` for anything else."""
        length, _, confidence = text.partition("@")
        try:
            return cls(int(length), float(confidence or 0.0))
        except ValueError as error:
            raise UserError(
                f"a draft length is {text!r}; write 8, or 16@0.4 to stop below a confidence of 0.4"
            ) from error

    def __str__(self) -> str:
        return f"{self.num_tokens}@{self.min_confidence:g}" if self.min_confidence else f"{self.num_tokens}"


@dataclass(frozen=True, slots=True)
class MachineSetting:
    """Holds the settings of the rivals."""

    lookaheads: tuple[LookupDecoding, ...]
    floor_s: float  # least time of a target step
    threads: int  # of a model's step
    num_positions: int  # tokens that prompt, text and draft take at most

    @property
    def lengths(self) -> list[int]:
        """Return the lengths that prompt lookup tries, which has no confidence."""
        return sorted({lookahead.num_tokens for lookahead in self.lookaheads})


class TargetMeter:
    """Counts a target's steps; makes each last `floor_s` seconds, as `forerun verify --step-floor` does."""

    def __init__(
        self, floor_s: float, clock: Clock = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._floor_s, self._clock, self._sleep = floor_s, clock, sleep
        self._end_at = 0.0
        self.steps = 0
        self.rows = 0  # evaluated for a choice: in the step that reads the prompt, one

    def reset(self) -> None:
        """Count from zero."""
        self.steps = self.rows = 0

    def begin(self) -> None:
        """Note the begin of a step."""
        self._end_at = self._clock() + self._floor_s

    def end(self, rows: int) -> None:
        """Note the end of a step, and wait for the rest of its time."""
        self.steps += 1
        self.rows += rows
        rest = self._end_at - self._clock()
        if rest > 0.0:
            self._sleep(rest)


@dataclass(slots=True)
class ArrivalTimes:
    """Records tokens with their times of arrival, since its construction."""

    clock: Clock = time.perf_counter
    tokens: list[int] = field(default_factory=list)
    times_ms: list[float] = field(default_factory=list)
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def add(self, tokens: list[int]) -> None:
        """Note tokens that came now."""
        self.tokens += tokens
        self.times_ms += [(self.clock() - self._began) * 1e3] * len(tokens)

    def record(self, meter: TargetMeter, drafted: int) -> dict[str, Any]:
        """Return a rig's `done` event, without a link. A step's rows are one tip and the proposed tokens."""
        proposed = meter.rows - meter.steps
        stats = {"target_steps": meter.steps, "evaluated": meter.rows, "proposed": proposed}
        link = {"link_bytes_up": 0, "link_bytes_down": 0}
        times = {"tokens": self.tokens, "arrivals_ms": self.times_ms}
        return {**times, "stats": {**stats, "drafted": drafted}, **link}


# Transformers -----------------------------------------------------------------------------------------------


class Generate:
    """Calls `model.generate` with some extra arguments. `draft` is given for assisted text."""

    def __init__(
        self, name: str, variant: str, target: Any, meter: TargetMeter, extra: dict[str, Any]
    ) -> None:
        self.name = name
        self.variant = variant
        self._target = target
        self._meter = meter
        self._extra = extra
        self._num_drafted = 0

    def write(self, job: MachineJob) -> dict[str, Any]:
        """Write `max_tokens`, end tokens or not. A seed repeats a text of this rival alone."""
        import torch

        torch.manual_seed(job.seed)
        self._meter.reset()
        self._before(job)
        prompt, stream = torch.tensor([job.token_ids]), TokenStream()
        ends = {"max_new_tokens": job.max_tokens, "eos_token_id": None, "pad_token_id": 0}
        how: dict[str, Any] = {
            "do_sample": False
        }  # greedy, or the whole distribution, with none of its own filters
        if job.temperature:
            how = {"do_sample": True, "temperature": job.temperature, "top_k": 0, "top_p": 1.0}
        mask = torch.ones_like(prompt)
        self._target.generate(prompt, attention_mask=mask, streamer=stream, **ends, **how, **self._extra)
        return stream.arrivals.record(self._meter, self._num_drafted)

    def _before(self, job: MachineJob) -> None:
        """Nothing to prepare."""


class Assisted(Generate):
    """Calls `generate(assistant_model=...)`: assisted generation of transformers."""

    def __init__(self, lookahead: LookupDecoding, target: Any, draft: Any, meter: TargetMeter) -> None:
        super().__init__("transformers_assisted", str(lookahead), target, meter, {"assistant_model": draft})
        self._lookahead = lookahead
        self._draft = draft
        draft.register_forward_hook(self._count)

    def _before(self, job: MachineJob) -> None:
        """Transformers reads the draft length from the draft's own configuration."""
        config = self._draft.generation_config
        config.num_assistant_tokens = self._lookahead.num_tokens
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = self._lookahead.min_confidence
        self._num_drafted = 0

    def _count(self, model: Any, arguments: Any, output: Any) -> None:
        self._num_drafted += output.logits.shape[1]


class TokenStream:
    """Receives the prompt and then each decided token; transformers calls this a streamer."""

    def __init__(self) -> None:
        self.arrivals = ArrivalTimes()
        self._began = False

    def put(self, value: Any) -> None:
        if self._began:
            self.arrivals.add(value.flatten().tolist())
        self._began = True

    def end(self) -> None:
        """Do nothing: no token is held back."""


def load_transformers(setting: MachineSetting) -> list[Generate]:
    """Load all rivals on one target and one draft. Call it in the thread that will run them."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from lab.demo_models.gguf_export import read_gguf

    torch.set_num_threads(setting.threads)
    logging.set_verbosity_error()  # its assisted generation warns of its own calls
    logging.disable_progress_bar()
    target: Any = AutoModelForCausalLM.from_pretrained(TARGET_DIR, dtype=torch.float32).eval()
    draft = read_gguf(DRAFT_GGUF)
    meter = TargetMeter(setting.floor_s)
    target.register_forward_pre_hook(lambda model, arguments: meter.begin())
    target.register_forward_hook(lambda model, arguments, output: meter.end(output.logits.shape[1]))
    rivals: list[Generate] = [Generate("transformers", "", target, meter, {})]
    rivals += [Assisted(lookahead, target, draft, meter) for lookahead in setting.lookaheads]
    for length in setting.lengths:
        extra = {"prompt_lookup_num_tokens": length}
        rivals.append(Generate("transformers_prompt_lookup", str(length), target, meter, extra))
    return rivals


def tokenize(texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return token ids of each text by the target's tokenizer, without a begin token, as the edge does."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TARGET_DIR)
    return [tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]


# llama.cpp --------------------------------------------------------------------------------------------------


class Written:
    """Calls `Llama.generate`, with or without a draft model."""

    def __init__(self, name: str, variant: str, llama: Any, meter: TargetMeter, draft: Any = None) -> None:
        self.name = name
        self.variant = variant
        self._llama = llama
        self._meter = meter
        self._draft = draft

    def write(self, job: MachineJob) -> dict[str, Any]:
        """Write `max_tokens`. One draw of the seeded sampler a token, so drafts do not change the text."""
        llama, draft = self._llama, self._draft
        llama.draft_model = draft
        llama.set_seed(job.seed)
        llama.reset()  # nothing of this prompt is known from before
        self._meter.reset()
        num_drafted, arrivals = getattr(draft, "num_drafted", 0), ArrivalTimes()
        for token in islice(llama.generate(job.token_ids, **sampling(job.temperature)), job.max_tokens):
            arrivals.add([int(token)])
        return arrivals.record(self._meter, getattr(draft, "num_drafted", 0) - num_drafted)


class GgufDraft:
    """Drafts for `Llama`: greedy tokens of a GGUF, whose KV is kept as far as the text agrees with it.

    Raises `LocalError` from a call if llama.cpp fails.
    """

    def __init__(self, runtime: Any, lookahead: LookupDecoding) -> None:
        self.num_drafted = 0  # tokens
        self._runtime = runtime
        self._lookahead = lookahead
        self._held: list[int] = []  # tokens whose KV is there

    def __call__(self, input_ids: IntArray, /, **_: Any) -> IntArray:
        """Return candidates after `input_ids` [length]: up to `num_tokens`, fewer if the context is full."""
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
    """Return the probability of the best of `scores` [vocabulary], which are logits."""
    return float(1.0 / np.exp(scores - scores.max()).sum())


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens that both begin with."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def sampling(temperature: float) -> dict[str, Any]:
    """Return arguments of `Llama.generate`: greedy, or the whole distribution without its filters."""
    return {"temp": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}


def load_llama(setting: MachineSetting, stack: ExitStack) -> list[Written]:
    """Load all rivals on one target and one draft; `stack` frees them."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    from common.llama.model import LlamaSettings
    from common.llama.runtime import LlamaRuntime

    path = stack.enter_context(exported())
    meter = TargetMeter(setting.floor_s)
    # With a draft model `Llama` keeps all logits, so it is set up for it from the start.
    alone = open_llama(path, setting, meter, None, stack)
    assisted = open_llama(path, setting, meter, LlamaPromptLookupDecoding(), stack)
    settings = LlamaSettings(str(DRAFT_GGUF), n_ctx=setting.num_positions, threads=setting.threads)
    runtime = stack.enter_context(LlamaRuntime(settings))
    rivals = [Written("llama_cpp", "", alone, meter)]
    for lookahead in setting.lookaheads:
        draft = GgufDraft(runtime, lookahead)
        rivals.append(Written("llama_cpp_draft", str(lookahead), assisted, meter, draft))
    for length in setting.lengths:
        lookup = LlamaPromptLookupDecoding(num_pred_tokens=length)
        rivals.append(Written("llama_cpp_prompt_lookup", str(length), assisted, meter, lookup))
    return rivals


def open_llama(path: str, setting: MachineSetting, meter: TargetMeter, draft: Any, stack: ExitStack) -> Any:
    """Open a `Llama` whose steps `meter` counts and slows down."""
    import llama_cpp

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
    evaluate = llama.eval

    def step(tokens: Sequence[int]) -> None:
        rows = len(tokens) if llama.n_tokens else 1
        meter.begin()
        evaluate(tokens)
        meter.end(rows)

    llama.eval = step
    return llama


@contextmanager
def exported() -> Iterator[str]:
    """Write the bundled target as a GGUF file in float32."""
    from lab.demo_models.gguf_export import write_target

    with TemporaryDirectory(prefix="forerun-") as folder:
        path = Path(folder) / "target-f32.gguf"
        write_target(path, quantised=False)
        yield str(path)
