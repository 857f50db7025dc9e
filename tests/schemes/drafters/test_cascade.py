"""A smaller draft in front changes no answer, leaks nothing, and saves batches where it agrees."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from common.errors import UserError
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from edge_client.draft.group import MemberDrafter
from schemes.drafters.cascade import CHAIN, CascadeGroup
from tests.edge_client.draft.test_group import Crowd, checker
from tests.edge_client.draft.tiny_gguf import TinyShape, write_tiny_gguf
from tests.edge_client.draft.tree_world import (
    GREEDY,
    SAMPLED,
    TreeWorld,
    check_group,
    count_decodes,
    exact_settings,
    random_tree,
)

pytestmark = pytest.mark.llama

SETTINGS = {"n_ctx": 1024, "n_seq_max": 64}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of other weights and the same tokens."""
    return write_tiny_gguf(tmp_path_factory.mktemp("small") / "other.gguf", seed=8)


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


@pytest.mark.parametrize("seed", range(3))
def test_interleaved_sessions_are_answered_as_if_alone(
    model: Path, smaller: LlamaRuntime, oracle: MemberDrafter, seed: int
) -> None:
    smaller.clear()
    with LlamaRuntime(exact_settings(model, **SETTINGS)) as runtime:
        group = CascadeGroup(runtime, 4, smaller)
        crowd = Crowd(group, Random(seed))
        crowd.run(60, 70, checker(oracle))
        check_group(group._small)
        for place in range(4):
            group.release(place)
        check_group(group)
        check_group(group._small)
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
