"""A target with a drafter beside it, and texts that it is asked to go on with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from cloud_verifier.core.nouns import Followers, GuessItem, GuessPlan, StepPlan
from cloud_verifier.engine.drafting.heads import MedusaHeads, RecurrentHead, keep_features
from cloud_verifier.engine.drafting.models import EarlyExit, SmallModel
from cloud_verifier.engine.drafting.nouns import DraftModel
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from common.calibration import Confidence
from common.sampling import SamplingParams
from tests.cloud_verifier.engine.tiny import Session, Slots, ints, plain_model

DEPTH = 4
NUM_SLOTS = 160
WARM = SamplingParams(temperature=0.8, seed=5)
SAMPLINGS = (SamplingParams(), WARM)


def draft_of(kind: str, model: TargetModel) -> DraftModel:
    """A drafter of each kind for a tiny target."""
    torch.manual_seed(1)
    match kind:
        case "exit":
            return EarlyExit(model, 1)
        case "small":
            return SmallModel(small_model(), model.vocab_size)
        case "recurrent":
            keep_features(model)
            return RecurrentHead(model, DEPTH).requires_grad_(False)
        case "medusa":
            keep_features(model)
            heads = MedusaHeads(model, DEPTH).requires_grad_(False)
            torch.nn.init.normal_(heads.weights, std=0.3)
            return heads
        case _:
            raise ValueError(kind)


def small_model() -> TargetModel:
    """Another random model of the same vocabulary."""
    plain = plain_model("qwen3")
    for weights in plain.parameters():
        weights.data.add_(0.05 * torch.randn(weights.shape))
    return TargetModel("small", plain)


def engine_of(draft: DraftModel | None, model: TargetModel, num_slots: int = NUM_SLOTS) -> TorchEngine:
    return TorchEngine(model, num_slots, draft=draft)


def guess_item(
    session: Session, tip: int, depth: int = DEPTH, width: int = 2, confidence: Confidence | None = None
) -> GuessItem:
    return GuessItem(
        session.key, ints(session.held), tip, depth, width, confidence or Confidence(), session.sampling
    )


def read(engine: TorchEngine, tokens: Sequence[int], sampling: SamplingParams = WARM) -> tuple[Session, int]:
    """A session that has evaluated these tokens in one chunk, and the tip after them."""
    session = Session(0, Slots(engine.info.num_slots), sampling)
    item = session.chunk(tokens, [len(tokens) - 1])
    result = engine.evaluate(StepPlan((item,)))
    session.keep(item, range(len(tokens)))
    return session, int(result.choices[0][0])


def guess(engine: TorchEngine, *items: GuessItem) -> tuple[tuple[Followers, ...], ...]:
    return engine.guess(GuessPlan(items)).guesses


def write(engine: TorchEngine, session: Session, tip: int, count: int) -> list[int]:
    """What the target writes after the tip, one token a step."""
    text = [tip]
    for _ in range(count):
        item = session.chunk([text[-1]], [0])
        result = engine.evaluate(StepPlan((item,)))
        session.keep(item, [0])
        text.append(int(result.choices[0][0]))
    return text[1:]


@contextmanager
def plainly(model: TargetModel) -> Iterator[None]:
    """Compute as transformers alone does."""
    with model.plain(), torch.inference_mode():
        yield
