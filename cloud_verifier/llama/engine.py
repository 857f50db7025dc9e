"""Implements the verifier's engine on llama.cpp: one llama_decode per step, and its choices."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from cloud_verifier.core.engine_protocol import Chat, FloatArray, StepPlan, StepResult, TargetInfo
from cloud_verifier.engine.around import Stats
from cloud_verifier.engine.packing import PackedStep, PrefixMarks, StepLimits, pack
from cloud_verifier.engine.sampling.grammar import TargetGrammars
from cloud_verifier.engine.sampling.host import (
    Chosen,
    by_item,
    choice_rows,
    choose_on_host,
    decide_by_rules,
    has_rules,
    logprobs_on_host,
    told_of,
)
from cloud_verifier.llama.forward import LlamaForward
from cloud_verifier.llama.shapes import DecodeShapes
from common.grammar.strings import is_installed
from common.llama.runtime import LlamaRuntime
from common.messages import Open
from common.sampling import NO_ADVICE, SamplingDefaults
from common.vocabulary import Vocabulary
from common.wire.bounds import MAX_TEMPLATE_BYTES

logger = logging.getLogger(__name__)

NEAR_TIE = 0.4
"""In logits, where texts do not repeat themselves. llama.cpp rounds activations to 8 bits and products by the
number of rows; log-probabilities move by up to 0.14, and by 0.67 for one model (docs/determinism.md)."""


class LlamaEngine:
    """Implements `TargetEngine` on llama.cpp. Only one thread at a time may call it.

    Choices are made on the host (`common.choice`).
    """

    def __init__(
        self, runtime: LlamaRuntime, num_slots: int, *, name: str, advice: SamplingDefaults = NO_ADVICE
    ) -> None:
        """`runtime` has more than `num_slots` cells."""
        self.runtime = runtime
        max_positions = min(runtime.n_ctx_train, num_slots)
        self.info = TargetInfo(
            name=name,
            vocab_size=runtime.num_vocab,
            max_positions=max_positions,
            num_slots=num_slots,
            eos_token_ids=runtime.eos_ids,
            fingerprint=Vocabulary(runtime.token_table()).fingerprint,
            near_tie=NEAR_TIE,
            chat=_chat_of(runtime),
            grammars=is_installed(),
            sampling_defaults=advice,
        )
        self._marks = PrefixMarks(num_slots)
        self._limits = StepLimits(runtime.num_vocab, max_positions, num_slots)
        self.forward = LlamaForward(runtime, num_slots, max_positions)
        self._grammars = TargetGrammars(runtime.grammar_tokens)

    def use(self, shapes: DecodeShapes) -> None:
        """Cut steps into decodes of these shapes."""
        self.forward.shapes = shapes
        most = min(self.runtime.n_together, self.runtime.max_rows)
        times = tuple((rows, shapes.step_seconds(rows, most)) for rows, _ in shapes.times)
        near_tie = 0.0 if shapes.repeats else NEAR_TIE
        self.info = replace(self.info, near_tie=near_tie, row_times=times, repeats=shapes.repeats)

    def keep_apart(self, apart: bool) -> None:
        """Say whether prompts may use the KV of written tokens (`TargetInfo.apart`)."""
        self.info = replace(self.info, apart=apart)

    def compact(self) -> None:
        """Move the KV cells in use together. A step does so when it has to."""
        self.forward.sequences.compact()

    def stats(self) -> Stats:
        """Return the engine's figures: rows that were evaluated again because their KV was lost, and KV cells
        that were moved."""
        return {
            "lost_rows_total": self.forward.num_again,
            "moved_cells_total": self.forward.sequences.num_moved,
        }

    def check_grammar(self, request: Open) -> None:
        self._grammars.check(request)

    def prepare_grammars(self) -> None:
        if self.info.grammars:
            self._grammars.prepare()

    def evaluate(self, plan: StepPlan) -> StepResult:
        """Run one step. Raises `LocalError` for a plan that breaks a rule of `StepItem` and for a failure of
        llama.cpp, and `CapacityError` if it has no memory for the step."""
        self._grammars.take_times()  # of a step that failed: its sessions may be gone
        step = self._pack(plan)
        rows = [row for item in plan.items for row in choice_rows(item, self._grammars.mask)]
        logits = self.forward.run(step)
        choices, margins = choose_on_host(logits, rows)
        result = by_item(plan, Chosen(choices, margins))
        if has_rules(plan):
            result = decide_by_rules(plan, lambda part: logits[part], rows, result)
        if any(item.logprobs is not None for item in plan.items):
            chosen = np.concatenate(result.choices)
            told = told_of(plan.items, lambda part, most: logprobs_on_host(logits[part], chosen[part], most))
            result = replace(result, logprobs=told)
        times = self._grammars.take_times()
        return replace(result, mask_times=times) if times else result

    def logits(self, plan: StepPlan) -> FloatArray:
        """Run one step for its raw logits: float32 [O, V]. Raises as `evaluate`."""
        return self.forward.run(self._pack(plan)).copy()

    def clear(self) -> None:
        """Forget all KV. Prefixes that later steps name are evaluated again."""
        self.forward.clear()

    def close(self) -> None:
        """Free model and KV."""
        self.runtime.close()

    def _pack(self, plan: StepPlan) -> PackedStep:
        return pack(plan, self._limits, self._marks)


def _chat_of(runtime: LlamaRuntime) -> Chat | None:
    """Return the file's chat template and the tokens that it may name; None without a template."""
    template = runtime.chat_template
    if len(template.encode()) > MAX_TEMPLATE_BYTES:
        logger.warning("%s: its chat template is too long and is left out", runtime.path)
        template = ""
    return Chat(template, *runtime.boundary_texts) if template else None
