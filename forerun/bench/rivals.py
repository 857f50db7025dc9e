"""Transformers' own ways to write many texts at a time, in a process of its own on the verifier's core.

    python -m forerun.bench.rivals --model demo_models/target --core 1

Lines of JSON on standard input: `{"do": "tune"|"continuous"|"padded", "prompts": [[...]], "max_tokens": 64,
"at_once": 32, "temperature": 0, "seed": 0}`; a line of JSON answers each. Texts are float32 on a CPU, end
tokens or not, as those of the load.

- continuous: the continuous batching of `generate_batch`, through its manager, so that setting up its cache
  is
  not in the time; `at_once` requests in a batch. `tune` tries attention implementations and page sizes, and
  the fastest is used from then on.
- padded: `generate` on batches of `at_once` prompts, padded on the left, sdpa attention.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.utils import logging

from common.errors import ForerunError, LocalError, UserError
from forerun.options import add_core, pin_to_core

NO_TOKEN = -1
"""An end token that no text has."""

TUNE_TOKENS = 12
"""Of each text while settings are tried."""

PATIENCE = 600.0
"""Seconds for a batch of texts."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Of continuous batching: what of it matters to speed on a CPU."""

    attention: str
    page_size: int  # tokens of KV that are allocated and gathered together

    def __str__(self) -> str:
        return f"{self.attention}, pages of {self.page_size}"


SETTINGS = (
    Setting("sdpa", 256),  # transformers' own default
    Setting("sdpa", 32),
    Setting("sdpa", 16),
    Setting("paged|eager", 32),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """What to write."""

    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    at_once: int
    temperature: float
    seed: int

    @property
    def sampling(self) -> dict[str, Any]:
        """Greedy, or the whole distribution, with none of transformers' own filters."""
        if self.temperature == 0.0:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}

    @property
    def config(self) -> GenerationConfig:
        return GenerationConfig(
            max_new_tokens=self.max_tokens, eos_token_id=NO_TOKEN, pad_token_id=0, **self.sampling
        )


class Rivals:
    """One model, and both ways to run it."""

    def __init__(self, path: str, threads: int, device: str) -> None:
        torch.set_num_threads(threads)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        dtype = torch.float32 if device == "cpu" else "auto"
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")
        except (OSError, ValueError) as error:
            raise UserError(
                f"transformers cannot load {path} ({error}); give a Hugging Face folder"
            ) from error
        self._model: Any = model.to(device).eval()
        self._setting = SETTINGS[0]
        self._ends: list[float] = []  # of each forward
        self._model.register_forward_hook(lambda *_: self._ends.append(time.perf_counter()))

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """One request of `main`'s."""
        asked = {**message, "prompts": tuple(tuple(prompt) for prompt in message["prompts"])}
        do = asked.pop("do")
        batch = Batch(**asked)
        torch.manual_seed(batch.seed)
        self._ends.clear()
        if do == "tune":
            return self._tune(batch)
        return self._continuous(batch) if do == "continuous" else self._padded(batch)

    def _tune(self, batch: Batch) -> dict[str, Any]:
        """The fastest setting of continuous batching for a short piece of this batch."""
        short = Batch(batch.prompts, TUNE_TOKENS, batch.at_once, batch.temperature, batch.seed)
        seconds: dict[str, float | None] = {}
        best = float("inf")
        for setting in SETTINGS:
            took = self._attempt(setting, short)
            seconds[str(setting)] = took
            if took is not None and took < best:
                best, self._setting = took, setting
        if best == float("inf"):
            raise LocalError(
                "no attention implementation of transformers' continuous batching runs this model"
            )
        return {"setting": str(self._setting), "tried_seconds": seconds}

    def _attempt(self, setting: Setting, batch: Batch) -> float | None:
        """Seconds; None where transformers refuses the setting for this model."""
        before, self._setting = self._setting, setting
        try:
            return float(self._continuous(batch)["seconds"])
        except (ValueError, RuntimeError, NotImplementedError):
            return None
        finally:
            self._setting = before

    def _continuous(self, batch: Batch) -> dict[str, Any]:
        """All at once to the manager, which runs `at_once` of them at a time."""
        page = self._setting.page_size
        longest = max(map(len, batch.prompts)) + batch.max_tokens
        config = ContinuousBatchingConfig(
            page_size=page,
            num_blocks=(batch.at_once + 1) * (longest // page + 2),
            max_requests_per_batch=batch.at_once,
            max_batch_tokens=max(512, batch.at_once),
        )
        self._model.set_attn_implementation(self._setting.attention)
        with self._model.continuous_batching_context_manager(
            generation_config=batch.config, continuous_batching_config=config, timeout=5
        ) as manager:
            began_at = time.perf_counter()
            names = manager.add_requests(
                inputs=[list(prompt) for prompt in batch.prompts],
                max_new_tokens=batch.max_tokens,
                record_timestamps=True,
            )
            outputs = _collect(manager, len(names))
            seconds = time.perf_counter() - began_at
        found = [outputs[name] for name in names]
        return {
            "seconds": seconds,
            "texts": [list(output.generated_tokens) for output in found],
            "arrivals": [[at - began_at for at in output.timestamps] for output in found],
            "target_steps": len(self._ends),
        }

    @torch.inference_mode()
    def _padded(self, batch: Batch) -> dict[str, Any]:
        self._model.set_attn_implementation("sdpa")
        began_at = time.perf_counter()
        texts, arrivals = list[list[int]](), list[list[float]]()
        for first in range(0, len(batch.prompts), batch.at_once):
            before = len(self._ends)
            written = self._generate(batch.prompts[first : first + batch.at_once], batch)
            times = [at - began_at for at in self._ends[before:]]
            texts += written
            arrivals += [times[: len(text)] for text in written]
        return {
            "seconds": time.perf_counter() - began_at,
            "texts": texts,
            "arrivals": arrivals,
            "target_steps": len(self._ends),
        }

    def _generate(self, prompts: Sequence[tuple[int, ...]], batch: Batch) -> list[list[int]]:
        longest = max(map(len, prompts))
        padded = torch.tensor([(0,) * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        device = self._model.device
        output = self._model.generate(
            padded.to(device), attention_mask=mask.to(device), generation_config=batch.config
        )
        written: list[list[int]] = output[:, longest:].tolist()
        return written


def _collect(manager: Any, count: int) -> dict[str, Any]:
    """All results. Raises `LocalError` if the manager ends before, or a request fails."""
    found: dict[str, Any] = {}
    until = time.monotonic() + PATIENCE
    while len(found) < count:
        result = manager.get_result(timeout=1)
        if result is not None and result.error is not None:
            raise LocalError(f"transformers' continuous batching failed: {result.error}")
        if result is not None and result.is_finished():
            found[result.request_id] = result
        elif not manager.is_running() or time.monotonic() > until:
            raise LocalError("transformers' continuous batching ended early")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m forerun.bench.rivals", description=__doc__)
    parser.add_argument("--model", required=True, metavar="PATH")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--device", default="cpu")
    add_core(parser)
    options = parser.parse_args(arguments)
    pin_to_core(options.core)
    try:
        rivals = Rivals(options.model, options.threads, options.device)
        print(json.dumps({"event": "ready"}), flush=True)
        for line in sys.stdin:
            print(json.dumps(rivals.answer(json.loads(line))), flush=True)
    except ForerunError as error:
        print(f"forerun: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
