"""Expanding a tree equals evaluating each of its paths from scratch, whatever happened before."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from common.errors import CapacityError, LocalError
from common.sampling import SamplingParams
from edge_client.core.drafter import DraftRow, Reroot
from tests.edge_client.llama.tree_world import (
    GREEDY,
    SAMPLED,
    TOLERANCE,
    TreeWorld,
    assert_same,
    count_decodes,
    exact_settings,
    fail_decodes,
    from_scratch,
)

if TYPE_CHECKING:
    from edge_client.llama.drafter import LlamaDrafter
    from edge_client.llama.runtime import LlamaRuntime

pytestmark = pytest.mark.llama


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", range(6))
def test_a_random_tree_equals_its_paths_from_scratch(
    drafter: LlamaDrafter, oracle: LlamaDrafter, seed: int, sampling: SamplingParams
) -> None:
    world = TreeWorld(drafter, Random(seed), sampling)
    world.start([world.chance.randrange(300) for _ in range(world.chance.randint(1, 70))])
    for _ in range(40):
        for node, found in zip(rows := world.random_rows(), world.expand(rows), strict=True):
            if world.chance.random() < 0.4:
                assert_same(found, from_scratch(oracle, world.text_of(node), sampling))
        if world.paths and world.chance.random() < 0.2:
            world.random_pruning()
        if world.chance.random() < 0.4:
            world.reroot(world.random_commit())
    assert len(world.text) > 20


def test_growing_inside_the_sequences_needs_no_resync(drafter: LlamaDrafter) -> None:
    world = TreeWorld(drafter, Random(5))
    world.start(list(range(40)))
    for _ in range(30):
        (found,) = world.expand([world.tip])
        stems = [world.child(world.tip, token) for token in found.tokens[:4]]
        world.expand(stems)
        world.expand([world.child(stem, world.expanded[stem].tokens[0]) for stem in stems])
        world.reroot([(stems[1], world.tokens[stems[1]])])
    assert drafter.num_resyncs == 0


def test_a_commit_of_server_made_tokens_is_evaluated_with_the_next_rows(
    drafter: LlamaDrafter, runtime: LlamaRuntime, oracle: LlamaDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TreeWorld(drafter, Random(1))
    world.start(list(range(20)))
    world.expand([world.tip])
    assert drafter.reading.num_tokens == 19
    world.reroot([(world.new_id(), 50), (world.new_id(), 51)])
    num_decodes = count_decodes(runtime, monkeypatch)
    (found,) = world.expand([world.tip])
    assert num_decodes() == 1
    assert drafter.reading.num_tokens == 1
    assert drafter.reading.seconds > 0
    assert_same(found, from_scratch(oracle, world.text, GREEDY))


def test_nothing_is_evaluated_before_it_is_asked_for(
    drafter: LlamaDrafter, runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_decodes = count_decodes(runtime, monkeypatch)
    drafter.start(list(range(70)), 1, GREEDY)
    assert num_decodes() == 0
    drafter.expand([DraftRow(1, None, 69, 69)])
    assert num_decodes() == 4  # 69 tokens, 32 a batch, then the tip
    assert drafter.reading.num_tokens == 69


def test_a_restart_evaluates_only_what_is_new(
    drafter: LlamaDrafter, runtime: LlamaRuntime, oracle: LlamaDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TreeWorld(drafter, Random(1))
    world.start(list(range(100)))
    world.expand([world.tip])
    world.expand([world.child(world.tip, 3), world.child(world.tip, 4)])
    num_decodes = count_decodes(runtime, monkeypatch)
    world.start([*range(90), 7, 8])
    (found,) = world.expand([world.tip])
    assert num_decodes() == 1
    assert drafter.reading.num_tokens == 1
    assert_same(found, from_scratch(oracle, world.text, GREEDY))


def test_a_row_asked_again_is_answered_without_evaluation(
    drafter: LlamaDrafter, runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TreeWorld(drafter, Random(1))
    world.start(list(range(10)))
    first = world.expand([world.tip])
    num_decodes = count_decodes(runtime, monkeypatch)
    assert world.expand([world.tip]) == first
    assert num_decodes() == 0


@pytest.mark.parametrize("code", [1, 2, -1, -3])
@pytest.mark.parametrize("num_failures", [1, 2])
def test_a_failed_decode_is_answered_by_a_resync(
    drafter: LlamaDrafter,
    runtime: LlamaRuntime,
    oracle: LlamaDrafter,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    num_failures: int,
) -> None:
    world = TreeWorld(drafter, Random(2))
    world.start(list(range(50)))
    world.expand([world.tip])
    stems = [world.child(world.tip, token) for token in (3, 4, 5)]
    world.expand(stems)
    rows = [world.child(stem, 9) for stem in (stems[0], stems[0], stems[2])]
    fail_decodes(runtime, monkeypatch, code, num_failures)
    for node, found in zip(rows, world.expand(rows), strict=True):
        assert_same(found, from_scratch(oracle, world.text_of(node), GREEDY))
    assert drafter.num_resyncs == num_failures
    world.expand([world.child(node, 11) for node in (*rows, stems[1])])
    world.reroot([(stems[0], 3), (rows[0], 9)])


def test_kv_lost_behind_our_back_is_noticed_and_made_again(
    drafter: LlamaDrafter, runtime: LlamaRuntime, oracle: LlamaDrafter
) -> None:
    world = TreeWorld(drafter, Random(2))
    world.start(list(range(50)))
    world.expand([world.tip])
    (stem,) = [world.child(world.tip, 3)]
    world.expand([stem])
    runtime.seq_remove(-1, 20)
    row = world.child(stem, 8)
    (found,) = world.expand([row])
    assert drafter.num_resyncs > 0
    assert_same(found, from_scratch(oracle, world.text_of(row), GREEDY))


def test_more_leaves_than_sequences_are_drafted_in_turn(drafter: LlamaDrafter, oracle: LlamaDrafter) -> None:
    world = TreeWorld(drafter, Random(2))
    world.start(list(range(30)))
    world.expand([world.tip])
    rows = [world.child(world.tip, token) for token in range(30)]
    for node, found in zip(rows, world.expand(rows), strict=True):
        assert_same(found, from_scratch(oracle, world.text_of(node), GREEDY))
    world.expand([world.child(node, 7) for node in rows[::5]])


def test_a_full_context_makes_room_by_forgetting_branches(model: Path, oracle: LlamaDrafter) -> None:
    from edge_client.llama.drafter import LlamaDrafter
    from edge_client.llama.runtime import LlamaRuntime

    with LlamaRuntime(exact_settings(model, n_ctx=256)) as small:
        drafter = LlamaDrafter(small)
        world = TreeWorld(drafter, Random(3))
        world.start(list(range(240)))
        world.expand([world.tip])
        nodes = [world.child(world.tip, token) for token in range(40)]
        for node in nodes:
            world.expand([node])
        assert_same(world.expanded[nodes[-1]], from_scratch(oracle, world.text_of(nodes[-1]), GREEDY))
        assert drafter.num_resyncs > 0


def test_a_text_longer_than_the_context_says_so(model: Path) -> None:
    from edge_client.llama.drafter import LlamaDrafter
    from edge_client.llama.runtime import LlamaRuntime

    with LlamaRuntime(exact_settings(model, n_ctx=256)) as small:
        world = TreeWorld(LlamaDrafter(small), Random(3))
        with pytest.raises(CapacityError, match=r"raise draft\.context"):
            world.start([5] * 257)
        world.start([5] * 256)
        world.expand([world.tip])
        with pytest.raises(CapacityError, match=r"raise draft\.context"):
            world.drafter.expand([DraftRow(99, world.tip, 1, 256)])
        world.start([6] * 10)
        world.expand([world.tip])


def test_pruning_frees_every_cell(drafter: LlamaDrafter, runtime: LlamaRuntime) -> None:
    world = TreeWorld(drafter, Random(4))
    world.start(list(range(99)))
    world.expand([world.tip])
    world.start(list(range(100)))
    empty = [runtime.seq_bytes(sequence) for sequence in range(runtime.n_seq_max)]
    for _ in range(40):
        rows = world.random_rows()
        world.expand(rows)
    world.reroot([(world.new_id(), 1)])
    assert not world.paths
    runtime.seq_remove(0, 99)
    for sequence in range(runtime.n_seq_max):
        held = runtime.seq_span(sequence)[1] + 1
        expected = empty[0] if held == 99 else empty[1]
        assert runtime.seq_bytes(sequence) == expected or held == 100


def test_a_resync_that_fails_too_is_an_error_and_not_the_end(
    drafter: LlamaDrafter, runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TreeWorld(drafter, Random(2))
    world.start(list(range(50)))
    with monkeypatch.context() as broken:
        fail_decodes(runtime, broken, -3, 99)
        with pytest.raises(LocalError, match="failed after a resync too"):
            drafter.expand([world.row(world.tip)])
    world.expand([world.tip])


def test_an_unknown_parent_is_a_defect_of_ours(drafter: LlamaDrafter) -> None:
    drafter.start([1, 2, 3], 1, GREEDY)
    with pytest.raises(LocalError, match="node 8 at position 5"):
        drafter.expand([DraftRow(8, 7, 4, 5)])
    with pytest.raises(LocalError, match="not live there"):
        drafter.expand([DraftRow(8, 1, 4, 4)])


@pytest.mark.parametrize("tokens", [[], [300], [-1, 5]])
def test_tokens_outside_the_vocabulary_are_refused(drafter: LlamaDrafter, tokens: list[int]) -> None:
    with pytest.raises(LocalError, match="outside its vocabulary"):
        drafter.start(tokens, 1, GREEDY)


def test_a_committed_token_that_was_drafted_otherwise_forgets_the_tree(
    drafter: LlamaDrafter, oracle: LlamaDrafter
) -> None:
    world = TreeWorld(drafter, Random(2))
    world.start(list(range(30)))
    world.expand([world.tip])
    stem = world.child(world.tip, 3)
    world.expand([stem])
    drafter.reroot(Reroot(((stem, 4),), ()))
    drafter.check_integrity()
    (found,) = drafter.expand([DraftRow(stem, world.tip, 4, 30)])
    assert_same(found, from_scratch(oracle, [*range(30), 4], GREEDY))


def test_penalties_count_the_path(drafter: LlamaDrafter, oracle: LlamaDrafter) -> None:
    params = SamplingParams(frequency_penalty=3.0)
    world = TreeWorld(drafter, Random(2), params)
    world.start(list(range(30)))
    (tip,) = world.expand([world.tip])
    node = world.child(world.tip, tip.tokens[0])
    (found,) = world.expand([node])
    plain = from_scratch(oracle, world.text_of(node), GREEDY)
    written = tip.tokens[0]
    wanted = {
        token: score - 3.0 * (token == written)
        for token, score in zip(plain.tokens, plain.scores, strict=True)
    }
    shift = wanted[found.tokens[0]] - found.scores[0]  # scores are up to a constant of the row
    for token, score in zip(found.tokens, found.scores, strict=True):
        assert token not in wanted or score + shift == pytest.approx(wanted[token], abs=TOLERANCE)
