"""Two draft models answer as one whose scores are means of theirs, and the second may fail."""

import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from cloud_verifier.llama.llama_engine import LlamaEngine
from common.errors import CapacityError
from common.llama.model import LlamaSettings
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Expansion
from edge_client.draft.group import MemberDrafter
from edge_client.draft.shared_model import OtherModel, SharedDraftModel
from forerun.demo_pair import DRAFT_GGUF
from schemes.drafters.beside import BesideGroup, merged
from tests.edge_client.draft.test_group import Crowd, checker
from tests.edge_client.draft.test_switch_law import scrambled
from tests.edge_client.draft.tiny_gguf import write_tiny_gguf
from tests.edge_client.draft.tree_world import (
    GREEDY,
    SAMPLED,
    TreeWorld,
    assert_same,
    check_group,
    exact_settings,
    fail_decodes,
    from_scratch,
    random_tree,
)
from tests.schemes.drafters.test_translated_texts import SAMPLINGS, channel_to, engine, words, written

__all__ = ["engine", "words"]

pytestmark = pytest.mark.llama

ALL = 1000  # tokens of a vocabulary
FIRST = Expansion(7, (4, 2, 9), (3.0, 2.0, 1.0))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of other weights and the same tokens."""
    return write_tiny_gguf(tmp_path_factory.mktemp("second") / "other.gguf", seed=8)


@pytest.fixture
def pair(model: Path, other: Path) -> Iterator[tuple[LlamaRuntime, LlamaRuntime]]:
    with LlamaRuntime(exact_settings(model)) as first, LlamaRuntime(exact_settings(other)) as second:
        yield first, second


# --- the rule -----------------------------------------------------------------------------------------------


def test_a_token_of_both_is_one_candidate_with_the_mean_of_its_scores() -> None:
    both = merged(FIRST, Expansion(7, (2, 5, 4), (8.0, 6.0, 2.0)), 0.25, ALL)
    assert both == Expansion(7, (2, 5, 4), (0.25 * 2 + 0.75 * 8, 0.25 * 1 + 0.75 * 6, 0.25 * 3 + 0.75 * 2))


def test_the_constant_of_a_row_changes_no_order() -> None:
    second = Expansion(7, (5, 2, 4), (6.0, 5.0, 2.0))
    moved = replace(second, scores=tuple(score + 100.0 for score in second.scores))
    tokens = merged(FIRST, second, 0.5, ALL).tokens
    assert merged(FIRST, moved, 0.5, ALL).tokens == tokens == (2, 5, 4)


@pytest.mark.parametrize("second", [Expansion(7, (), ()), Expansion(7, (2, 5), (1.0, math.nan))])
def test_a_second_without_finite_scores_has_no_say(second: Expansion) -> None:
    assert merged(FIRST, second, 0.5, ALL) == FIRST


def test_tokens_that_one_of_the_models_lacks_are_no_candidates() -> None:
    assert merged(FIRST, Expansion(7, (9, 8, 7), (3.0, 2.0, 1.0)), 0.5, 8).tokens == (4, 2, 7)


# --- the group ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_random_tree_equals_its_paths_from_scratch(
    model: Path, other: Path, pair: tuple[LlamaRuntime, LlamaRuntime], sampling: SamplingParams
) -> None:
    with LlamaRuntime(exact_settings(model)) as first, LlamaRuntime(exact_settings(other)) as second:
        group, oracle = BesideGroup(first, 1, second), BesideGroup(pair[0], 1, pair[1])
        oracle._share = group._share  # learnt from choices, of which the oracle sees none
        random_tree(MemberDrafter(group), MemberDrafter(oracle), 3, sampling)
        check_group(group._other)


@pytest.mark.parametrize("seed", range(2))
def test_interleaved_sessions_are_answered_as_if_alone(model: Path, oracle: MemberDrafter, seed: int) -> None:
    settings = exact_settings(model, n_ctx=1024, n_seq_max=64)
    with LlamaRuntime(settings) as first, LlamaRuntime(settings) as second:
        group = BesideGroup(first, 4, second)
        crowd = Crowd(group, Random(seed))
        crowd.run(60, 70, checker(oracle))
        assert group.pause is None
        for place in range(4):
            group.release(place)
        check_group(group)
        check_group(group._other)
        assert crowd.num_failed == 0


def test_the_draft_that_meets_the_target_s_choices_gets_the_say(
    pair: tuple[LlamaRuntime, LlamaRuntime], oracle: MemberDrafter
) -> None:
    group = BesideGroup(pair[0], 1, pair[1])
    world = TreeWorld(MemberDrafter(group), Random(1), SAMPLED)
    world.start([3, 1, 4])
    for _ in range(60):
        world.expand([world.tip])
        token = from_scratch(oracle, world.text, SAMPLED).tokens[0]  # the first model's own choice
        world.reroot([(world.child(world.tip, token), token)])
    assert group._share.ratio > 0.8
    assert not group._said[0]


def test_without_room_in_the_second_the_first_goes_on_alone(
    model: Path, other: Path, oracle: MemberDrafter, caplog: pytest.LogCaptureFixture
) -> None:
    long = [1 + at % 200 for at in range(100)]
    with (
        LlamaRuntime(exact_settings(model)) as first,
        LlamaRuntime(replace(exact_settings(other), n_ctx=256)) as second,
    ):
        drafter = MemberDrafter(BesideGroup(first, 1, second))
        with caplog.at_level(logging.WARNING, "schemes.drafters.beside"):
            for _ in range(2):
                text = long * 3
                drafter.start(text, 1, GREEDY)
                row = DraftRow(1, None, text[-1], len(text) - 1)
                (alone,) = drafter.expand([row])
                assert_same(alone, from_scratch(oracle, text, GREEDY))
        assert [each.name for each in caplog.records].count("schemes.drafters.beside") == 1
        drafter.start(long, 1, GREEDY)
        (both,) = drafter.expand([DraftRow(1, None, long[-1], len(long) - 1)])
        assert both.scores != from_scratch(oracle, long, GREEDY).scores, "the second has a say again"


def test_a_text_without_room_in_the_first_ends_its_drafting(model: Path, other: Path) -> None:
    small = replace(exact_settings(model), n_ctx=256)
    with LlamaRuntime(small) as first, LlamaRuntime(exact_settings(other)) as second:
        group = BesideGroup(first, 1, second)
        with pytest.raises(CapacityError):
            MemberDrafter(group).start([1] * 300, 1, GREEDY)
        group.ask(0, [DraftRow(1, None, 1, 299)])
        (answer,) = group.turn()
        assert isinstance(answer.outcome, CapacityError)
        assert not group.has_work


def test_a_second_that_llama_cpp_fails_ends_no_draft_step(
    pair: tuple[LlamaRuntime, LlamaRuntime], oracle: MemberDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = BesideGroup(pair[0], 1, pair[1])
    world = TreeWorld(MemberDrafter(group), Random(5))
    world.begin([5, 9, 2, 6])
    fail_decodes(pair[1], monkeypatch, -3, 100)
    node = world.child(world.tip, 8)
    (alone,) = world.expand([node])
    assert_same(alone, from_scratch(oracle, world.text_of(node), GREEDY))


# --- texts --------------------------------------------------------------------------------------------------


@pytest.mark.grpc
@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
async def test_texts_are_the_target_s_own(
    engine: LlamaEngine,
    tmp_path: Path,
    sampling: SamplingParams,
    fails: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = [LlamaSettings(str(DRAFT_GGUF), n_ctx=1024, threads=1)]
    settings.append(replace(settings[0], path=str(scrambled(tmp_path / "weak.gguf"))))
    prompt = engine.runtime.tokenize("def is_palindrome(text", False)
    async with channel_to(engine) as channel:
        plain, _ = await written(channel, None, prompt, sampling)
        draft = SharedDraftModel(settings[0], 1, -1.0, other=OtherModel(settings[1], "beside"))
        await draft.load()
        if fails:
            fail_decodes(draft._runtimes[1], monkeypatch, -3, 100)
        text, stats = await written(channel, draft, prompt, sampling)
        await draft.close()
    assert text == plain
    assert stats.accepted > 0.3 * len(text)
