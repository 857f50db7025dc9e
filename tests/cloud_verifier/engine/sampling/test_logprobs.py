"""What a session is told of its tokens is the log-softmax of the model's own logits; nobody else is told."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cloud_verifier.core.engine_protocol import Ask, Offer, StepItem, StepPlan
from cloud_verifier.engine.model.transformers_adapter import load_target
from cloud_verifier.engine.sampling.row_logprobs import row_logprobs
from cloud_verifier.engine.torch_engine import TorchEngine
from common.acceptance import Acceptance, AcceptanceRule
from common.messages import TokenLogprobs
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from schemes.rules.drafts import quantised
from tests.cloud_verifier.engine.tiny import Session, Slots, target
from tests.support.served import told

pytestmark = pytest.mark.torch

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
    engine = TorchEngine(target("llama"), 128)
    sampling = SamplingParams(temperature=1.3, seed=5)
    item = Session(1, Slots(64), sampling).item([5, 9, 6, 7], [-1, 0, 0, 1], range(4))
    draft = quantised([6, 7, 9], [0.0, 0.5, 1.0])
    offers = (Offer((9, 6), draft), Offer((7,), draft), Offer(), Offer())
    ask = Ask(Acceptance(AcceptanceRule.REJECTION), offers)
    result = engine.evaluate(StepPlan((replace(item, ask=ask, logprobs=1),)))
    exact = engine.logits(StepPlan((item,))).log_softmax(dim=1).numpy()
    (found,) = result.logprobs
    assert found is not None
    np.testing.assert_allclose(found.choices, exact[range(4), result.choices[0]], atol=1e-4)


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
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
    engine: TorchEngine, sampling: SamplingParams
) -> None:
    """With drafts, some of which are right."""
    prompt = engine.model.tokenize("for item in items:\n    print(item)\n" * 2)
    run, emitted = await told(engine, tuple(engine.model.token_table()), prompt, sampling, 5)
    assert run.session.stats.evaluated > len(run.session.text), "no draft was looked at"
    assert len(emitted) == len(run.session.text)
    with engine.model.plain(), torch.inference_mode():
        logits = engine.model.plain_logits([*prompt, *run.session.text], len(emitted) + 1)[:-1]
    exact = logits.double().log_softmax(dim=1).numpy()
    for row, (token, one) in enumerate(zip(run.session.text, emitted, strict=True)):
        assert one.logprob == pytest.approx(exact[row, token], abs=1e-3)
        assert len(one.top) == 5
        for place, (alternative, logprob) in enumerate(one.top):
            assert logprob == pytest.approx(exact[row, alternative], abs=1e-3)
            assert logprob == pytest.approx(np.sort(exact[row])[-1 - place], abs=1e-3)
