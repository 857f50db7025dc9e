"""The draft models of several pairs share what they can, and make room for each other."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from common.llama.model import LlamaSettings
from edge_client.draft.draft_models import DraftModels, OpenedDraft
from edge_client.draft.shared_model import MEMORY, ModelState, SharedDraftModel
from edge_client.pair import DraftFiles, open_pair
from edge_client.process.paths import EdgePaths
from edge_client.settings import load_config
from edge_client.texts.queue import Admission
from edge_client.texts.text_request import Writer

pytestmark = pytest.mark.llama

LONG_AGO = 300.0
NEVER = -1.0


@dataclass
class Folder:
    """Two files, and the free memory that models are told of."""

    models: DraftModels
    files: tuple[Path, Path]
    free: float = 0.0  # bytes

    def open(self, file: int, keep_alive: float = LONG_AGO, **changes: Any) -> OpenedDraft:
        settings = LlamaSettings(
            str(self.files[file]), n_ctx=256, n_seq_max=16, n_batch=64, max_rows=8, threads=1
        )
        return self.models.open(replace(settings, **changes), drafting=True, seats=2, keep_alive=keep_alive)

    def model(self, file: int, keep_alive: float = LONG_AGO, **changes: Any) -> SharedDraftModel:
        found = self.open(file, keep_alive, **changes).model
        assert found is not None
        return found.current


@pytest.fixture
async def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Folder]:
    from tests.edge_client.draft.tiny_gguf import write_tiny_gguf

    monkeypatch.setattr("common.llama.load_trial._try", lambda settings, weights, patience: None)
    first = write_tiny_gguf(tmp_path / "first.gguf")
    second = tmp_path / "second.gguf"
    shutil.copyfile(first, second)
    paths = EdgePaths(*(tmp_path / name for name in ("config", "state", "cache", "run")))
    async with AsyncExitStack() as stack:
        found = Folder(DraftModels(paths, stack, lambda: int(found.free)), (first, second))
        yield found


async def test_pairs_with_one_file_and_the_same_settings_share_a_model(folder: Folder) -> None:
    one, two, other = folder.open(0), folder.open(0), folder.open(0, n_ctx=128)
    assert one is two
    assert other.model is not one.model
    tokens_only = folder.models.open(
        LlamaSettings(str(folder.files[0])), drafting=False, seats=2, keep_alive=0.0
    )
    assert tokens_only.model is None
    assert tokens_only.vocabulary.fingerprint == one.vocabulary.fingerprint


@pytest.mark.parametrize(
    ("models", "changes", "stays"),
    [(0, {}, False), (1, {}, True), (1e9, {"gpu_layers": -1}, False)],
    ids=["too little memory", "enough", "an accelerator's, which is unknown"],
)
async def test_an_idle_model_goes_when_another_needs_its_memory(
    folder: Folder, models: float, changes: dict[str, Any], stays: bool
) -> None:
    first, second = folder.model(0), folder.model(1, **changes)
    folder.free = models * MEMORY * second.size_bytes
    await first.load()
    await second.load()
    assert (first.state is ModelState.LOADED, second.state) == (stays, ModelState.LOADED)
    await first.load()
    assert first.state is ModelState.LOADED
    assert (second.state is ModelState.LOADED) == (models > 0)


async def test_a_model_in_use_and_one_that_is_kept_for_ever_stay(folder: Folder) -> None:
    first, second, third = folder.model(0), folder.model(1, NEVER), folder.model(1, n_ctx=128)
    seat = await first.acquire()
    await second.load()
    await third.load()
    assert {first.state, second.state, third.state} == {ModelState.LOADED}
    seat.release()
    await third.unload()
    await third.load()
    assert (first.state, second.state) == (ModelState.UNLOADED, ModelState.LOADED)


async def test_the_model_that_would_be_unloaded_first_goes_first(folder: Folder) -> None:
    soon, late, new = folder.model(0, 100.0), folder.model(1, 200.0), folder.model(1, n_ctx=128)
    folder.free = 1e12
    await late.load()
    await soon.load()
    # Memory for one more is free as soon as the first has gone.
    asked = iter([0.0, 1e12])
    folder.models._available = lambda: int(next(asked))
    await new.load()
    assert (soon.state, late.state) == (ModelState.UNLOADED, ModelState.LOADED)


async def test_any_name_of_a_file_can_be_asked_for(folder: Folder) -> None:
    """Names of files may hold bytes that are no text, and JSON can hold no half of a character."""
    file = folder.files[0].rename(folder.files[0].with_name(os.fsdecode(b"caf\xe9\n.gguf")))
    config = load_config({}, {}, []).config
    async with AsyncExitStack() as stack:
        pair = await open_pair("", config, DraftFiles(str(file)), folder.models, Admission(1, 1), stack)
        (name,) = (name for name, writer in pair.service.models().items() if writer is Writer.DRAFT)
        assert name.isprintable()
