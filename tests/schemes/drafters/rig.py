"""A target with a drafter beside it, and texts that it is asked to go on with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from cloud_verifier.core.engine_protocol import Followers, GuessItem, GuessPlan, StepPlan
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.torch_engine import OwnDraft, TorchEngine
from common.calibration import Confidence
from common.sampling import SamplingParams
from schemes.drafters.drafter import DraftModel
from schemes.drafters.heads import ExitHeads, MedusaHeads, PassRows, RecurrentHead, keep_features
from schemes.drafters.whole_models import EarlyExit, SkippedLayers, SmallModel
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
        case "skip":
            return SkippedLayers(model, (0,))
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
        case "pass":
            ahead = PassRows(model, DEPTH - 1).requires_grad_(False)
            for embedding in ahead.embeddings:
                torch.nn.init.normal_(embedding, std=0.3)
            return ahead
        case "exits":
            exits = ExitHeads(model, 1, gamma=0.0).requires_grad_(False)
            torch.nn.init.normal_(exits.weights, std=0.3)
            return exits
        case _:
            raise ValueError(kind)


def small_model() -> TargetModel:
    """Another random model of the same vocabulary."""
    plain = plain_model("qwen3")
    for weights in plain.parameters():
        weights.data.add_(0.05 * torch.randn(weights.shape))
    return TargetModel("small", plain)


def engine_of(draft: OwnDraft | None, model: TargetModel, num_slots: int = NUM_SLOTS) -> TorchEngine:
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
    return engine.guess(GuessPlan(items)).guesses if engine.drafter else ((),) * len(items)


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


def choices(draft: OwnDraft | None, model: TargetModel) -> list[bytes]:
    """Return all that the target says in random texts, guessed for by this draft."""
    engine, found = engine_of(draft, model), list[bytes]()
    evaluate = engine.evaluate

    def noted(plan: StepPlan) -> object:
        result = evaluate(plan)
        found.extend(margins.tobytes() for margins in result.margins)
        found.append(engine.logits(plan).numpy().tobytes())
        return result

    engine.evaluate = noted  # type: ignore[assignment,method-assign]
    for _ in RandomTexts(engine, 11).run(12):
        pass
    return found


@dataclass
class RandomTexts:
    """Sessions over one engine; each holds tokens and slots, and slots may be shared. They come and go,
    and are guessed for now and then."""

    engine: TorchEngine
    seed: int
    holders: dict[int, int] = field(default_factory=dict)  # by slot
    sessions: list[tuple[Session, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.slots = Slots(NUM_SLOTS)

    def run(self, num_turns: int) -> Iterator[tuple[GuessItem, list[int], tuple[Followers, ...]]]:
        """Take turns; yield every guess with the text that it is for."""
        for turn in range(num_turns):
            if len(self.sessions) < 2 or (len(self.sessions) < 5 and self.random.random() < 0.3):
                self._open(turn)
            if len(self.sessions) > 2 and self.random.random() < 0.15:
                self._close(int(self.random.integers(len(self.sessions))))
            self._step()
            if self.random.random() < 0.5:
                yield from self._guess()

    def _open(self, key: int) -> None:
        sampling = SamplingParams(temperature=float(self.random.choice([0.0, 0.8])), seed=key)
        session, tokens = Session(key, self.slots, sampling), list[int]()
        if self.sessions and self.random.random() < 0.7:
            other, others = self.sessions[int(self.random.integers(len(self.sessions)))]
            count = int(self.random.integers(len(others) + 1))
            session.held, tokens = other.held[:count], others[:count]
            for slot in session.held:
                self.holders[slot] += 1
        self.sessions.append((session, tokens))

    def _close(self, place: int) -> None:
        session, _ = self.sessions.pop(place)
        for slot in session.held:
            self.holders[slot] -= 1
            if not self.holders[slot]:
                self.slots.free.insert(0, slot)

    def _step(self) -> None:
        """A tree of random rows in some sessions, of which a random path is kept."""
        items = []
        for session, tokens in self.sessions:
            if tokens and self.random.random() < 0.3:
                continue
            count = int(self.random.integers(1, 7))
            room = len(self.slots.free) - count
            if room < 8 or len(tokens) > 40:
                continue
            own = self.random.integers(0, 97, count).tolist()
            parents = [-1, *(int(self.random.integers(row)) for row in range(1, count))]
            item = session.item(own, parents, range(count))
            last, rows = int(self.random.integers(count)), list[int]()
            while last >= 0:
                rows.insert(0, last)
                last = parents[last]
            items.append((session, tokens, item, rows))
        self.engine.evaluate(StepPlan(tuple(item for _, _, item, _ in items)))
        for session, tokens, item, rows in items:
            kept = item.slots[rows].tolist()
            session.held += kept
            tokens.extend(item.tokens[rows].tolist())
            self.holders.update(dict.fromkeys(kept, 1))
            self.slots.free += [slot for slot in item.slots.tolist() if slot not in kept]

    def _guess(self) -> Iterator[tuple[GuessItem, list[int], tuple[Followers, ...]]]:
        some = [each for each in self.sessions if each[1] and self.random.random() < 0.7]
        items = [
            guess_item(session, int(self.random.integers(97)), int(self.random.integers(0, DEPTH + 1)))
            for session, _ in some
        ]
        found = guess(self.engine, *items)
        yield from zip(items, [list(tokens) for _, tokens in some], found, strict=True)
