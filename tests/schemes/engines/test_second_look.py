"""Laws of second looks at a draft: the choice is that of both looks, and nothing of them is left behind."""

from dataclasses import replace

import numpy as np
import pytest

from cloud_verifier.core.engine_protocol import Ask, Offer, StepItem, StepPlan, StepResult
from cloud_verifier.engine.packing import item_of
from cloud_verifier.engine.torch_engine import TorchEngine
from common.acceptance import Acceptance, AcceptanceRule
from common.errors import UserError
from common.sampling import SamplingParams
from schemes.engines.second_look import SPARE_SLOTS, TAIL, ReflectiveEngine
from tests.cloud_verifier.engine.tiny import ints, target

pytestmark = pytest.mark.torch

TEXT = [5, 9, 6, 7, 3, 8, 2, 11]  # the last is the tip
DRAFT = [4, 10]
PROMPT = [1, 12, 13]
NUM_SLOTS = 2 * SPARE_SLOTS + 64


@pytest.fixture
def inner() -> TorchEngine:
    return TorchEngine(target("llama"), NUM_SLOTS)


class NotingEngine(ReflectiveEngine):
    """Keeps the last plan that the engine inside got."""

    def __init__(self, engine: TorchEngine) -> None:
        super().__init__(engine, PROMPT)
        self.inside = engine
        self.plans = list[StepPlan]()
        engine.evaluate, evaluate = self._note, engine.evaluate  # type: ignore[method-assign]
        self._evaluate = evaluate

    def _note(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return self._evaluate(plan)


def read(engine: ReflectiveEngine) -> None:
    """Evaluate the text before the tip."""
    count = len(TEXT) - 1
    engine.evaluate(
        StepPlan((item_of(range(-1, count - 1), np.arange(count, dtype=np.int32), tokens=TEXT[:-1]),))
    )


def asking(fusion: float, draft: list[int] = DRAFT, sampling: SamplingParams | None = None) -> StepItem:
    """The tip and a chain below it; the tip has a second child beside."""
    count, start = len(TEXT) - 1, len(TEXT) - 1 + 20
    rows = 2 + len(draft)
    item = item_of(
        [-1, *range(len(draft)), 0],
        np.arange(start, start + rows, dtype=np.int32),
        list(range(count)),
        tokens=[TEXT[-1], *draft, 14],
        outputs=list(range(rows)),
        sampling=sampling,
    )
    offers = [Offer((token,)) for token in draft] + [Offer(), Offer()]
    offers[0] = Offer((*draft[:1], 14))
    ask = Ask(Acceptance(AcceptanceRule.REFLECTIVE, fusion=fusion), tuple(offers))
    return replace(item, ask=ask, prompt=ints(TEXT[:3]), generated=ints(TEXT[3:-1]))


def logits(engine: TorchEngine, tokens: list[int]) -> np.ndarray:
    """Of the last row, by transformers alone."""
    import torch

    with torch.inference_mode(), engine.model.plain():
        found: np.ndarray = engine.model.plain_logits(tokens, 1)[0].double().numpy()
    return found


@pytest.mark.parametrize("fusion", [0.0, 0.4, 1.0])
def test_the_choice_is_the_best_of_both_looks_fused(inner: TorchEngine, fusion: float) -> None:
    engine = ReflectiveEngine(inner, PROMPT)
    read(engine)
    # The draft is what is chosen, so that the walk reaches each row of it.
    draft = list[int]()
    for _ in range(3):
        whole, choices = [*draft, 4], list[int]()
        for row in range(len(draft) + 1):
            first = logits(inner, [*TEXT, *whole[:row]])
            second = logits(inner, [*TEXT, *whole, *PROMPT, *TEXT[:-1][-TAIL:], TEXT[-1], *whole[:row]])
            laws = [each - np.logaddexp.reduce(each) for each in (first, second)]
            choices.append(int(((1 - fusion) * laws[0] + fusion * laws[1]).argmax()))
            if row < len(draft) and choices[row] != draft[row]:
                break
        result = engine.evaluate(StepPlan((asking(fusion, whole),)))
        assert result.choices[0].tolist()[: len(choices)] == choices
        assert len(result.choices[0]) == len(whole) + 2, "no more than was asked for"
        draft = [*draft[: len(choices) - 1], choices[-1]]


def test_the_slots_of_a_second_look_are_the_engines_own(inner: TorchEngine) -> None:
    engine = NotingEngine(inner)
    read(engine)
    engine.evaluate(StepPlan((asking(0.3), replace(asking(0.3), slots=ints([60, 61, 62, 63])))))
    assert engine.info.num_slots == NUM_SLOTS - SPARE_SLOTS
    added = np.concatenate([item.slots[4:] for item in engine.plans[-1].items])
    assert len(set(added.tolist())) == len(added) == 2 * (len(PROMPT) + len(TEXT) - 1 + 3)
    assert added.min() >= engine.info.num_slots


def test_where_a_second_look_has_no_place_the_step_passes_as_it_is(inner: TorchEngine) -> None:
    engine = NotingEngine(inner)
    read(engine)
    plain = asking(0.3)
    assert plain.ask is not None
    coupled = replace(plain, ask=None)
    penalties = replace(plain, sampling=SamplingParams(presence_penalty=1.0))
    bare = replace(plain, tokens=ints([TEXT[-1], 20, 21, 14]))  # the children offered are not evaluated
    late = replace(plain, positions=plain.positions + inner.info.max_positions - len(TEXT) - 3)
    for item in (coupled, penalties, bare, late):
        assert engine._with_second_look(item, engine.info.num_slots) is item
    assert engine._with_second_look(plain, NUM_SLOTS - 5) is plain, "too few slots are left"


def test_an_engine_with_few_slots_is_refused() -> None:
    with pytest.raises(UserError, match="KV slots"):
        ReflectiveEngine(TorchEngine(target("llama"), 2 * SPARE_SLOTS), PROMPT)
