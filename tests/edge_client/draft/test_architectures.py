"""Drafts of other architectures than Llama: windows, experts, latents, an index of keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_client.draft.group import MemberDrafter
from tests.edge_client.draft.tree_world import GREEDY, num_resyncs, random_tree

pytestmark = pytest.mark.llama


@pytest.fixture(
    scope="module", params=["qwen3moe", "deepseek2", "gpt-oss", "gemma2", "qwen2vl", "minimax-m3"]
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.edge_client.draft.tiny_architectures import write_architecture

    return write_architecture(tmp_path_factory.mktemp("models") / f"{request.param}.gguf", request.param)


def test_a_random_tree_equals_its_paths_from_scratch(drafter: MemberDrafter, oracle: MemberDrafter) -> None:
    random_tree(drafter, oracle, 1, GREEDY)
    assert num_resyncs(drafter) == 0
