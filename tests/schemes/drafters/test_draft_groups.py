"""Groups of drafts: a smaller one in front, a second beside, and masks that buy several levels a decode."""

import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from random import Random

import pytest

from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.llama.llama_loading import LlamaOptions, open_runtime
from common.errors import CapacityError, UserError
from common.llama.model import LlamaModel, LlamaSettings
from common.llama.runtime import NO_KV_SLOT, LlamaRuntime
from common.sampling import SamplingParams
from edge_client.core.draft_times import DraftTimes
from edge_client.core.effects import DraftRow, Expansion, ReadingTime, Reroot
from edge_client.draft.group import DraftGroup, MemberDrafter
from edge_client.draft.measure_pace import PaceTables
from edge_client.draft.shared_model import PARALLEL, OtherModel, SharedDraftModel
from schemes.drafters.beside import BesideGroup, merged
from schemes.drafters.cascade import CHAIN, CascadeGroup
from schemes.drafters.parallel import ParallelGroup
from tests import wording
from tests.edge_client.draft.test_group import Crowd, checker
from tests.edge_client.draft.test_switch_law import scrambled
from tests.edge_client.draft.tiny_gguf import TinyShape, write_copy, write_tiny_gguf
from tests.edge_client.draft.tree_world import (
    GREEDY,
    SAMPLED,
    TreeWorld,
    assert_same,
    check_group,
    count_decodes,
    exact_settings,
    fail_decodes,
    from_scratch,
    random_tree,
)
from tests.schemes.drafters.test_translated_texts import (
    PROMPTS,
    SAMPLINGS,
    channel_to,
    engine,
    words,
    written,
)
from training.demo_pair import DRAFT_GGUF

pytestmark = pytest.mark.llama

SETTINGS = {"n_ctx": 1024, "n_seq_max": 64}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of other weights and the same tokens."""
    return write_tiny_gguf(tmp_path_factory.mktemp("second") / "other.gguf", seed=8)


@pytest.fixture(scope="module")
def smaller(model: Path) -> Iterator[LlamaRuntime]:
    """The same weights once more: it always agrees."""
    with LlamaRuntime(exact_settings(model, **SETTINGS)) as loaded:
        yield loaded


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("agrees", [True, False])
def test_a_random_tree_equals_its_paths_from_scratch(
    model: Path, other: Path, oracle: MemberDrafter, sampling: SamplingParams, agrees: bool
) -> None:
    with (
        LlamaRuntime(exact_settings(model)) as runtime,
        LlamaRuntime(exact_settings(model if agrees else other)) as small,
    ):
        random_tree(MemberDrafter(CascadeGroup(runtime, 1, small)), oracle, 3, sampling)


@pytest.mark.parametrize("kind", [CascadeGroup, BesideGroup])
@pytest.mark.parametrize("seed", range(3))
def test_interleaved_sessions_are_answered_as_if_alone(
    model: Path, oracle: MemberDrafter, kind: type[CascadeGroup | BesideGroup], seed: int
) -> None:
    settings = exact_settings(model, **SETTINGS)
    with LlamaRuntime(settings) as first, LlamaRuntime(settings) as second:
        group = kind(first, 4, second)
        crowd = Crowd(group, Random(seed))
        crowd.run(60, 70, checker(oracle))
        assert group.pause is None
        groups = group, group._small if isinstance(group, CascadeGroup) else group._other
        check_group(groups[1])
        for place in range(4):
            group.release(place)
        for each in groups:
            check_group(each)
        assert crowd.num_failed == 0


def test_a_chain_that_agrees_is_evaluated_in_one_batch(
    model: Path, smaller: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller.clear()
    with LlamaRuntime(exact_settings(model)) as runtime:
        world = TreeWorld(MemberDrafter(CascadeGroup(runtime, 1, smaller)), Random(1), SAMPLED)
        world.begin(list(range(10)))
        num_decodes = count_decodes(runtime, monkeypatch)
        node, committed = world.tip, list[tuple[int, int]]()
        for _ in range(CHAIN):
            node = world.child(node, world.expanded[node].tokens[0])
            world.expand([node])
            committed.append((node, world.tokens[node]))
        assert num_decodes() == 0, "the first step's chain held them"
        node = world.child(node, world.expanded[node].tokens[0])
        world.expand([node])
        assert num_decodes() == 1
        world.reroot(committed)
        assert num_decodes() == 1


def test_a_committed_token_that_was_only_foreseen_keeps_its_kv(
    model: Path, smaller: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller.clear()
    with LlamaRuntime(exact_settings(model)) as runtime:
        world = TreeWorld(MemberDrafter(CascadeGroup(runtime, 1, smaller)), Random(2))
        world.begin(list(range(10)))
        num_decodes = count_decodes(runtime, monkeypatch)
        world.reroot([(world.new_id(), world.expanded[world.tip].tokens[0])])
        world.expand([world.tip])
        assert num_decodes() == 0


def test_drawn_drafts_get_no_chain(
    model: Path, smaller: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller.clear()
    num_decodes = count_decodes(smaller, monkeypatch)
    with LlamaRuntime(exact_settings(model)) as runtime:
        drafter = MemberDrafter(CascadeGroup(runtime, 1, smaller))
        drafter.start([1, 2, 3], 1, SAMPLED, plain=8)
        world = TreeWorld(drafter, Random(3), SAMPLED, text=[1, 2, 3], tip=1)
        world.expand([1])
    assert num_decodes() == 0


def test_a_recurrent_draft_model_is_refused(tmp_path: Path, smaller: LlamaRuntime) -> None:
    path = write_tiny_gguf(tmp_path / "mamba.gguf", replace(TinyShape(), architecture="mamba"))
    with LlamaRuntime(exact_settings(path)) as runtime, pytest.raises(UserError):
        CascadeGroup(runtime, 1, smaller)


# Two draft models answer as one whose scores are means of theirs, and the second may fail.


__all__ = ["engine", "words"]


ALL = 1000  # tokens of a vocabulary
FIRST = Expansion(7, (4, 2, 9), (3.0, 2.0, 1.0))


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
def test_a_random_tree_of_two_equals_its_paths_from_scratch(
    model: Path, other: Path, pair: tuple[LlamaRuntime, LlamaRuntime], sampling: SamplingParams
) -> None:
    with LlamaRuntime(exact_settings(model)) as first, LlamaRuntime(exact_settings(other)) as second:
        group, oracle = BesideGroup(first, 1, second), BesideGroup(pair[0], 1, pair[1])
        oracle._share = group._share  # learnt from choices, of which the oracle sees none
        random_tree(MemberDrafter(group), MemberDrafter(oracle), 3, sampling)
        check_group(group._other)


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
async def test_texts_drafted_by_two_are_the_target_s_own(
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


# A decode of a parallel draft buys several levels, its masks leave nothing behind, and no text changes.


MASKS = (290, 291, 292)


@pytest.fixture(scope="module")
def parallel(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parallel") / "parallel.gguf"
    return write_copy(path, model, {PARALLEL: ",".join(map(str, MASKS))})


@pytest.fixture(scope="module")
def loaded(parallel: Path) -> Iterator[LlamaRuntime]:
    with LlamaRuntime(exact_settings(parallel)) as runtime:
        yield runtime


@pytest.fixture
def runtime(loaded: LlamaRuntime) -> LlamaRuntime:
    loaded.clear()
    return loaded


class MaskedWorld(TreeWorld):
    """Knows what each answer comes from: the text of an evaluated node, and the masks behind it."""

    def start(self, text: list[int]) -> None:
        self.seen: dict[int, list[int]] = {}
        self.bare: set[int] = set()  # evaluated nodes that another one of the same step followed: no masks
        super().start(text)

    def learn(self, nodes: list[int], found: list[Expansion]) -> None:  # type: ignore[override]
        decoded = set[int]()
        for node in nodes:
            path, text = self.paths.get(node, ()), self.text_of(node)
            above = ([self.tip, *path])[-2] if path else node
            is_bare = above in decoded | self.bare
            behind = [] if is_bare else self.seen.get(above, [])
            if not len(behind) < len(text) <= len(behind) + len(MASKS) or not behind:
                behind = text
                decoded.add(node)
                self.bare |= {above} & decoded - {node}
            self.seen[node] = behind
        super().learn(nodes, found)

    def expected(self, node: int) -> list[int]:
        """The tokens whose last row answers for a node."""
        text = self.seen[node]
        return text + list(MASKS[: len(self.text_of(node)) - len(text)])

    def random_commit(self) -> list[tuple[int, int]]:
        """Down a live path, then perhaps a token of the verifier, which may be the draft's best."""
        path = self.chance.choice([(), *self.paths.values()])
        committed = [(node, self.tokens[node]) for node in path]
        if not committed or self.chance.random() < 0.5:
            best = self.expanded[path[-1] if path else self.tip].tokens[0]
            token = best if self.chance.random() < 0.7 else self.chance.randrange(280)
            committed.append((self.new_id(), token))
        return committed

    def reroot(self, committed: list[tuple[int, int]]) -> None:
        node, token = committed[-1]
        above = committed[-2][0] if len(committed) > 1 else self.tip
        if node not in self.paths and above not in self.bare and self.expanded[above].tokens[0] == token:
            behind = self.seen[above]
            if len(self.text) + len(committed) <= len(behind) + len(MASKS):
                self.seen[node] = behind
        super().reroot(committed)
        self.seen = {each: text for each, text in self.seen.items() if each in {*self.expanded, self.tip}}


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", range(3))
def test_each_answer_is_its_decode_s_or_its_mask_s(
    runtime: LlamaRuntime, oracle: MemberDrafter, sampling: SamplingParams, seed: int
) -> None:
    world = MaskedWorld(MemberDrafter(ParallelGroup(runtime, 1)), Random(seed), sampling)
    world.num_tokens = 280
    world.start([world.chance.randrange(280) for _ in range(world.chance.randint(1, 40))])
    num_by_masks = 0
    for _ in range(30):
        rows, left_out = (both := world.random_rows())[:3], both[3:]  # so that all masks of a step have room
        for node in left_out:
            del world.paths[node], world.tokens[node]
        for node, found in zip(rows, world.expand(rows), strict=True):
            expected = world.expected(node)
            num_by_masks += expected != world.text_of(node)
            assert_same(found, from_scratch(oracle, expected, sampling))
        if world.paths and world.chance.random() < 0.2:
            world.random_pruning()
        if world.chance.random() < 0.4 and world.tip in world.expanded:
            world.reroot(world.random_commit())
    assert num_by_masks > 5


def chain(drafter: MemberDrafter, text: list[int], length: int) -> list[ReadingTime]:
    """Draft a chain of best tokens, and commit it. Return the reading of each step."""
    ids = count(1)
    rows = [DraftRow(next(ids), None, text[-1], len(text) - 1)]
    drafter.start(text, rows[0].id, GREEDY)
    readings = []
    for _ in range(length):
        best = drafter.expand(rows[-1:])[0].tokens[0]
        readings.append(drafter.reading)
        rows.append(DraftRow(next(ids), rows[-1].id, best, rows[-1].position + 1))
    drafter.reroot(Reroot(tuple((row.id, row.token) for row in rows[1:-1]), ()))
    check_group(drafter.group)
    tip = rows[-2]
    drafter.expand([replace(rows[-1], parent=tip.id)])
    return [*readings, drafter.reading]


def test_a_decode_buys_a_level_for_each_mask(runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    group = ParallelGroup(runtime, 1)
    num_decodes = count_decodes(runtime, monkeypatch)
    readings = chain(MemberDrafter(group), list(range(10)), 8)
    assert num_decodes() == 3
    assert [each.levels for each in readings] == [4, 0, 0, 0, 4, 0, 0, 0, 4]
    assert [each.num_tokens for each in readings] == [9] + 8 * [0], "what masks answered is not read anew"


def test_tokens_that_the_target_writes_meanwhile_need_no_decode_where_the_masks_have_them(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, text = ParallelGroup(runtime, 1), list(range(10))
    chain(MemberDrafter(group), text, 3)
    best = group.members[0].session._tokens[10:12]
    num_decodes = count_decodes(runtime, monkeypatch)
    for second, num_expected in ((best[1], 1), (best[1] + 1, 2)):
        drafter = MemberDrafter(ParallelGroup(runtime, 1))
        drafter.start([5, *text], 1, GREEDY)
        drafter.start(text, 1, GREEDY)
        before = num_decodes()
        drafter.expand([DraftRow(1, None, text[-1], 9)])
        drafter.reroot(Reroot(((2, best[0]), (3, second)), ()))
        drafter.expand([DraftRow(3, None, second, 11)])
        check_group(drafter.group)
        assert num_decodes() - before == num_expected
        runtime.clear()


def test_the_pace_is_that_of_a_level() -> None:
    pace = DraftTimes()
    pace.rows.measured({1: 0.06})
    for _ in range(500):
        pace.sample(1, 0.06, ReadingTime(levels=4), 0.0)
        assert not pace.sample(1, 0.0001, ReadingTime(levels=0), 0.0)
    assert pace.rows.predict(1) == pytest.approx(0.015, rel=0.01)


def test_sessions_and_their_ends_leave_nothing_behind(parallel: Path) -> None:
    with LlamaRuntime(exact_settings(parallel, n_ctx=1024, n_seq_max=64)) as runtime:
        group = ParallelGroup(runtime, 4)
        crowd = Crowd(group, Random(5))
        for world in crowd.worlds:
            world.num_tokens = 280
        crowd.run(60, 70, lambda world, node, found: None)
        for place in range(4):
            group.release(place)
        check_group(group)
        assert crowd.num_failed == 0


def test_masks_give_way_where_the_context_is_full(parallel: Path) -> None:
    with LlamaRuntime(exact_settings(parallel, n_ctx=256)) as runtime:  # llama.cpp's smallest context
        text = [place % 280 for place in range(runtime.n_ctx - 2)]
        drafter = MemberDrafter(ParallelGroup(runtime, 1))
        drafter.start(text, 1, GREEDY)
        (said,) = drafter.expand([DraftRow(1, None, text[-1], len(text) - 1)])
        drafter.expand([DraftRow(2, 1, said.tokens[0], len(text))])
        check_group(drafter.group)


def test_a_failed_decode_is_tried_again_without_masks(
    runtime: LlamaRuntime, oracle: MemberDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = MemberDrafter(ParallelGroup(runtime, 1))
    drafter.start([1, 2, 3], 1, GREEDY)
    with monkeypatch.context() as patch:
        fail_decodes(runtime, patch, NO_KV_SLOT, 1)
        (said,) = drafter.expand([DraftRow(1, None, 3, 2)])
    assert_same(said, from_scratch(oracle, [1, 2, 3], GREEDY))
    assert drafter.reading.levels == 1
    check_group(drafter.group)


@pytest.mark.parametrize("masks", ["x", "3,400", "-1"])
def test_metadata_without_masks_are_refused(model: Path, tmp_path: Path, masks: str) -> None:
    path = write_copy(tmp_path / "wrong.gguf", model, {PARALLEL: masks})
    with LlamaRuntime(exact_settings(path)) as runtime, wording.raises(UserError):
        ParallelGroup(runtime, 1)


def test_a_recurrent_model_has_no_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_gguf(tmp_path / "mamba.gguf", replace(TinyShape(), architecture="mamba"))
    path = write_copy(tmp_path / "masked.gguf", path, {PARALLEL: "290"})
    with LlamaRuntime(exact_settings(path)) as runtime:
        assert ParallelGroup(runtime, 1).levels == 1
        assert [each.levels for each in chain(MemberDrafter(ParallelGroup(runtime, 1)), [1, 2], 2)] == [1] * 3


async def test_a_file_with_masks_is_used_with_them(
    parallel: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pace is that of a level, and reading takes a step that buys the levels of the next ones."""
    tables = PaceTables({1: 0.060}, {2: 0.060})
    monkeypatch.setattr("edge_client.draft.shared_model.measure_pace", lambda runtime: tables)
    draft = SharedDraftModel(LlamaSettings(str(model), n_ctx=512, threads=1), 1, -1.0)
    newer = draft.sibling(path=str(parallel))
    seconds = []
    for each in (draft, newer):
        await each.load()
        seconds.append([each.pace.rows.predict(1), each.pace.reads.predict(1)])
    await newer.close()
    await draft.close()
    assert seconds == [pytest.approx([0.060, 0.006]), pytest.approx([0.015, 0.051])]


def test_a_draft_without_masks_says_one_level(runtime: LlamaRuntime) -> None:
    assert [each.levels for each in chain(MemberDrafter(DraftGroup(runtime, 1)), [1, 2, 3], 2)] == [1] * 3


def test_the_bundled_draft_names_no_masks() -> None:
    with LlamaModel(LlamaSettings(str(DRAFT_GGUF)), weights=False) as words:
        assert words.metadata(PARALLEL) == ""


@pytest.mark.grpc
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sync:4", "adaptive"])
async def test_texts_are_the_target_s_own(tmp_path: Path, policy: str) -> None:
    """Whatever masks say: those of this draft were never trained."""
    path = write_copy(tmp_path / "masked.gguf", DRAFT_GGUF, {PARALLEL: "125,126,178"})
    with open_runtime(str(DRAFT_GGUF), 1024, 64, 256, LlamaOptions(threads=1)) as target:
        prompts = [target.tokenize(prompt, False) for prompt in PROMPTS]
        async with channel_to(LlamaEngine(target, 1024, name="bundled")) as channel:
            draft = SharedDraftModel(LlamaSettings(str(path), n_ctx=1024, threads=1), 1, -1.0)
            for prompt, sampling in product(prompts, SAMPLINGS):
                plain, _ = await written(channel, None, prompt, sampling)
                drafted, stats = await written(channel, draft, prompt, sampling, policy)
                assert drafted == plain
                assert policy == "adaptive" or stats.accepted > 0, "adaptive may rest beside a fast target"
            await draft.close()
