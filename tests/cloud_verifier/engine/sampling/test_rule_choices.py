"""An acceptance rule gets the law of the very logits that the engine's own choices are made of."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import Ask, Offer, StepItem, StepPlan
from cloud_verifier.core.rules import decide
from cloud_verifier.engine.model.transformers_adapter import load_target
from cloud_verifier.engine.sampling.host_choice import ChoiceRow, choice_rows, probabilities
from cloud_verifier.engine.sampling.row_logprobs import row_logprobs
from cloud_verifier.engine.torch_engine import TorchEngine, last_hidden
from common.acceptance import Acceptance, AcceptanceRule
from common.messages import TokenLogprobs
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from schemes.rules.drafts import quantised
from schemes.rules.trained_judge import Judge
from tests.cloud_verifier.engine.tiny import Session, Slots, ints, target
from tests.support.served import told

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


# What a session is told of its tokens is the log-softmax of the model's own logits; nobody else is told.


TARGET = Path(__file__).parents[4] / "lab" / "demo_models" / "target"


def items(*asked: int | None) -> list[StepItem]:
    """One session each, with two output rows of a tip and its child."""
    slots = Slots(64)
    made = [Session(key, slots).chunk([5, 6], [0, 1]) for key in range(len(asked))]
    return [replace(item, logprobs=most) for item, most in zip(made, asked, strict=True)]


def some_logits(rows: int, size: int) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(rows)) * 4


def test_only_items_that_ask_are_told_each_as_much_as_it_asked() -> None:
    logits = some_logits(7, 50)  # one row more than there are outputs, as a replay has
    choices = np.array([3, 1, 4, 1, 5, 9], np.int32)
    assert row_logprobs(items(None, None), logits, choices) == ()
    told = row_logprobs(items(None, 3, 0), logits, choices)
    exact = logits.double().log_softmax(dim=1).numpy()
    assert told[0] is None
    for place, most in ((1, 3), (2, 0)):
        found, rows = told[place], slice(2 * place, 2 * place + 2)
        assert found is not None
        kinds = [table.dtype.name for table in (found.choices, found.top_tokens, found.top)]
        assert kinds == ["float32", "int32", "float32"]
        np.testing.assert_allclose(found.choices, exact[rows][[0, 1], choices[rows]], atol=1e-5)
        best = np.argsort(-logits.numpy()[rows], axis=1, kind="stable")[:, :most]
        assert found.top_tokens.tolist() == best.tolist()
        np.testing.assert_allclose(found.top, np.take_along_axis(exact[rows], best, 1), atol=1e-5)


def test_of_equals_the_lowest_ids_are_told_and_never_more_than_there_are() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0], [3.0] * 5])
    for most, expected in ((3, [[1, 2, 3], [0, 1, 2]]), (20, [[1, 2, 3, 4, 0], [0, 1, 2, 3, 4]])):
        (found,) = row_logprobs(items(most), logits, np.array([1, 0], np.int32))
        assert found is not None
        assert found.top_tokens.tolist() == expected


def test_a_certain_token_is_not_more_than_certain() -> None:
    logits = torch.full((2, 3), -1e4)
    logits[:, 1] = 88.0
    (found,) = row_logprobs(items(1), logits, np.array([1, 1], np.int32))
    assert found is not None
    assert found.of([0]) == (TokenLogprobs(0.0, ((1, 0.0),)),)


def test_under_another_rule_they_are_those_of_what_it_decided() -> None:
    plain_engine = TorchEngine(target("llama"), 128)
    sampling = SamplingParams(temperature=1.3, seed=5)
    item = Session(1, Slots(64), sampling).item([5, 9, 6, 7], [-1, 0, 0, 1], range(4))
    draft = quantised([6, 7, 9], [0.0, 0.5, 1.0])
    offers = (Offer((9, 6), draft), Offer((7,), draft), Offer(), Offer())
    ask = Ask(Acceptance(AcceptanceRule.REJECTION), offers)
    result = plain_engine.evaluate(StepPlan((replace(item, ask=ask, logprobs=1),)))
    exact = plain_engine.logits(StepPlan((item,))).log_softmax(dim=1).numpy()
    (found,) = result.logprobs
    assert found is not None
    np.testing.assert_allclose(found.choices, exact[range(4), result.choices[0]], atol=1e-4)


@pytest.fixture(scope="module")
def plain_engine() -> TorchEngine:
    model = load_target(str(TARGET), dtype="float32")
    return TorchEngine(model, 1024, fingerprint=Vocabulary(tuple(model.token_table())).fingerprint)


@pytest.mark.grpc
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=40),
        SamplingParams(temperature=0.8, top_p=0.9, presence_penalty=0.3, max_tokens=40, seed=3),
    ],
    ids=["greedy", "sampled"],
)
async def test_they_are_what_transformers_alone_gives_for_the_same_text(
    plain_engine: TorchEngine, sampling: SamplingParams
) -> None:
    """With drafts, some of which are right."""
    prompt = plain_engine.model.tokenize("for item in items:\n    print(item)\n" * 2)
    run, emitted = await told(plain_engine, tuple(plain_engine.model.token_table()), prompt, sampling, 5)
    assert run.session.stats.evaluated > len(run.session.text), "no draft was looked at"
    assert len(emitted) == len(run.session.text)
    with plain_engine.model.plain(), torch.inference_mode():
        logits = plain_engine.model.plain_logits([*prompt, *run.session.text], len(emitted) + 1)[:-1]
    exact = logits.double().log_softmax(dim=1).numpy()
    for row, (token, one) in enumerate(zip(run.session.text, emitted, strict=True)):
        assert one.logprob == pytest.approx(exact[row, token], abs=1e-3)
        assert len(one.top) == 5
        for place, (alternative, logprob) in enumerate(one.top):
            assert logprob == pytest.approx(exact[row, alternative], abs=1e-3)
            assert logprob == pytest.approx(np.sort(exact[row])[-1 - place], abs=1e-3)
