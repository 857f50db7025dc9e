"""Engines whose every logit is noted by the tokens it is a function of, so that two unlike bits are seen."""

from dataclasses import dataclass, field

from torch import Tensor

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.deterministic.exact_engine import ExactEngine
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.packing import PackedStep, path_rows
from cloud_verifier.engine.torch_engine import TorchEngine
from tests.cloud_verifier.engine.tiny import Session, Slots

Path = tuple[int, ...]


@dataclass
class Notes:
    """The bits of each path's logits, whoever computed them, and the paths that had two kinds of bits."""

    bits: dict[Path, bytes] = field(default_factory=dict)
    num_again: int = 0  # rows computed that had been computed before
    unlike: list[Path] = field(default_factory=list)

    def note(self, path: Path, logits: Tensor) -> None:
        found = logits.numpy().tobytes()
        self.num_again += path in self.bits
        if self.bits.setdefault(path, found) != found:
            self.unlike.append(path)


class Noting(TorchEngine):
    """Knows which token each slot holds, and so what each row's logits are a function of."""

    notes: Notes
    tokens: dict[int, int]

    def forward(self, step: PackedStep) -> Tensor:
        logits = super().forward(step)
        rows = iter(logits)
        for item in step.items:
            prefix = [self.tokens[slot] for slot in item.prefix_slots.tolist()]
            self.tokens.update(zip(item.slots.tolist(), item.tokens.tolist(), strict=True))
            for row in item.outputs.tolist():
                path = [*prefix, *item.tokens[path_rows(item.parents, row)].tolist()]
                self.notes.note(tuple(path), next(rows))
        return logits


class NotedExact(Noting, ExactEngine):
    """The deterministic engine, noted."""


def noted(model: TargetModel, num_slots: int, *, exact: bool = True, tile_rows: int = 32) -> Noting:
    """An engine with notes of its own."""
    if exact:
        engine: Noting = NotedExact(model, num_slots, tile_rows=tile_rows)
    else:
        engine = Noting(model, num_slots)
    engine.notes, engine.tokens = Notes(), {}
    return engine


def alone(engine: TorchEngine, path: Path) -> None:
    """Plain decoding: each token of `path` in a step of its own."""
    session = Session(0, Slots(engine.info.num_slots))
    for token in path:
        item = session.chunk([token], [0])
        engine.logits(StepPlan((item,)))
        session.keep(item, [0])
