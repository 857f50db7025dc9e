"""Recurrent and hybrid models answer every node as if its path were evaluated alone."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from common.llama.load_trial import ModelTrials
from common.llama.model import LlamaSettings
from common.llama.runtime import LlamaRuntime
from edge_client.core.effects import Expansion
from edge_client.draft.group import MemberDrafter
from edge_client.draft.measure_pace import measure_pace
from tests.edge_client.draft.test_group import Crowd, checker, group_on, worlds_on
from tests.edge_client.draft.tree_world import (
    GREEDY,
    TOLERANCE,
    TreeWorld,
    assert_same,
    count_decodes,
    exact_settings,
    from_scratch,
)

pytestmark = pytest.mark.llama


@pytest.fixture(scope="module", params=["mamba", "jamba"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.edge_client.draft.tiny_gguf import TinyShape, write_tiny_gguf

    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    return write_tiny_gguf(path, TinyShape(architecture=request.param))


def plainly(runtime: LlamaRuntime, tokens: list[int]) -> list[float]:
    """The five best logits after `tokens`, each evaluated by a call of its own."""
    runtime.clear()
    for position, token in enumerate(tokens):
        runtime.batch.fill([token], [position], [0], [1])
        assert runtime.decode() == 0
    best = sorted(runtime.logits(1)[0].tolist(), reverse=True)[:5]
    runtime.clear()
    return best


def test_a_tree_equals_llama_cpp_alone(drafter: MemberDrafter, runtime: LlamaRuntime) -> None:
    world = TreeWorld(drafter, Random(3))
    world.begin(list(range(40)))
    found = list[tuple[list[int], Expansion]]()
    for _ in range(6):
        rows = world.random_rows()
        found += [(world.text_of(node), each) for node, each in zip(rows, world.expand(rows), strict=True)]
    for tokens, each in found:
        np.testing.assert_allclose(each.scores, plainly(runtime, tokens), atol=TOLERANCE)


@pytest.mark.parametrize(("size", "n_ctx", "n_seq_max"), [(8, 1024, 16), (2, 256, 4), (1, 256, 2)])
def test_interleaved_sessions_are_answered_as_if_alone(
    model: Path, oracle: MemberDrafter, size: int, n_ctx: int, n_seq_max: int
) -> None:
    with LlamaRuntime(exact_settings(model, n_ctx, n_seq_max)) as runtime:
        group = group_on(runtime, size)
        crowd = Crowd(group, Random(size))
        crowd.run(60, 70, checker(oracle))
        assert crowd.num_failed == 0
        assert sum(member.session.num_resyncs for member in group.members) == 0
        for member in group.members:
            member.session.clear()
        assert all(runtime.seq_span(sequence) == (-1, -1) for sequence in range(n_seq_max))


def test_growing_a_narrow_tree_evaluates_each_node_once(
    drafter: MemberDrafter, runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, decode = list[int](), runtime.decode

    def counted() -> int:
        sizes.append(runtime.batch.struct.n_tokens)
        return decode()

    world = TreeWorld(drafter, Random(5))
    world.begin(list(range(40)))
    monkeypatch.setattr(runtime, "decode", counted)
    for _ in range(10):
        stems = [world.child(world.tip, token) for token in (3, 4)]
        world.expand(stems)
        world.expand([world.child(stem, token) for stem in stems for token in (5, 6)])
        world.reroot([(stems[1], world.tokens[stems[1]])])
        world.reroot([(node := next(iter(world.paths)), world.tokens[node])])
    assert sizes == [2, 4] * 10


def test_a_failed_batch_that_moved_the_trunk_is_noticed(
    drafter: MemberDrafter, runtime: LlamaRuntime, oracle: MemberDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp evaluates a part of a batch and fails; no later batch goes on from that state."""
    world = TreeWorld(drafter, Random(5))
    world.begin(list(range(60)))
    world.reroot([(world.new_id(), 7), (world.new_id(), 8)])
    codes, decode = list[int](), runtime.decode

    def failing() -> int:
        codes.append(decode())
        return codes[-1] if len(codes) > 1 else -3

    monkeypatch.setattr(runtime, "decode", failing)
    (found,) = world.expand([world.tip])
    assert not any(codes)
    assert_same(found, from_scratch(oracle, world.text, GREEDY))


@pytest.mark.parametrize(
    ("text", "num_read"),
    [
        (lambda prompt: prompt, 32),  # the same prompt again
        (lambda prompt: [*prompt, 7, 8, 9], 35),  # its text came out otherwise
        (lambda prompt: [*prompt[:50], 7, *prompt[51:]], 100),  # edited
    ],
    ids=["again", "other text", "edited"],
)
def test_another_text_begins_near_the_end_of_the_same_prompt(
    drafter: MemberDrafter, oracle: MemberDrafter, text: Callable[[list[int]], list[int]], num_read: int
) -> None:
    prompt = list(range(100))
    world = TreeWorld(drafter, Random(5))
    world.begin(prompt)
    stem = world.child(world.tip, 3)
    world.expand([stem])
    world.reroot([(stem, 3)])
    drafter.group.release(0)
    world.begin(text(prompt))
    assert drafter.reading.num_tokens < num_read
    assert_same(world.expanded[world.tip], from_scratch(oracle, world.text, GREEDY))


def test_a_continued_text_is_not_read_again_in_another_seat_or_from_a_parked_copy(
    model: Path, oracle: MemberDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LlamaRuntime(exact_settings(model, 512, 16)) as runtime:
        group = group_on(runtime, 2)
        first, second = worlds_on(group)
        first.begin(list(range(200)))
        num_decodes = count_decodes(runtime, monkeypatch)
        second.begin([*range(200), 7, 8])
        assert num_decodes() <= 2
        assert_same(second.expanded[second.tip], from_scratch(oracle, second.text, GREEDY))
        group.release(1)
        group.release(0)
        first.begin([5, 6])
        assert len(group.parked) == 2
        num_decodes = count_decodes(runtime, monkeypatch)
        second.begin([*range(200), 7, 8, 9])
        assert num_decodes() <= 2
        assert_same(second.expanded[second.tip], from_scratch(oracle, second.text, GREEDY))
        group.release(1)
        second.begin([*range(150), 7])
        assert_same(second.expanded[second.tip], from_scratch(oracle, second.text, GREEDY))


def test_no_more_states_are_parked_than_the_context_has(model: Path) -> None:
    with LlamaRuntime(exact_settings(model, 512, 4)) as runtime:
        group = group_on(runtime, 2)
        first, second = worlds_on(group)
        for token in range(8):
            first.begin([token] * 5)
            group.release(0)
            second.begin([100 + token] * 5)
            group.release(1)
        assert [each.tokens[0] for each in group.parked] == [105, 6, 106, 7]


def test_a_lone_session_may_have_all_states_and_gives_them_up(model: Path, oracle: MemberDrafter) -> None:
    with LlamaRuntime(exact_settings(model, 1024, 16)) as runtime:
        group = group_on(runtime, 4)
        rich, *others = worlds_on(group)
        rich.begin([1, 2, 3])
        rich.expand([rich.child(rich.tip, token) for token in range(40)])
        assert group.members[0].session.num_branches == 12
        for world in others:
            world.begin([4, 5, 6])
            world.expand([world.child(world.tip, token) for token in range(3)])
        assert [member.session.num_branches for member in group.members] == [3] * 4
        rows = [rich.child(node, 7) for node in list(rich.paths)]
        for node, found in zip(rows, rich.expand(rows), strict=True):
            assert_same(found, from_scratch(oracle, rich.text_of(node), GREEDY))


def test_a_last_state_outlasts_kept_beginnings(model: Path) -> None:
    with LlamaRuntime(exact_settings(model, 1024, 8)) as runtime:
        group = group_on(runtime, 4)
        worlds = worlds_on(group)
        for place, world in enumerate(worlds):
            world.begin([place] * 100)
        assert not group._sequences.idle
        for world in worlds:
            world.expand([world.child(world.tip, 7)])
        assert [member.session.num_branches for member in group.members] == [1] * 4


def test_the_trial_and_the_measured_pace_take_such_a_file(model: Path, runtime: LlamaRuntime) -> None:
    ModelTrials().ensure(LlamaSettings(str(model)), weights=True)
    runtime.clear()
    tables = measure_pace(runtime, budget=60.0)
    assert list(tables.rows) == [1, 2, 3, 4, 6]
    assert all(runtime.seq_span(sequence) == (-1, -1) for sequence in range(runtime.n_seq_max))
