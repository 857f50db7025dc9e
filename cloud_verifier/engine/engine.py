"""The verifier's engine: one packed forward of the target per step, and its choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.core.target import IntArray, StepItem, StepPlan, StepResult, TargetInfo
from cloud_verifier.engine.attention import AttentionBackend, StepContext, current_step
from cloud_verifier.engine.choice import ChoiceRow, choose
from cloud_verifier.engine.counts import StepCounts
from cloud_verifier.engine.grammar import Mask, MaskOf, TargetGrammars
from cloud_verifier.engine.kv import KVStore
from cloud_verifier.engine.logprobs import Chosen, row_logprobs
from cloud_verifier.engine.near_tie import near_tie
from cloud_verifier.engine.packing import PackedStep, StepLimits, pack, path_rows
from cloud_verifier.engine.rules import decide_by_rules, has_rules
from cloud_verifier.engine.stats import Stats
from cloud_verifier.engine.torch_ref import TorchRefBackend
from common.errors import CapacityError, LocalError
from common.grammar.library import is_installed
from common.messages import Open

if TYPE_CHECKING:
    from cloud_verifier.engine.transformers_adapter import TargetModel


class StepRunner(Protocol):
    """A way to get from a packed step to its choices."""

    @property
    def counts(self) -> StepCounts:
        """How its steps ran so far."""
        ...

    def run(self, step: PackedStep) -> Chosen:
        """Of `step.outputs`."""
        ...


class TorchEngine:
    """A `TargetEngine` on torch. Not safe for several threads at a time; one thread calls it.

    Steps run eagerly and are chosen from row by row, unless another `runner` is set.
    """

    def __init__(
        self,
        model: TargetModel,
        num_slots: int,
        *,
        backend: AttentionBackend | None = None,
        fingerprint: bytes = b"",
    ) -> None:
        self._model = model
        self._backend = backend or TorchRefBackend()
        self._kv = KVStore(num_slots + 1)  # one that no plan names, for rows that pad a replayed step
        self._info = TargetInfo(
            name=model.name,
            vocab_size=model.vocab_size,
            max_positions=model.max_positions,
            num_slots=num_slots,
            eos_token_ids=model.eos_token_ids,
            fingerprint=fingerprint,
            rows_per_read=getattr(self._backend, "rows_per_read", 1),
            near_tie=near_tie(model.dtype),
            chat=model.chat,
            grammars=model.has_tokenizer and is_installed(),
            sampling_defaults=model.sampling_defaults,
        )
        self._limits = StepLimits(model.vocab_size, model.max_positions, num_slots)
        self._grammars = TargetGrammars(model.grammar_tokens)
        self.runner: StepRunner = RowByRow(self.forward, self.choice_rows)

    @property
    def info(self) -> TargetInfo:
        return self._info

    @property
    def model(self) -> TargetModel:
        """The target."""
        return self._model

    @property
    def backend(self) -> AttentionBackend:
        """How its attention is computed."""
        return self._backend

    @property
    def kv(self) -> KVStore:
        """The KV store, for its measures."""
        return self._kv

    def stats(self) -> Stats:
        """See `ReportsStats`: how its steps ran, and why they were eager if graphs were asked for."""
        counts = self.runner.counts
        return {
            "graph_steps_total": counts.graph,
            "eager_steps_total": counts.eager,
            "graphs_made_total": counts.captures,
            "eager_reasons_total": dict(counts.reasons),
        }

    @torch.inference_mode()
    def evaluate(self, plan: StepPlan) -> StepResult:
        """Run one step. Raises `LocalError` for a plan that breaks a rule of `StepItem`, and `CapacityError`
        if the device has no memory for it."""
        self._grammars.take_times()  # of a step that failed: its sessions may be gone
        with out_of_memory_told(plan):
            step = pack(plan, self._limits)
            if has_rules(plan) and len(step.outputs):
                result = self._by_rules(plan, step)
            else:
                result = _by_item(plan, self.runner.run(step))
        times = self._grammars.take_times()
        return replace(result, mask_times=times) if times else result

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """Run one step for its raw logits: float32 [O, V], on the model's device. Raises as `evaluate`."""
        with out_of_memory_told(plan):
            return self.forward(pack(plan, self._limits))

    def check_grammar(self, request: Open) -> None:
        """See `ChecksGrammars`."""
        self._grammars.check(request)

    def prepare_grammars(self) -> None:
        """See `PreparesGrammars`."""
        if self._info.grammars:
            self._grammars.prepare()

    def choice_rows(self, item: StepItem) -> list[ChoiceRow]:
        """What each output row's choice depends on besides its logits, masks of grammars included."""
        return choice_rows(item, self._grammars.mask)

    def _by_rules(self, plan: StepPlan, step: PackedStep) -> StepResult:
        """A step with sessions that asked for another rule than the coupled one; rules read the logits."""
        self.runner.counts.eager += 1
        rows = [row for item in plan.items for row in self.choice_rows(item)]
        logits = self.forward(step)
        choices, margins = choose(logits, rows)
        coupled = Chosen(choices.cpu().numpy().astype(np.int32), margins.cpu().numpy())
        found = decide_by_rules(plan, logits, rows, _by_item(plan, coupled))
        return replace(found, logprobs=row_logprobs(plan.items, logits, np.concatenate(found.choices)))

    def forward(self, step: PackedStep) -> Tensor:
        """Write the rows' KV and return logits float32 [O, V]: the one place where a step is computed, on
        which runners build."""
        packed = np.concatenate((step.tokens, step.positions, step.slots, step.outputs))
        num_rows = step.num_rows
        on_device = torch.from_numpy(packed).to(self._model.device)  # one transfer for all four
        tokens, positions, slots = on_device[: 3 * num_rows].view(3, num_rows)
        attention = self._backend.prepare(step, self._model.device)
        with current_step(StepContext(self._kv, slots, attention)):
            return self._model.forward(tokens[None], positions[None], on_device[3 * num_rows :])


class RowByRow:
    """Eager steps, and `choice.choose` on their rows. A `StepRunner`."""

    def __init__(
        self, forward: Callable[[PackedStep], Tensor], rows_of: Callable[[StepItem], list[ChoiceRow]]
    ) -> None:
        self.counts = StepCounts()
        self._forward = forward
        self._rows_of = rows_of

    def run(self, step: PackedStep) -> Chosen:
        """See `StepRunner.run`."""
        if step.num_rows:
            self.counts.eager += 1
        if not len(step.outputs):
            if step.num_rows:
                self._forward(step)
            return no_choices()
        rows = [row for item in step.items for row in self._rows_of(item)]
        logits = self._forward(step)
        tokens, margins = choose(logits, rows)
        choices = tokens.cpu().numpy().astype(np.int32)
        return Chosen(choices, margins.cpu().numpy(), row_logprobs(step.items, logits, choices))


@contextmanager
def out_of_memory_told(plan: StepPlan) -> Iterator[None]:
    """Make torch's lack of memory a `CapacityError`, and free its cache, so that a smaller step can run."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        told = str(error).strip().splitlines()[0]
    else:
        return
    torch.cuda.empty_cache()  # outside the handler: the error's traceback holds the step's tensors
    raise CapacityError(
        f"no memory for a step of {plan.num_rows} rows in {len(plan.items)} sessions ({told}); take fewer at "
        "a time (--max-rows, --prefill-chunk), or keep fewer KV slots (--slots)"
    )


def no_choices() -> Chosen:
    """The choices of a step without outputs."""
    return Chosen(np.zeros(0, np.int32), np.zeros(0, np.float32))


def choice_rows(item: StepItem, mask_of: MaskOf | None = None) -> list[ChoiceRow]:
    """What each output row's choice depends on besides its logits. `mask_of` is asked where there is a
    grammar; `LocalError` without."""
    sampling, positions, outputs = item.sampling, item.positions, item.outputs.tolist()
    if not sampling.reads_text:
        return [ChoiceRow(sampling, int(positions[row]), history=item.history) for row in outputs]
    rows = []
    for row in outputs:
        generated = _generated(item, row)
        allowed = _allowed(item, generated, mask_of) if sampling.grammar else None
        rows.append(ChoiceRow(sampling, int(positions[row]), item.prompt, generated, allowed, item.history))
    return rows


def _allowed(item: StepItem, generated: IntArray, mask_of: MaskOf | None) -> Mask | None:
    """None also where the row's own path breaks the grammar: its parent's choice is never this row, so
    whatever it chooses is dropped."""
    if mask_of is None:
        raise LocalError("a session has a grammar and nobody to tell its masks")
    return mask_of(item.session, item.sampling.grammar, generated)


def _generated(item: StepItem, row: int) -> IntArray:
    """Tokens after the prompt, up to and including `row` on its path; rows of the prompt do not count."""
    prompt_length = 0 if item.prompt is None else len(item.prompt)
    path = [index for index in path_rows(item.parents, row) if item.positions[index] >= prompt_length]
    earlier = item.generated if item.generated is not None else np.zeros(0, np.int32)
    return np.concatenate((earlier, item.tokens[path]))


def _by_item(plan: StepPlan, chosen: Chosen) -> StepResult:
    """Split choices and margins by item."""
    choices, margins, logprobs = chosen
    ends = [0, *accumulate(len(item.outputs) for item in plan.items)]
    parts = [slice(*ends[at : at + 2]) for at in range(len(plan.items))]
    return StepResult(
        tuple(choices[part] for part in parts), tuple(margins[part] for part in parts), logprobs
    )
