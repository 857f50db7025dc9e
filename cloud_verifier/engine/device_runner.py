"""Steps on a GPU: replayed where that is possible, else eager, and chosen from where the logits are."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.engine.choice import ChoiceRow
from cloud_verifier.engine.counts import StepCounts
from cloud_verifier.engine.device_choice import ChoiceTable, choice_table, choose_plain, finish
from cloud_verifier.engine.engine import TorchEngine, no_choices
from cloud_verifier.engine.graphs import Capture, GraphRunner, chosen
from cloud_verifier.engine.logprobs import Chosen
from cloud_verifier.engine.packing import PackedStep
from cloud_verifier.engine.triton_attention import TritonBackend
from common.errors import LocalError
from common.sampling import SamplingParams


class DeviceRunner:
    """A `StepRunner` that chooses where the logits are; `capture` None means no replays. Raises `LocalError`
    for an engine whose steps cannot be replayed."""

    def __init__(self, engine: TorchEngine, capture: Capture | None = None) -> None:
        self._engine = engine
        self._counts = StepCounts()
        self.graphs: GraphRunner | None = None
        if capture is not None:
            if not isinstance(engine.backend, TritonBackend):
                raise LocalError("steps can only be replayed with the attention of TritonBackend")
            self.graphs = GraphRunner(
                engine.model.forward,
                engine.kv,
                engine.backend,
                engine.model.device,
                engine.choice_rows,
                capture,
            )
            self._counts = self.graphs.counts

    @property
    def counts(self) -> StepCounts:
        """See `StepRunner.counts`."""
        return self._counts

    def run(self, step: PackedStep) -> Chosen:
        """See `StepRunner.run`."""
        if not step.num_rows:
            return no_choices()
        with self._on_device():
            found = self.graphs.run(step) if self.graphs is not None else None
            return self._run_eagerly(step) if found is None else found

    @torch.inference_mode()
    def warm(self, max_rows: int) -> None:
        """Compile the kernels of choices and make the graphs of steps of up to `max_rows` rows, so that no
        session waits for that."""
        with self._on_device():
            self._warm_choices()
            if self.graphs is not None and max_rows:
                self.graphs.warm(max_rows)

    def _warm_choices(self) -> None:
        """Choose a row that is greedy and one that is filtered; a nucleus asks for all weights, too."""
        model = self._engine.model
        logits = torch.zeros((2, model.vocab_size), device=model.device)
        late = ChoiceRow(SamplingParams(temperature=1.0, top_p=0.9), 0)
        table = ChoiceTable(np.zeros(2), np.zeros(2, np.int64), (1,), (late,))
        finish(logits, self._choose(logits, table), table)

    def _choose(self, logits: Tensor, table: ChoiceTable) -> Tensor:
        """What `device_choice.choose_plain` gives, int32 [2, O] on the device."""
        packed = torch.from_numpy(np.stack((table.temperatures.view(np.int64), table.keys))).to(logits.device)
        result = torch.empty((2, table.num_rows), dtype=torch.int32, device=logits.device)
        choose_plain(logits, packed[0].view(torch.float64), packed[1], result)
        return result

    def _on_device(self) -> AbstractContextManager[Any]:
        """Graphs and kernels are launched on the current device, and each thread has its own."""
        device = self._engine.model.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _run_eagerly(self, step: PackedStep) -> Chosen:
        if self.graphs is None:
            self._counts.eager += 1
        logits = self._engine.forward(step)
        if not len(step.outputs):
            return no_choices()
        table = choice_table(step, self._engine.choice_rows)
        return chosen(step, logits, self._choose(logits, table), table)
