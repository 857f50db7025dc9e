"""What holds for drafts of all architectures: recurrent, hybrid, with windows, experts, latents, an index."""

from pathlib import Path

import pytest

from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from edge_client.draft.group import MemberDrafter
from tests.edge_client.draft.test_group import ask, check_answers, group_on, worlds_on
from tests.edge_client.draft.tiny_architectures import write_architecture
from tests.edge_client.draft.tiny_gguf import TinyShape, write_tiny_gguf
from tests.edge_client.draft.tree_world import (
    GREEDY,
    SAMPLED,
    exact_settings,
    fail_decodes,
    num_resyncs,
    random_tree,
)

pytestmark = pytest.mark.llama

TINY = ("llama", "mamba", "jamba")
OTHERS = ("qwen3moe", "deepseek2", "gpt-oss", "gemma2", "qwen2vl", "minimax-m3")


@pytest.fixture(scope="module", params=(*TINY, *OTHERS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    if request.param in TINY:
        return write_tiny_gguf(path, TinyShape(architecture=request.param))
    return write_architecture(path, request.param)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_random_tree_equals_its_paths_from_scratch(
    drafter: MemberDrafter, oracle: MemberDrafter, sampling: SamplingParams
) -> None:
    world = random_tree(drafter, oracle, 1, sampling)
    assert len(world.text) > 20
    assert num_resyncs(drafter) == 0


@pytest.mark.parametrize(("code", "num_failures"), [(1, 1), (-3, 3)])
def test_a_failed_decode_costs_nobody_an_answer(
    model: Path, oracle: MemberDrafter, monkeypatch: pytest.MonkeyPatch, code: int, num_failures: int
) -> None:
    with LlamaRuntime(exact_settings(model, 1024, 32)) as runtime:
        group = group_on(runtime, 3)
        worlds = worlds_on(group)
        for world in worlds:
            world.begin([world.chance.randrange(300) for _ in range(40)])
            world.expand([world.child(world.tip, token) for token in (3, 4, 5)])
        asked = [[world.child(node, 9) for node in list(world.paths)[:2]] for world in worlds]
        fail_decodes(runtime, monkeypatch, code, num_failures)
        ask(group, worlds, asked)
        check_answers(group, worlds, asked, oracle)
