"""Implements the verifier's engine: one packed forward of the target per step, and its choices."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import (
    FloatArray,
    GuessPlan,
    GuessResult,
    Stats,
    StepItem,
    StepPlan,
    StepResult,
    TargetInfo,
)
from cloud_verifier.engine.attention.backend import AttentionBackend, KVStore, StepContext, current_step
from cloud_verifier.engine.attention.torch_ref import TorchRefBackend
from cloud_verifier.engine.layer_states import StateStore, current_states
from cloud_verifier.engine.packed_engine import PackedEngine
from cloud_verifier.engine.packing import PackedStep, pack
from cloud_verifier.engine.sampling.host_choice import (
    ChoiceRow,
    Chosen,
    by_item,
    choose_on_host,
    decide_by_rules,
    has_rules,
)
from cloud_verifier.engine.sampling.row_logprobs import near_tie, row_logprobs
from common.errors import CapacityError
from common.grammar.strings import is_installed

if TYPE_CHECKING:
    from cloud_verifier.engine.model.transformers_adapter import TargetModel

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StepCounts:
    """Counts an engine's steps for the metrics of CUDA graphs."""

    graph: int = 0  # replayed
    eager: int = 0
    captures: int = 0  # graphs made
    reasons: Counter[str] = field(default_factory=Counter)  # why steps were eager, if graphs were asked for


class StepRunner(Protocol):
    """Turns a packed step into its choices."""

    counts: StepCounts

    def run(self, step: PackedStep) -> Chosen:
        """Choose the tokens of `step.outputs`."""


class EngineDrafter(Protocol):
    """Guesses beside one engine, in its thread."""

    @property
    def slot_bytes(self) -> int:
        """The bytes that a KV slot takes beside the target's own."""

    def note(self, step: PackedStep) -> None:
        """Note that the target writes these rows."""

    def guess(self, plan: GuessPlan) -> GuessResult:
        """Implement `TargetEngine.guess`."""

    def take_memory(self) -> None:
        """Allocate all KV. The row at slot 0 has been written."""


class OwnDraft(Protocol):
    """What an engine may have for guesses of its own, as `schemes` does."""

    depth: int  # most levels of its guesses
    has_own_kv: bool  # else guessed nodes lie behind the slots of the target's KV
    num_scratch: int  # slots of guessed nodes

    def beside(self, engine: TorchEngine) -> EngineDrafter:
        """Return the drafter for one engine."""


class TorchEngine(PackedEngine):
    """Runs a target on torch, with a drafter of its own if there is a `draft`.

    Steps run eagerly and choose on the host, unless another `runner` is set.
    """

    def __init__(
        self,
        model: TargetModel,
        num_slots: int,
        *,
        backend: AttentionBackend | None = None,
        fingerprint: bytes = b"",
        draft: OwnDraft | None = None,
        num_states: int = 256,
    ) -> None:
        self.model = model
        self.backend = backend or TorchRefBackend()
        spare = 1 if draft is None or draft.has_own_kv else 1 + draft.num_scratch
        self.kv = KVStore(num_slots + spare)  # no plan names the last one: it is for rows that pad a replay
        # Of layers that keep a state; `num_states` is ignored for a model without such layers.
        self.states = StateStore(num_states, num_slots + spare) if model.state_layers else None
        info = TargetInfo(
            name=model.name,
            vocab_size=model.vocab_size,
            max_positions=model.max_positions,
            num_slots=num_slots,
            eos_token_ids=model.eos_token_ids,
            fingerprint=fingerprint,
            rows_per_read=self.backend.rows_per_read,
            near_tie=near_tie(model.dtype),
            chat=model.chat,
            grammars=model.has_tokenizer and is_installed(),
            sampling_defaults=model.sampling_defaults,
            guess_depth=0 if draft is None else draft.depth,
            recurrent=self.states is not None,
            expert_share=model.expert_share,
        )
        super().__init__(info, model.grammar_tokens)
        self.drafter = None if draft is None else draft.beside(self)
        self.runner: StepRunner = RowByRow(self.forward, self.choice_rows)

    def stats(self) -> Stats:
        """Return how the engine's steps ran, and why they were eager if graphs were requested."""
        counts = self.runner.counts
        return {
            "graph_steps_total": counts.graph,
            "eager_steps_total": counts.eager,
            "graphs_made_total": counts.captures,
            "eager_reasons_total": dict(counts.reasons),
        }

    @torch.inference_mode()
    def _step(self, plan: StepPlan, step: PackedStep) -> StepResult:
        if self.drafter is not None:
            self.drafter.note(step)
        with capacity_errors(plan):
            if has_rules(plan) and len(step.outputs):
                return self._by_rules(plan, step)
            return by_item(plan, self.runner.run(step))

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """Run one step for its raw logits: float32 [O, V], on the model's device. Raises as `evaluate`."""
        step = pack(plan, self._limits, self._marks)
        if self.drafter is not None:
            self.drafter.note(step)
        with capacity_errors(plan):
            return self.forward(step)

    def guess(self, plan: GuessPlan) -> GuessResult:
        return super().guess(plan) if self.drafter is None else self.drafter.guess(plan)

    def _by_rules(self, plan: StepPlan, step: PackedStep) -> StepResult:
        """Run a step whose sessions asked for another rule than the coupled one. Rules read the logits."""
        self.runner.counts.eager += 1
        rows = [row for item in plan.items for row in self.choice_rows(item)]
        judges = [item.ask.judge for item in plan.items if item.ask is not None]
        reads_hidden = any(judge is not None and judge.num_hidden for judge in judges)
        with last_hidden(self.model) if reads_hidden else nullcontext() as states:
            logits = self.forward(step)
        on_host: FloatArray = logits.cpu().numpy()
        coupled = Chosen(*choose_on_host(on_host, rows))

        def hidden(part: slice) -> FloatArray:
            assert states, "a judge reads them"
            own: FloatArray = states[-1][0, step.outputs[part]].float().cpu().numpy()
            return own

        result = decide_by_rules(
            plan, on_host.__getitem__, rows, by_item(plan, coupled), hidden if reads_hidden else None
        )
        return replace(result, logprobs=row_logprobs(plan.items, logits, np.concatenate(result.choices)))

    def forward(self, step: PackedStep) -> Tensor:
        """Write the rows' KV and return logits float32 [O, V]. Every step is computed here; runners build on
        this method."""
        if self.states is not None:
            for item in self.states.missing(step.items):
                self.forward(pack(StepPlan((item,)), self._limits))
        packed = np.concatenate((step.tokens, step.positions, step.slots, step.outputs))
        num_rows = step.num_rows
        on_device = torch.from_numpy(packed).to(self.model.device)  # one transfer for all four
        tokens, positions, slots = on_device[: 3 * num_rows].view(3, num_rows)
        attention = self.backend.prepare(step, self.model.device)
        states = self.states and self.states.prepare(step, self.model.device)
        with (
            current_step(StepContext(self.kv, slots, attention)),
            current_states(states) if states else nullcontext(),
        ):
            return self.model.forward(tokens[None], positions[None], on_device[3 * num_rows :])


class RowByRow:
    """Runs steps eagerly and chooses on the host. A `StepRunner`."""

    def __init__(
        self, forward: Callable[[PackedStep], Tensor], rows_of: Callable[[StepItem], list[ChoiceRow]]
    ) -> None:
        self.counts = StepCounts()
        self._forward = forward
        self._rows_of = rows_of

    def run(self, step: PackedStep) -> Chosen:
        if step.num_rows:
            self.counts.eager += 1
        if not len(step.outputs):
            if step.num_rows:
                self._forward(step)
            return no_choices()
        rows = [row for item in step.items for row in self._rows_of(item)]
        logits = self._forward(step)
        choices, margins = choose_on_host(logits.cpu().numpy(), rows)
        return Chosen(choices, margins, row_logprobs(step.items, logits, choices))


@contextmanager
def last_hidden(model: TargetModel) -> Iterator[list[Tensor]]:
    """Collect the last hidden states [1, T, H] of each forward of the model until the block ends. One in
    tiles is not collected as a whole."""
    states = list[Tensor]()
    hook = model.decoder.register_forward_hook(lambda _module, _inputs, output: states.append(output[0]))
    try:
        yield states
    finally:
        hook.remove()


@contextmanager
def capacity_errors(plan: StepPlan) -> Iterator[None]:
    """Make torch's lack of memory a `CapacityError`, and free its cache, so that a smaller step can run."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).strip().splitlines()[0]
    else:
        return
    torch.cuda.empty_cache()  # outside the handler: the error's traceback holds the step's tensors
    raise CapacityError(
        f"no memory for a step of {plan.num_rows} rows in {len(plan.items)} sessions ({reason}); take fewer "
        "at a time (--max-rows, --prefill-chunk), or keep fewer KV slots (--slots)"
    )


def no_choices() -> Chosen:
    """Return the choices of a step without outputs."""
    return Chosen(np.zeros(0, np.int32), np.zeros(0, np.float32))
