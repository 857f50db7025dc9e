"""Early hints: the tokens that the target's middle layers expect, sent while its later layers run.

The hidden state after a layer goes through the target's own final norm and head (the logit lens). Mirror-SD
(arXiv 2510.13161) sends the best tokens to the draft, which goes on there before the verdict comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import HINTED, StepHints, StepPlan, StepResult
from cloud_verifier.engine.around import EngineAround
from cloud_verifier.engine.torch_engine import RowByRow, TorchEngine
from common.errors import UserError
from schemes.drafters.other_layers import stand_in, with_layers
from schemes.drafters.ranking import rank_rows


class HintingEngine(EngineAround):
    """Sends hints after a `share` of the target's layers.

    Each output row of an edge that takes hints costs one more product with the head and one more ranking, in
    the midst of the step. Raises `UserError` where the steps are not run layer by layer: a replayed CUDA
    graph cannot be left midway.
    """

    def __init__(self, engine: TorchEngine, share: float) -> None:
        super().__init__(engine)
        model = engine.model
        if type(engine) is not TorchEngine or not isinstance(engine.runner, RowByRow):
            raise UserError(
                "--hint-at needs steps that run layer by layer; take --attention torch_ref, and leave "
                "--deterministic and --tensor-parallel out"
            )
        if model.state_layers:
            raise UserError(f"--hint-at is not possible: '{model.name}' has layers that keep a state")
        count = max(1, round(share * model.num_layers))
        if count >= model.num_layers:
            raise UserError(
                f"--hint-at {share:g} of {model.num_layers} layers is the last one; take a smaller share"
            )
        self._torch, self._share = engine, count / model.num_layers
        layer = model.layers[count - 1]
        # The family's own code does all that follows the last layer.
        self._head = with_layers(model, [stand_in(layer, lambda *_inputs, **_more: self._output)])
        self._output: Any = None  # of the layer whose copy gives it for any input
        self._plan: StepPlan | None = None  # of the running step
        self._tell: Callable[[StepHints], None] | None = None
        layer.register_forward_hook(self._after_layer)

    def listen(self, tell: Callable[[StepHints], None]) -> None:
        self._tell = tell

    def evaluate(self, plan: StepPlan) -> StepResult:
        self._plan = plan
        try:
            return self._torch.evaluate(plan)
        finally:
            self._plan = None

    def _after_layer(self, _layer: torch.nn.Module, _inputs: Any, output: Any) -> None:
        plan, self._plan = self._plan, None  # guesses may run the layer, too
        if plan is not None and self._tell is not None and any(item.hint for item in plan.items):
            self._tell(StepHints(self._share, self._likely(plan, output)))

    def _likely(self, plan: StepPlan, output: Any) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the best tokens by item and output row. `output` is the layer's: [1, T, H] of the step's
        rows, alone or first in a tuple."""
        first, rows, places = 0, [], list[int]()
        for item in plan.items:
            if item.hint and not item.sampling.grammar:  # a mask takes longer than a hint is worth
                rows += self._torch.choice_rows(item)
                places += [first + int(row) for row in item.outputs]
            first += len(item.tokens)
        if not rows:
            return ()
        hidden: Tensor = output[0] if isinstance(output, tuple) else output
        chosen = hidden[:, torch.tensor(places, device=hidden.device)]
        self._output = (chosen, *output[1:]) if isinstance(output, tuple) else chosen
        where = torch.arange(len(places), device=hidden.device)
        any_token = torch.zeros_like(where)[None]
        told = iter(rank_rows(self._head.forward(any_token, any_token, where), rows, HINTED))
        self._output = None
        return tuple(
            tuple(next(told)[0] for _ in item.outputs) if item.hint and not item.sampling.grammar else ()
            for item in plan.items
        )
