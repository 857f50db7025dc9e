"""A tiny model's file and what is made of it, for tests that want no more of it than that."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.llama.runtime import LlamaRuntime
from edge_client.draft.group import DraftGroup, MemberDrafter
from tests.edge_client.draft.tree_world import exact_settings


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.edge_client.draft.tiny_gguf import write_tiny_gguf

    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def runtime(model: Path) -> Iterator[LlamaRuntime]:
    with LlamaRuntime(exact_settings(model)) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def oracle(model: Path) -> Iterator[MemberDrafter]:
    """Another context, which is only ever asked for the tip of a text."""
    with LlamaRuntime(exact_settings(model, n_seq_max=2)) as loaded:
        yield MemberDrafter(DraftGroup(loaded, 1))


@pytest.fixture
def drafter(runtime: LlamaRuntime) -> MemberDrafter:
    runtime.clear()
    return MemberDrafter(DraftGroup(runtime, 1))
