"""An acceptance rule gets the law of the very logits that the engine's own choices are made of."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cloud_verifier.core.engine_protocol import Ask, Offer, StepItem, StepPlan
from cloud_verifier.core.rules import decide
from cloud_verifier.engine.sampling.host_choice import ChoiceRow, choice_rows, probabilities
from cloud_verifier.engine.torch_engine import TorchEngine, last_hidden
from common.acceptance import Acceptance, AcceptanceRule
from common.sampling import SamplingParams
from schemes.rules.drafts import quantised
from schemes.rules.trained_judge import Judge
from tests.cloud_verifier.engine.tiny import Session, Slots, ints, target

pytestmark = pytest.mark.torch

HOT = SamplingParams(temperature=1.3, top_p=0.9, seed=5)


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return TorchEngine(target("llama"), 128)


def session(key: int, sampling: SamplingParams = HOT) -> Session:
    return Session(key, Slots(64), sampling)


def tree(acceptance: Acceptance, sampling: SamplingParams = HOT) -> StepItem:
    """A tip with two children, the first of which has one."""
    item = session(1, sampling).item([5, 9, 6, 7], [-1, 0, 0, 1], range(4))
    draft = quantised([6, 7, 9], [0.0, 0.5, 1.0])
    offers = (Offer((9, 6), draft), Offer((7,), draft), Offer(), Offer())
    judge = Judge((0.0,) * 4, (1.0,) * 4, (0.0, 0.0, 0.0, 1.0), -1.0, threshold=0.5)  # rank 1 or 2
    return replace(item, ask=Ask(acceptance, offers, judge))


@pytest.mark.parametrize(
    "rule", [rule for rule in AcceptanceRule if rule.value > 1], ids=lambda rule: rule.title
)
@pytest.mark.parametrize("sampling", [HOT, replace(HOT, presence_penalty=1.0, top_k=40), SamplingParams()])
def test_choices_are_those_of_the_rule_on_the_engines_own_logits(
    engine: TorchEngine, rule: AcceptanceRule, sampling: SamplingParams
) -> None:
    item = tree(Acceptance(rule), sampling)
    if sampling.has_penalties:
        item = replace(item, prompt=ints([]), generated=ints([]))
    coupled = engine.evaluate(StepPlan((replace(item, ask=None),))).choices[0]
    logits = engine.logits(StepPlan((item,))).numpy()
    rows = choice_rows(item)
    expected = decide(item, coupled, lambda row: probabilities(logits[row], rows[row]))
    result = engine.evaluate(StepPlan((item,)))
    assert result.choices[0].tolist() == expected.tolist()
    assert result.choices[0].dtype == np.int32
    assert np.isinf(result.margins[0]).all()


def test_sessions_beside_one_with_a_rule_choose_as_ever(engine: TorchEngine) -> None:
    plain, other = session(2).chunk([1, 2, 3], [0, 2]), session(3).chunk([4, 5])
    alone = engine.evaluate(StepPlan((plain,)))
    asking = replace(tree(Acceptance(AcceptanceRule.BLOCK)), slots=np.array([60, 61, 62, 63], np.int32))
    plain = replace(plain, slots=np.array([70, 71, 72], np.int32))
    other = replace(other, slots=np.array([80, 81], np.int32))
    mixed = engine.evaluate(StepPlan((other, plain, asking)))
    assert mixed.choices[1].tolist() == alone.choices[0].tolist()
    np.testing.assert_allclose(mixed.margins[1], alone.margins[0], rtol=1e-5)
    assert len(mixed.choices[0]) == 0


def test_probabilities_are_those_that_the_grammar_and_the_parameters_leave() -> None:
    logits, allowed = np.array([2.0, 1.0, 0.0], np.float32), np.array([False, True, True])
    law = probabilities(logits, ChoiceRow(SamplingParams(temperature=1.0), 4, allowed=allowed))
    assert law == pytest.approx([0.0, 1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(1.0))])
    law = probabilities(logits, ChoiceRow(SamplingParams(temperature=2.0, top_k=2), 4))
    assert law == pytest.approx([1 / (1 + np.exp(-0.5)), 1 / (1 + np.exp(0.5)), 0.0])


def test_a_judge_reads_the_hidden_state_of_the_draft_token_on_the_text_before_it(engine: TorchEngine) -> None:
    """As transformers alone computes it; the child passes where one number of it is below a threshold."""
    with torch.inference_mode(), engine.model.plain(), last_hidden(engine.model) as states:
        engine.model.plain_logits([5, 9], 1)
    hidden = states[0][0, -1].double().numpy()
    item = tree(Acceptance(AcceptanceRule.JUDGE), SamplingParams())
    assert item.ask is not None
    own = int(engine.evaluate(StepPlan((replace(item, ask=None),))).choices[0][0])
    assert own not in (9, 6), "a mismatch"
    size = len(hidden)
    for place in range(0, size, 7):
        weights = tuple(float(at == 4 + place) for at in range(4 + size))
        for above, taken in ((1e-3, 9), (-1e-3, own)):
            judge = Judge((0.0,) * (4 + size), (1.0,) * (4 + size), weights, -hidden[place] - above, 0.5)
            asked = replace(item, ask=replace(item.ask, offers=(Offer((9,)), *(Offer(),) * 3), judge=judge))
            beside = session(2).item([8], [-1], range(1))  # rows of others come first
            plan = StepPlan((replace(beside, slots=ints([70])), asked))
            assert engine.evaluate(plan).choices[1][0] == taken
