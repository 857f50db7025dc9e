"""Implements the verifier's engine on llama.cpp: one llama_decode per step, and its choices."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from cloud_verifier.core.engine_protocol import Chat, FloatArray, Stats, StepPlan, StepResult, TargetInfo
from cloud_verifier.engine.packed_engine import PackedEngine
from cloud_verifier.engine.packing import PackedStep, pack
from cloud_verifier.engine.sampling.host_choice import (
    Chosen,
    asked_logprobs,
    by_item,
    choose_on_host,
    decide_by_rules,
    has_rules,
    logprobs_on_host,
)
from cloud_verifier.llama.forward import LlamaForward
from cloud_verifier.llama.shapes import DecodeShapes
from common.grammar.strings import is_installed
from common.llama.runtime import LlamaRuntime
from common.sampling import NO_ADVICE, SamplingDefaults
from common.vocabulary import Vocabulary
from common.wire.bounds import MAX_TEMPLATE_BYTES

logger = logging.getLogger(__name__)

NEAR_TIE = 0.4
"""In logits, where texts do not repeat themselves. llama.cpp rounds activations to 8 bits and products by the
number of rows; log-probabilities move by up to 0.14, and by 0.67 for one model (docs/determinism.md)."""


class LlamaEngine(PackedEngine):
    """Runs a target on llama.cpp. Choices are made on the host (`common.choice`)."""

    def __init__(
        self, runtime: LlamaRuntime, num_slots: int, *, name: str, advice: SamplingDefaults = NO_ADVICE
    ) -> None:
        """`runtime` has more than `num_slots` cells."""
        self.runtime = runtime
        info = TargetInfo(
            name=name,
            vocab_size=runtime.num_vocab,
            max_positions=min(runtime.n_ctx_train, num_slots),
            num_slots=num_slots,
            eos_token_ids=runtime.eos_ids,
            fingerprint=Vocabulary(runtime.token_table()).fingerprint,
            near_tie=NEAR_TIE,
            chat=_chat_of(runtime),
            grammars=is_installed(),
            sampling_defaults=advice,
        )
        super().__init__(info, runtime.grammar_tokens)
        self.forward = LlamaForward(runtime, num_slots, info.max_positions)

    def use(self, shapes: DecodeShapes) -> None:
        """Cut steps into decodes of these shapes."""
        self.forward.shapes = shapes
        most = min(self.runtime.n_together, self.runtime.max_rows)
        times = tuple((rows, shapes.step_seconds(rows, most)) for rows, _ in shapes.times)
        near_tie = 0.0 if shapes.repeats else NEAR_TIE
        self.info = replace(self.info, near_tie=near_tie, row_times=times, repeats=shapes.repeats)

    def stats(self) -> Stats:
        """Return the engine's figures: rows that were evaluated again because their KV was lost, and KV cells
        that were moved."""
        return {
            "lost_rows_total": self.forward.num_again,
            "moved_cells_total": self.forward.sequences.num_moved,
        }

    def _step(self, plan: StepPlan, step: PackedStep) -> StepResult:
        rows = [row for item in plan.items for row in self.choice_rows(item)]
        logits = self.forward.run(step)
        result = by_item(plan, Chosen(*choose_on_host(logits, rows)))
        if has_rules(plan):
            result = decide_by_rules(plan, logits.__getitem__, rows, result)
        if any(item.logprobs is not None for item in plan.items):
            choices = np.concatenate(result.choices)
            logprobs = asked_logprobs(
                plan.items, lambda part, most: logprobs_on_host(logits[part], choices[part], most)
            )
            result = replace(result, logprobs=logprobs)
        return result

    def logits(self, plan: StepPlan) -> FloatArray:
        """Run one step for its raw logits: float32 [O, V]. Raises as `evaluate`."""
        return self.forward.run(pack(plan, self._limits, self._marks)).copy()

    def clear(self) -> None:
        """Forget all KV. Prefixes that later steps name are evaluated again."""
        self.forward.sequences.clear()


def _chat_of(runtime: LlamaRuntime) -> Chat | None:
    """Return the file's chat template and the tokens that it may name; None without a template."""
    template = runtime.chat_template
    if len(template.encode()) > MAX_TEMPLATE_BYTES:
        logger.warning("%s: its chat template is too long and is left out", runtime.path)
        template = ""
    return Chat(template, *runtime.boundary_texts) if template else None
