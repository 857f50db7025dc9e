"""Transformers' own ways to write a text: `generate` alone, with a draft model, and with prompt lookup.

Everything is float32, as `forerun verify` computes on a CPU. The bundled draft is a GGUF file; it is
dequantised, so it holds the weights that llama.cpp runs. Transformers runs draft and target in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import demo_models
from benchmarks.rivals import Arrivals, Job, Lookahead, Rival, Setting, TargetMeter
from common.errors import UserError


class Generate:
    """`model.generate` with some extra arguments. `draft` is given where the text is assisted by one."""

    def __init__(
        self, name: str, variant: str, target: Any, meter: TargetMeter, extra: dict[str, Any]
    ) -> None:
        self.name = name
        self.variant = variant
        self._target = target
        self._meter = meter
        self._extra = extra
        self._num_drafted = 0

    def write(self, job: Job) -> dict[str, Any]:
        """See `Rival.write`. The same seed gives the same text of this rival, not that of another."""
        torch.manual_seed(job.seed)
        self._meter.reset()
        self._before(job)
        prompt, stream = torch.tensor([job.token_ids]), TokenStream()
        how = sampling(job.temperature) | self._extra
        self._target.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=job.max_tokens,
            eos_token_id=None,
            pad_token_id=0,
            streamer=stream,
            **how,
        )
        return stream.arrivals.record(self._meter, self._num_drafted)

    def _before(self, job: Job) -> None:
        """Nothing to prepare."""


class Assisted(Generate):
    """`generate(assistant_model=...)`: assisted generation of transformers."""

    def __init__(self, lookahead: Lookahead, target: Any, draft: Any, meter: TargetMeter) -> None:
        super().__init__("transformers_assisted", str(lookahead), target, meter, {"assistant_model": draft})
        self._lookahead = lookahead
        self._draft = draft
        draft.register_forward_hook(self._count)

    def _before(self, job: Job) -> None:
        """Transformers reads the draft length from the draft's own configuration."""
        config = self._draft.generation_config
        config.num_assistant_tokens = self._lookahead.num_tokens
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = self._lookahead.min_confidence
        self._num_drafted = 0

    def _count(self, model: Any, arguments: Any, output: Any) -> None:
        self._num_drafted += output.logits.shape[1]


class TokenStream:
    """What transformers calls a streamer: it is given the prompt, and then tokens as they are decided."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self._began = False

    def put(self, value: torch.Tensor) -> None:
        if self._began:
            self.arrivals.add(value.flatten().tolist())
        self._began = True

    def end(self) -> None:
        """Nothing is held back."""


def sampling(temperature: float) -> dict[str, Any]:
    """Arguments of `generate`: greedy, or the whole distribution, with none of its own filters."""
    if temperature == 0.0:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}


def load_rivals(setting: Setting) -> list[Rival]:
    """All of them, on one target and one draft. Call it in the thread that will run them.

    Raises `UserError` for models that cannot be used.
    """
    torch.set_num_threads(setting.threads)
    logging.set_verbosity_error()  # its assisted generation warns of its own calls
    logging.disable_progress_bar()
    target, draft = load_model(setting.target), load_draft(setting)
    meter = TargetMeter(setting.floor_s)
    target.register_forward_pre_hook(lambda model, arguments: meter.begin())
    target.register_forward_hook(lambda model, arguments, output: meter.end(output.logits.shape[1]))
    rivals: list[Rival] = [Generate("transformers", "", target, meter, {})]
    rivals += [Assisted(lookahead, target, draft, meter) for lookahead in setting.lookaheads]
    for length in setting.lengths:
        extra = {"prompt_lookup_num_tokens": length}
        rivals.append(Generate("transformers_prompt_lookup", str(length), target, meter, extra))
    return rivals


def load_model(path: str) -> Any:
    """A Hugging Face folder in float32. Raises `UserError` if it cannot be read."""
    try:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    except (OSError, ValueError) as error:
        raise UserError(f"transformers cannot load {path} ({error}); give a Hugging Face folder") from error


def load_draft(setting: Setting) -> Any:
    """The draft from its folder, or the bundled GGUF dequantised. Raises `UserError` for another GGUF."""
    if setting.draft_folder:
        return load_model(setting.draft_folder)
    if Path(setting.draft).resolve() != demo_models.DRAFT_GGUF:
        raise UserError(f"transformers needs {setting.draft} as a folder; give it with --draft-folder")
    from demo_models.gguf_export import read_gguf

    return read_gguf(demo_models.DRAFT_GGUF)


def tokenize(path: str, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Token ids of each text by the tokenizer in a folder, no begin token added, as the edge does it."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    return [tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
