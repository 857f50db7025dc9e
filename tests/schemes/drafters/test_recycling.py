"""Token recycling: the matrix holds what the target last said, and its guesses change no text."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from cloud_verifier.core.engine_protocol import GuessPlan, StepPlan
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.deterministic.exact_engine import ExactEngine
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.torch_engine import TorchEngine
from cloud_verifier.engine.torch_loading import load_draft
from common.calibration import Confidence
from common.errors import UserError
from common.messages import Open
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from schemes.drafters.recycling import NUM_CANDIDATES, Recycler, Recycling
from tests import wording
from tests.cloud_verifier.engine.serving import GREEDY, PRINT, PROMPTS, SAMPLED, Scenario, serve
from tests.cloud_verifier.engine.tiny import Session, Slots, target
from tests.schemes.drafters.rig import choices, guess, guess_item, plainly
from tests.support.law import rank
from tests.support.played import played

pytestmark = pytest.mark.torch

PROMPT = [5, 9, 2, 41, 7, 7, 80, 13]
TREE = [21, 7, 33, 7, 21, 60]  # tokens that occur twice, on other branches
PARENTS = [-1, 0, 0, 1, 2, 4]


def recycler_of(engine: TorchEngine) -> Recycler:
    assert isinstance(engine.drafter, Recycler)
    return engine.drafter


def likeliest(model: TargetModel, tokens: list[int]) -> tuple[list[int], np.ndarray]:
    """The best tokens after a text, and their logits, by transformers alone."""
    with plainly(model):
        best = model.plain_logits(tokens, 1)[0].topk(NUM_CANDIDATES)
    return best.indices.tolist(), best.values.numpy()


def paths() -> Iterator[list[int]]:
    """The text up to each row of the tree."""
    found: list[list[int]] = []
    for token, parent in zip(TREE, PARENTS, strict=True):
        found.append([*(found[parent] if parent >= 0 else PROMPT), token])
        yield found[-1]


@pytest.mark.parametrize("family", ["llama", "gemma2"])  # one of them scales its logits
@pytest.mark.parametrize("engine_type", [TorchEngine, ExactEngine])
def test_the_matrix_holds_the_likeliest_tokens_after_the_newest_row_of_each(
    family: str, engine_type: type[TorchEngine]
) -> None:
    """Committed rows and dead ones alike; rows of a prompt, of which nothing is asked, leave no trace."""
    model = target(family)
    engine = engine_type(model, 160, draft=Recycling(model))
    first, second = Session(1, slots := Slots(160)), Session(2, slots)
    for session in (first, second):
        item = session.chunk(PROMPT, [len(PROMPT) - 1])
        engine.evaluate(StepPlan((item,)))
        session.keep(item, range(len(PROMPT)))
    tree, other = first.item(TREE, PARENTS, range(len(TREE))), second.item([60], [-1], [0])
    engine.evaluate(StepPlan((other, tree)))
    expected = {text[-1]: likeliest(model, text) for text in ([*PROMPT], *paths())}
    matrix = recycler_of(engine).matrix(1)
    assert matrix.keys() == expected.keys()
    for token, (tokens, logits) in expected.items():
        assert matrix[token].tokens.tolist() == tokens
        np.testing.assert_allclose(matrix[token].logits, logits, atol=1e-4)
    tokens, _ = likeliest(model, [*PROMPT, 60])
    assert recycler_of(engine).matrix(2)[60].tokens.tolist() == tokens, "sessions share nothing"
    assert recycler_of(engine).matrix(3) == {}


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.8, seed=5)])
def test_guesses_rank_the_candidates_under_the_targets_noise(sampling: SamplingParams) -> None:
    model = target("llama")
    engine = TorchEngine(model, 160, draft=Recycling(model))
    session = Session(1, Slots(160), sampling)
    item = session.chunk(PROMPT, range(len(PROMPT)))  # each row says what follows
    engine.evaluate(StepPlan((item,)))
    session.keep(item, range(len(PROMPT)))
    (found,) = guess(engine, guess_item(session, 7, depth=3, confidence=Confidence(sharpness=0.5)))
    matrix = recycler_of(engine).matrix(1)
    assert found[0].path == ()
    assert {len(each.path) for each in found} <= {0, 1, 2}
    for each in found:
        above = (7, *each.path)[-1]
        logits = np.full(model.vocab_size, -np.inf, np.float32)
        logits[matrix[above].tokens] = matrix[above].logits
        position = len(PROMPT) + len(each.path)
        expected = rank(logits, sampling, position, NUM_CANDIDATES)
        assert list(each.tokens) == expected.tokens.tolist()
        np.testing.assert_allclose(each.scores, expected.scores, atol=1e-6)


def test_a_guess_is_as_wide_and_deep_as_it_promises() -> None:
    model = target("llama")
    engine = TorchEngine(model, 160, draft=Recycling(model))
    session = Session(1, Slots(160))
    item = session.chunk(list(range(97)), range(97))
    engine.evaluate(StepPlan((item,)))
    session.keep(item, range(97))
    asked = guess_item(session, 7, depth=4, width=1, confidence=Confidence(sharpness=0.0, rest=1e-6))
    for least, widths in ((0.1, [1, 8]), (0.01, [1, 8]), (0.2, [1])):
        (found,) = guess(engine, replace(asked, least=least))  # each candidate has one chance in eight
        assert [sum(len(each.path) == level for each in found) for level in range(len(widths))] == widths
        assert max(len(each.path) for each in found) == len(widths) - 1
    assert engine.guess(GuessPlan((asked,), least_gain=1.5)).num_levels == 0
    (found,) = guess(engine, replace(asked, depth=1))
    assert [each.path for each in found] == [()]


def test_the_drafter_changes_no_bit_of_the_targets_choices() -> None:
    model = target("llama")
    assert choices(Recycling(model), model) == choices(None, target("llama"))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_texts_are_the_targets_own_and_take_fewer_steps(sampling: SamplingParams) -> None:
    sampling = replace(sampling, max_tokens=80)
    known = serve(TorchEngine(target("llama"), 512, fingerprint=PRINT), Scenario([0, 1, 2], sampling), {})
    model = target("llama")
    engine = TorchEngine(model, 512, fingerprint=PRINT, draft=Recycling(model))
    scheduler = VerifyScheduler(engine.info)
    for key in known:
        scheduler.on_open(1 + key, Open(PROMPTS[key], sampling, PRINT), 0.0)
    written = played(scheduler, engine, step_time=0.03, guess_time=1e-4)
    texts = {session - 1: tuple(tokens) for session, tokens in written.items()}
    assert scheduler.idle
    assert texts == known
    assert {len(text) for text in texts.values()} == {80}
    if sampling.greedy:
        assert scheduler.counters.num_guesses_won > 0
        assert scheduler.counters.num_steps < 80


def test_the_matrices_of_old_sessions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schemes.drafters.recycling.MOST_MATRICES", 2)
    model = target("llama")
    engine = TorchEngine(model, 160, draft=Recycling(model))
    for key in (1, 2, 1, 3):
        engine.evaluate(StepPlan((Session(key, Slots(160)).chunk(PROMPT, [7]),)))
    assert [len(recycler_of(engine).matrix(key)) for key in (3, 1, 2)] == [1, 1, 0]


@pytest.mark.parametrize(("source", "is_shared"), [("recycling", False), ("recycling:shared", True)])
def test_sessions_share_a_matrix_only_if_the_operator_says_so(source: str, is_shared: bool) -> None:
    model = target("llama")
    engine = TorchEngine(model, 160, draft=load_draft(source, model, Vocabulary((b"a", b"b"))))
    engine.evaluate(StepPlan((Session(1, Slots(160)).chunk(PROMPT, [7]),)))
    assert recycler_of(engine).matrix(1).keys() == {PROMPT[7]}
    assert recycler_of(engine).matrix(2).keys() == ({PROMPT[7]} if is_shared else set())


def test_other_arguments_are_refused() -> None:
    with wording.raises(UserError):
        load_draft("recycling:8", target("llama"), Vocabulary((b"a", b"b")))


def test_slots_of_the_drafter_count() -> None:
    model = target("llama")
    engine = TorchEngine(model, 160, draft=Recycling(model))
    engine.evaluate(StepPlan((Session(1, Slots(160)).chunk(PROMPT, [7]),)))
    assert recycler_of(engine).slot_bytes == 2 * NUM_CANDIDATES * torch.float32.itemsize
