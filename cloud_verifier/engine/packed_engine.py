"""Does what the engines of torch and of llama.cpp do alike: packs each step, and masks grammars."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

from cloud_verifier.core.engine_protocol import StepItem, StepPlan, StepResult, TargetEngine, TargetInfo
from cloud_verifier.engine.packing import PackedStep, PrefixMarks, StepLimits, pack
from cloud_verifier.engine.sampling.grammar import TargetGrammars
from cloud_verifier.engine.sampling.host_choice import ChoiceRow, choice_rows
from common.grammar import Tokens
from common.messages import Open


class PackedEngine(TargetEngine):
    """Checks and packs the steps of a target. Only one thread at a time may call it.

    Args: info; grammar_tokens, which reads the target's tokens for grammars and may take seconds.
    """

    def __init__(self, info: TargetInfo, grammar_tokens: Callable[[], Tokens]) -> None:
        self.info = info
        self._limits = StepLimits(info.vocab_size, info.max_positions, info.num_slots)
        self._marks = PrefixMarks(info.num_slots)
        self._grammars = TargetGrammars(grammar_tokens)

    @abstractmethod
    def _step(self, plan: StepPlan, step: PackedStep) -> StepResult:
        """Run one packed step, as `evaluate`."""

    def evaluate(self, plan: StepPlan) -> StepResult:
        """Run one step. Raises `LocalError` for a plan that breaks a rule of `StepItem` and for a failure of
        the library, and `CapacityError` if there is no memory for the step."""
        has_grammars = any(item.sampling.grammar for item in plan.items)
        if has_grammars:
            self._grammars.take_times()  # of a step that failed: its sessions may be gone
        result = self._step(plan, pack(plan, self._limits, self._marks))
        return replace(result, mask_times=self._grammars.take_times()) if has_grammars else result

    def check_grammar(self, request: Open) -> None:
        self._grammars.check(request)

    def prepare_grammars(self) -> None:
        if self.info.grammars:
            self._grammars.prepare()

    def choice_rows(self, item: StepItem) -> list[ChoiceRow]:
        """Return what each output row's choice depends on besides its logits, grammar masks included."""
        return choice_rows(item, self._grammars.mask)
