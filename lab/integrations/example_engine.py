"""Put a causal LM of transformers behind Forerun's protocol: an engine in a hundred lines, to begin with.

    PYTHONPATH=.:lab/integrations .venv/bin/python lab/integrations/example_engine.py lab/demo_models/target

The model is transformers' own, with its own attention. It has no tree attention and keeps no KV: each row
that wants an output is one forward of its whole path. That is slow, and it is all that the seam asks for.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloud_verifier.core.engine_protocol import (
    RowLogprobs,
    StepItem,
    StepPlan,
    StepResult,
    TargetEngine,
    TargetInfo,
)
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.server.serving import serve_worker
from cloud_verifier.server.worker import Worker
from cloud_verifier.settings import IdentitySection, OperationsSection, ServerSection
from common.acceptance import AcceptanceRule
from common.choice import Choice, choose
from forerun_beside.serve import announce, read_target

LIMITS = SchedulerConfig(rules=(AcceptanceRule.COUPLED,))
"""Other rules come as `StepItem.ask`; `cloud_verifier.core.rules.decide` serves them."""


class PlainEngine(TargetEngine):
    """A `TargetEngine`. Its slots hold tokens in place of KV, because it computes every path anew."""

    def __init__(self, model: Any, info: TargetInfo) -> None:
        self.info = info
        self._model = model.eval()
        self._slots = np.zeros(info.num_slots, np.int32)

    def evaluate(self, plan: StepPlan) -> StepResult:
        """Run one step of all sessions."""
        choices, margins, logprobs = [], [], []
        for item in plan.items:
            paths = self._paths(item)
            rows = [self._logits(paths[row]) for row in item.outputs.tolist()]
            chosen = [
                self._choice(item, paths[row], logits)
                for row, logits in zip(item.outputs.tolist(), rows, strict=True)
            ]
            choices.append(np.array([each.token for each in chosen], np.int32))
            margins.append(np.array([each.margin for each in chosen], np.float32))
            logprobs.append(None if item.logprobs is None else _logprobs(rows, choices[-1], item.logprobs))
        asked = tuple(logprobs) if any(each is not None for each in logprobs) else ()
        return StepResult(tuple(choices), tuple(margins), asked)

    def _paths(self, item: StepItem) -> list[NDArray[np.int32]]:
        """Return each row's tokens from position 0 on: prefix, ancestors and the row itself."""
        prefix = self._slots[item.prefix_slots]
        self._slots[item.slots] = item.tokens  # later steps find the committed ones in their prefix
        paths = list[NDArray[np.int32]]()
        for token, parent in zip(item.tokens, item.parents.tolist(), strict=True):
            paths.append(np.append(prefix if parent < 0 else paths[parent], token))
        return paths

    @torch.inference_mode()
    def _logits(self, path: NDArray[np.int32]) -> Tensor:
        """Return float32 [V] at the end of a path."""
        logits: Tensor = self._model(torch.from_numpy(path)[None].long(), logits_to_keep=1).logits[0, -1]
        return logits.float()

    def _choice(self, item: StepItem, path: NDArray[np.int32], logits: Tensor) -> Choice:
        generated = None if item.prompt is None else path[len(item.prompt) :]
        return choose(logits.numpy(), item.sampling, len(path) - 1, item.prompt, generated)


def _logprobs(rows: list[Tensor], choices: NDArray[np.int32], count: int) -> RowLogprobs:
    laws = torch.stack(rows).log_softmax(dim=-1) if rows else torch.zeros(0, count)
    own = laws.gather(1, torch.from_numpy(choices).long()[:, None])[:, 0]
    order = laws.argsort(dim=1, descending=True, stable=True)[:, :count]
    return RowLogprobs(own.numpy(), order.int().numpy(), laws.gather(1, order).numpy())


def load(folder: str, num_slots: int = 4096) -> tuple[PlainEngine, tuple[bytes | None, ...]]:
    """Return the engine of a checkpoint and its token table."""
    from transformers import AutoModelForCausalLM

    info, table = read_target(folder, num_slots)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False, use_safetensors=True)
    return PlainEngine(model, info), table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve a checkpoint's folder to edges.")
    parser.add_argument("folder")
    parser.add_argument("--listen", default="127.0.0.1:50051", metavar="HOST:PORT")
    options = parser.parse_args()
    engine, table = load(options.folder)
    worker = Worker(engine, VerifyScheduler(engine.info, LIMITS))
    sections = ServerSection(listen=options.listen), IdentitySection(), OperationsSection()
    asyncio.run(serve_worker(*sections, worker, table, announce))
