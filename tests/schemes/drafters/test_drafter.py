"""A drafter guesses by the whole text, however late it reads it, and leaves the target as it was."""

import math

import numpy as np
import pytest
import torch

from cloud_verifier.core.engine_protocol import GuessPlan
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.torch_engine import TorchEngine
from common.calibration import Confidence, promised
from common.choice import History
from common.sampling import SamplingParams
from schemes.drafters import drafter as drafter_module
from schemes.drafters.drafter import Drafted, DraftModel, DraftRows
from schemes.drafters.whole_models import EarlyExit
from tests.cloud_verifier.engine.serving import GREEDY, PRINT, SAMPLED, Scenario, serve, serve_by
from tests.cloud_verifier.engine.tiny import ints, target
from tests.schemes.drafters.rig import (
    DEPTH,
    NUM_SLOTS,
    SAMPLINGS,
    WARM,
    RandomTexts,
    choices,
    draft_of,
    engine_of,
    guess,
    guess_item,
    plainly,
    read,
    small_model,
    write,
)
from tests.support.law import rank

pytestmark = pytest.mark.torch

FAMILIES = "llama, qwen3, mistral, gemma2, gemma3_text, gpt_oss, phi3, gpt2, opt, stablelm, qwen3_moe"
KINDS = ("exit", "skip", "small", "recurrent", "medusa", "exits", "pass")
PROMPT = [5, 9, 2, 41, 7, 7, 80, 13]


@pytest.fixture(scope="module")
def llama() -> TargetModel:
    return target("llama")


@pytest.mark.parametrize("family", FAMILIES.split(", "))
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "warm"])
def test_an_exit_behind_the_last_layer_guesses_what_the_target_chooses(
    family: str, sampling: SamplingParams
) -> None:
    model = target(family)
    engine = engine_of(EarlyExit(model, model.num_layers), model)
    session, tip = read(engine, PROMPT, sampling)
    sure = Confidence(sharpness=1e4)  # follows the best candidate, by however little it is ahead
    (found,) = guess(engine, guess_item(session, tip, confidence=sure))
    best = {each.path: each.tokens[0] for each in found}
    text = write(engine, session, tip, DEPTH)
    assert [best[tuple(text[:level])] for level in range(DEPTH)] == text


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "warm"])
def test_a_small_model_ranks_as_it_does_alone(llama: TargetModel, sampling: SamplingParams) -> None:
    small = small_model()
    engine = engine_of(draft_of("small", llama), llama)
    session, tip = read(engine, PROMPT, sampling)
    (found,) = guess(engine, guess_item(session, tip, width=3))
    assert [len(each.path) for each in found] == [0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    for each in found:
        text = [*PROMPT, tip, *each.path]
        with plainly(small):
            logits = small.plain_logits(text, 1)[0].numpy()
        expected = rank(logits, sampling, len(text) - 1, len(each.tokens))
        assert list(each.tokens) == expected.tokens.tolist()
        np.testing.assert_allclose(each.scores, expected.scores, atol=1e-4)


def test_a_guess_ends_where_no_level_promises_enough(llama: TargetModel) -> None:
    engine = engine_of(draft_of("small", llama), llama)
    session, tip = read(engine, PROMPT)
    item = guess_item(session, tip)
    levels = []
    for least in (0.0, 0.05, 0.3, 1.5):
        result = engine.guess(GuessPlan((item,), least))
        assert result.num_read <= len(PROMPT)
        levels.append(result.num_levels)
    assert levels == sorted(levels, reverse=True)
    assert (levels[0], levels[-1]) == (DEPTH, 1), "the nodes of one text are right at most once"


@pytest.mark.parametrize("kind", KINDS)
def test_followers_are_sought_of_nodes_that_are_likely_enough(llama: TargetModel, kind: str) -> None:
    """As many a level as that, up to the width, and the same as without the bound."""
    engine = engine_of(draft_of(kind, llama), llama)
    session, tip = read(engine, PROMPT)
    item = guess_item(session, tip, width=8, confidence=Confidence(sharpness=1.0))
    (everything,) = guess(engine, item)
    worth: dict[tuple[int, ...], float] = {(): 0.0}
    for each in everything:
        logprobs = promised(item.confidence, each.scores)
        worth |= {
            (*each.path, token): worth[each.path] + logprob
            for token, logprob in zip(each.tokens, logprobs, strict=True)
        }
    item.least = 0.1
    (found,) = guess(engine, item)
    said = {each.path: each for each in everything}
    likely = {path for path in said if worth[path] >= math.log(item.least)}
    assert {each.path for each in found} == likely
    assert 1 < len(found) < len(everything)
    for each in found:
        assert each.tokens == said[each.path].tokens
        np.testing.assert_allclose(each.scores, said[each.path].scores, atol=1e-4)
    item.least = 0.99
    assert [each.path for each in guess(engine, item)[0]] == [()]


def test_no_followers_are_sought_behind_an_end(llama: TargetModel) -> None:
    draft = draft_of("small", llama)
    for ignore_eos in (False, True):
        sampling = SamplingParams(temperature=0.8, seed=5, ignore_eos=ignore_eos)
        engine = engine_of(draft, llama)
        assert isinstance(engine.drafter, drafter_module.Drafter)
        session, tip = read(engine, PROMPT, sampling)
        item = guess_item(session, tip, 2, 2)
        first = guess(engine, item)[0][0].tokens[0]
        engine.drafter._ends = frozenset([first])
        paths = [each.path for each in guess(engine, item)[0]]
        assert ((first,) in paths) == ignore_eos
        engine.drafter._ends = frozenset([tip])
        assert bool(guess(engine, item)[0]) == ignore_eos


def test_nothing_is_guessed_beyond_the_last_position(llama: TargetModel) -> None:
    engine = engine_of(draft_of("small", llama), llama)
    last = llama.max_positions
    for length, levels in ((last - 2, 2), (last - 1, 1), (last, 0)):
        session, tip = read(engine, [index % 90 for index in range(length)])
        (found,) = guess(engine, guess_item(session, tip))
        assert len({len(each.path) for each in found}) == levels


def test_penalties_and_bias_reach_the_candidates(llama: TargetModel) -> None:
    sampling = SamplingParams(temperature=0.8, seed=5, presence_penalty=1.9, logit_bias=((17, 9.0),))
    small = small_model()
    engine = engine_of(draft_of("small", llama), llama)
    session, tip = read(engine, PROMPT, WARM)
    item = guess_item(session, tip, 3, 1)
    item.sampling = sampling
    item.history = History.of(sampling, ints(PROMPT), ints([tip]))
    for each in guess(engine, item)[0]:
        text = [*PROMPT, tip, *each.path]
        with plainly(small):
            logits = small.plain_logits(text, 1)[0].numpy()
        expected = rank(logits, sampling, len(text) - 1, 8, ints(PROMPT), ints([tip, *each.path]))
        assert list(each.tokens) == expected.tokens.tolist()


def test_nodes_beyond_the_scratch_slots_are_left_out(
    llama: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = draft_of("small", llama)
    engine = engine_of(draft, llama)
    session, tip = read(engine, PROMPT)
    (all_of_them,) = guess(engine, guess_item(session, tip, 3, 4))
    monkeypatch.setattr(drafter_module, "SCRATCH", 6)
    engine = engine_of(draft, llama)
    session, tip = read(engine, PROMPT)
    (found,) = guess(engine, guess_item(session, tip, 3, 4))
    assert len(all_of_them) == 9
    assert len(found) == 6
    assert {each.path for each in found} <= {each.path for each in all_of_them}


def test_a_lack_of_memory_costs_the_guesses_and_no_more(llama: TargetModel) -> None:
    class Hungry(DraftModel):
        depth, first_position, has_own_kv = DEPTH, 0, False

        def forward(self, rows: DraftRows) -> Drafted:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    engine = engine_of(Hungry(), llama)
    session, tip = read(engine, PROMPT)
    assert guess(engine, guess_item(session, tip)) == ((),)
    assert len(write(engine, session, tip, 2)) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_what_is_read_late_and_in_parts_guesses_as_what_is_read_at_once(
    llama: TargetModel, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter_module, "READ_ROWS", 5)
    draft, compared = draft_of(kind, llama), 0
    texts = RandomTexts(engine_of(draft, llama), seed)
    for item, tokens, found in texts.run(30):
        fresh = engine_of(draft, llama)
        session, _ = read(fresh, tokens, item.sampling)
        (expected,) = guess(fresh, guess_item(session, item.tip, item.depth, item.width))
        assert [(each.path, each.tokens) for each in found] == [(each.path, each.tokens) for each in expected]
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-4)
        compared += len(found)
    assert compared > 50


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_changes_no_bit_of_the_targets_choices(llama: TargetModel, kind: str) -> None:
    assert choices(draft_of(kind, llama), llama) == choices(None, llama)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "warm"])
def test_texts_with_guesses_are_those_without(
    llama: TargetModel, kind: str, sampling: SamplingParams
) -> None:
    scenario = Scenario(range(3), sampling)
    known = serve(TorchEngine(llama, NUM_SLOTS, fingerprint=PRINT), scenario, {})
    engine = TorchEngine(llama, NUM_SLOTS, fingerprint=PRINT, draft=draft_of(kind, llama))
    scheduler = VerifyScheduler(engine.info, scenario.limits)
    assert serve_by(scheduler, engine, scenario, {}) == known
    assert scheduler.counters.num_guessed > 0
