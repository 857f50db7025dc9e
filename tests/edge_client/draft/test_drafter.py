"""Expanding a tree equals evaluating each of its paths from scratch, whatever happened before."""

from pathlib import Path
from random import Random

import pytest

from common.errors import LocalError
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Reroot, StartDrafter
from edge_client.draft.group import DraftGroup, MemberDrafter
from tests import wording
from tests.edge_client.draft.tree_world import (
    GREEDY,
    TOLERANCE,
    TreeWorld,
    assert_same,
    check_group,
    count_decodes,
    exact_settings,
    fail_decodes,
    from_scratch,
    num_resyncs,
)

pytestmark = pytest.mark.llama


def test_a_commit_of_server_made_tokens_is_evaluated_with_the_next_rows(
    drafter: MemberDrafter, runtime: LlamaRuntime, oracle: MemberDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TreeWorld(drafter, Random(1))
    world.begin(list(range(20)))
    assert drafter.reading.num_tokens == 19
    world.reroot([(world.new_id(), 50), (world.new_id(), 51)])
    num_decodes = count_decodes(runtime, monkeypatch)
    (found,) = world.expand([world.tip])
    assert num_decodes() == 1
    assert drafter.reading.num_tokens == 1
    assert drafter.reading.seconds > 0
    assert_same(found, from_scratch(oracle, world.text, GREEDY))


def test_a_full_context_makes_room_by_forgetting_branches(model: Path, oracle: MemberDrafter) -> None:
    with LlamaRuntime(exact_settings(model, n_ctx=256)) as small:
        drafter = MemberDrafter(DraftGroup(small, 1))
        world = TreeWorld(drafter, Random(3))
        world.begin(list(range(240)))
        nodes = [world.child(world.tip, token) for token in range(40)]
        for node in nodes:
            world.expand([node])
        assert_same(world.expanded[nodes[-1]], from_scratch(oracle, world.text_of(nodes[-1]), GREEDY))
        assert num_resyncs(drafter) > 0


def test_a_resync_that_fails_too_is_an_error_and_not_the_end(
    drafter: MemberDrafter, runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TreeWorld(drafter, Random(2))
    world.start(list(range(50)))
    with monkeypatch.context() as broken:
        fail_decodes(runtime, broken, -3, 99)
        with wording.raises(LocalError):
            drafter.expand([world.row(world.tip)])
    world.begin(list(range(50)))


@pytest.mark.parametrize("tokens", [[], [300]])
def test_tokens_outside_the_vocabulary_are_refused(drafter: MemberDrafter, tokens: list[int]) -> None:
    with wording.raises(LocalError):
        drafter.start(tokens, 1, GREEDY)


def test_a_committed_token_that_was_drafted_otherwise_forgets_the_tree(
    drafter: MemberDrafter, oracle: MemberDrafter
) -> None:
    world = TreeWorld(drafter, Random(2))
    world.begin(list(range(30)))
    stem = world.child(world.tip, 3)
    world.expand([stem])
    drafter.reroot(Reroot(((stem, 4),), ()))
    check_group(drafter.group)
    (found,) = drafter.expand([DraftRow(stem, world.tip, 4, 30)])
    assert_same(found, from_scratch(oracle, [*range(30), 4], GREEDY))


@pytest.mark.parametrize("generated", [0, 4])
def test_text_that_is_there_is_penalised_as_text_that_came(drafter: MemberDrafter, generated: int) -> None:
    likely = tuple((token, 30.0) for token in (4, 5, 6))
    penalised = SamplingParams(presence_penalty=2.0, frequency_penalty=1.0, logit_bias=likely)
    prompt, text = [1, 2, 3], [4, 5, 4, 6]
    drafter.start(prompt, 1, penalised)
    drafter.reroot(Reroot(tuple(zip((5, 6, 7, 9), text, strict=True)), ()))
    tip = DraftRow(9, None, 6, 6)
    grown = drafter.expand([tip])
    drafter.group.begin(0, StartDrafter((*prompt, *text), 9, penalised, generated=generated))
    found = drafter.expand([tip])
    assert (found[0].scores == pytest.approx(grown[0].scores, abs=TOLERANCE)) is (generated == 4)
