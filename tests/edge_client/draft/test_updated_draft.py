"""A newer draft is tried, serves a part of the texts, and stays or goes; no text waits for it."""

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import CapacityError, UserError
from common.llama import load_trial
from common.llama.files import hash_of
from common.llama.load_trial import KeptTable, ModelTrials
from common.llama.model import LlamaSettings, SharedWeights
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from edge_client.draft import updated_draft
from edge_client.draft.shared_model import ModelState, SharedDraftModel
from edge_client.draft.updated_draft import UpdatedDraft, newest
from edge_client.texts.alone import AloneRun
from tests import wording
from tests.edge_client.draft.tiny_gguf import TinyShape, write_adapter, write_tiny_gguf
from tests.support.waiting import until

pytestmark = pytest.mark.llama

TRY = load_trial._try
LONG_WAIT = 60.0  # seconds; only a test that fails waits so long


def settings(path: Path, adapter: str = "") -> LlamaSettings:
    sizes: dict[str, Any] = {"n_ctx": 256, "n_seq_max": 16, "n_batch": 64, "max_rows": 8, "threads": 1}
    return LlamaSettings(str(path), adapter=adapter, **sizes)


def logits_of(path: Path, adapter: str = "") -> np.ndarray[Any, np.dtype[np.float32]]:
    with LlamaRuntime(settings(path, adapter)) as runtime:
        return logits_by(runtime)


def logits_by(runtime: LlamaRuntime) -> np.ndarray[Any, np.dtype[np.float32]]:
    runtime.clear()
    runtime.batch.fill([1, 2, 3], [0, 1, 2], [0, 0, 0], [0, 0, 1])
    assert runtime.decode() == 0
    return runtime.logits(1).copy()


@dataclass
class Device:
    """A configured draft, a folder for newer ones, and its daemon's state."""

    model: Path
    folder: Path
    state: Path
    stack: AsyncExitStack
    chance: float = 0.0  # of each text: below a tenth it has the newer draft

    def start(self, **more: Any) -> UpdatedDraft:
        """Start as the daemon does, again after a restart."""
        own = SharedDraftModel(settings(self.model), 2, -1.0, ModelTrials(self.state / "tried.json"), **more)
        verdicts = KeptTable(self.state / "updates.json")
        draft = UpdatedDraft(own, str(self.folder), verdicts, lambda: self.chance)
        draft.start()
        self.stack.push_async_callback(draft.close)
        return draft

    def offer(self, scale: float = 0.5, name: str = "newer.gguf", *, age: int = 0) -> str:
        """Publish an adapter; return its path."""
        path = write_adapter(self.folder / f".{name}", self.model, scale)
        os.utime(path, (1e9 - age, 1e9 - age))
        path.replace(self.folder / name)
        return str(self.folder / name)


@pytest.fixture
async def device(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Device]:
    monkeypatch.setattr(updated_draft, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(load_trial, "_try", lambda settings, weights, patience: None)
    (tmp_path / "newer").mkdir()
    async with AsyncExitStack() as stack:
        yield Device(model, tmp_path / "newer", tmp_path / "state", stack)


async def trial_of(draft: UpdatedDraft) -> SharedDraftModel:
    """Wait for a draft on trial, and return its model, which a text whose chance is 0 has."""
    await until(lambda: "trial" in draft.status())
    return draft.choose()


async def text_by(model: SharedDraftModel) -> list[int]:
    seat = await model.acquire([1, 2, 3])
    try:
        run = AloneRun(seat, [1, 2, 3], SamplingParams(max_tokens=12, ignore_eos=True), ())
        return [token async for shown in run.shown() for token in shown.tokens]
    finally:
        seat.release()


def judge(draft: UpdatedDraft, newer: SharedDraftModel, better: float) -> None:
    """End texts of both drafts until there is a verdict."""
    before = draft.current
    for _ in range(200):
        draft.judge(before, 70, 100)
        draft.judge(newer, 70 + round(100 * better), 100)


def test_an_adapter_changes_the_weights_that_it_was_made_for(model: Path, tmp_path: Path) -> None:
    adapter, empty = (write_adapter(tmp_path / f"{scale}.gguf", model, scale) for scale in (0.5, 0.0))
    before = logits_of(model)
    np.testing.assert_array_equal(logits_of(model, str(empty)), before)
    assert np.abs(logits_of(model, str(adapter)) - before).max() > 0.1
    other = write_tiny_gguf(tmp_path / "other.gguf", TinyShape(feed_forward=128))
    with wording.raises(UserError):
        logits_of(other, str(adapter))


def test_models_that_share_weights_keep_their_own_adapters_and_outlive_each_other(
    model: Path, tmp_path: Path
) -> None:
    path, shared = str(write_adapter(tmp_path / "adapter.gguf", model, 0.5)), SharedWeights()
    expected = {adapter: logits_of(model, adapter) for adapter in ("", path)}
    open_now = [LlamaRuntime(settings(model, adapter), shared=shared) for adapter in ("", path, "", path)]
    assert len({id(runtime._model) for runtime in open_now}) == 1
    while open_now:
        for runtime in open_now:
            np.testing.assert_array_equal(logits_by(runtime), expected[runtime.settings.adapter])
        open_now.pop(0).close()
    with LlamaRuntime(settings(model), shared=shared) as again:
        np.testing.assert_array_equal(logits_by(again), expected[""])


async def test_a_better_draft_serves_a_tenth_of_the_texts_and_then_all(device: Device) -> None:
    draft = device.start()
    alone = await text_by(draft.choose())
    seat = await draft.choose().acquire([1, 2, 3])  # of a text under way
    path = device.offer()
    newer = await trial_of(draft)
    assert newer.file == path
    assert newer.state is ModelState.LOADED
    assert draft.choose(alone=True) is draft.current, "a text of the draft's own keeps its law"
    device.chance = 0.1
    assert draft.choose() is draft.current is not newer
    changed = await text_by(newer)
    assert changed != alone == await text_by(draft.current)
    before = draft.current
    judge(draft, newer, 0.05)
    assert draft.choose() is draft.current is newer
    assert draft.status()["last_trial"]
    assert before.state is ModelState.LOADED
    seat.release()
    await until(lambda: before.state is ModelState.UNLOADED)
    assert await text_by(draft.choose()) == changed
    await until((device.state / "updates.json").exists)
    assert device.offer(0.25) == newer.file, "the next one has its name"
    device.chance = 0.0
    assert (await trial_of(draft)) is not newer


async def test_a_worse_draft_is_rolled_back_and_is_not_tried_again(device: Device) -> None:
    draft, path = device.start(), device.offer()
    newer = await trial_of(draft)
    judge(draft, newer, -0.05)
    assert draft.choose() is draft.current is not newer
    await until(lambda: newer.state is ModelState.UNLOADED)
    await until((device.state / "updates.json").exists)
    again = device.start()
    await until(lambda: again._seen and again._seen[0] == path)
    assert again.current is again.choose()
    assert len(again.models) == 1
    device.offer(0.25)  # other content under the same name
    assert (await trial_of(again)).file == path


async def test_a_draft_that_was_kept_serves_after_a_restart_until_it_is_withdrawn(device: Device) -> None:
    draft, path = device.start(), device.offer()
    judge(draft, await trial_of(draft), 0.05)
    await until((device.state / "updates.json").exists)
    again = device.start()
    await until(lambda: again.current.file == path)
    assert again.status() == {}, "without another trial"
    device.offer(0.25, "other.gguf")
    judge(again, await trial_of(again), -0.05)
    os.unlink(path)
    await until(lambda: again.current.file == str(device.model))


async def test_a_trial_ends_when_a_newer_draft_comes(device: Device) -> None:
    draft = device.start()
    device.offer(age=9)
    first = await trial_of(draft)
    path = device.offer(0.25, "second.gguf")
    await until(lambda: draft.status().get("trial", {}).get("file") == path)
    await until(lambda: first.state is ModelState.UNLOADED)
    judge(draft, first, -0.5)  # texts that began with it end later and tell nothing
    assert draft.status()["trial"]["texts"] == 0


def foreign(path: Path, model: Path) -> None:
    write_tiny_gguf(path, TinyShape(num_vocab=320))


def overflowing(path: Path, model: Path) -> None:
    write_adapter(path, model, float("nan"))


def of_another_model(path: Path, model: Path) -> None:
    base = write_tiny_gguf(path.with_suffix(".base"), TinyShape(feed_forward=128))
    write_adapter(path, base, 0.5)


def cut_off(path: Path, model: Path) -> None:
    path.write_bytes(model.read_bytes()[:5000])


def no_gguf(path: Path, model: Path) -> None:
    path.write_text("words")


@pytest.mark.parametrize("make", [foreign, overflowing, of_another_model, cut_off, no_gguf])
async def test_a_draft_that_cannot_serve_is_refused_with_a_reason(
    device: Device, make: Callable[[Path, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if make in (overflowing, of_another_model):  # only the trial loads the weights
        monkeypatch.setattr(load_trial, "_try", TRY)
    draft = device.start()
    make(device.folder / "newer.bad", device.model)
    (device.folder / "newer.bad").rename(device.folder / "newer.gguf")
    await until(lambda: draft.last)
    assert draft.choose() is draft.current
    assert draft.current.file == str(device.model)
    assert len(draft.models) == 1


async def test_a_second_model_without_memory_is_refused(device: Device) -> None:
    size = device.model.stat().st_size
    own = SharedDraftModel(settings(device.model), 2, free=lambda layers: size + size // 2)
    with wording.raises(CapacityError):
        own.sibling(path=str(device.model))
    adapter = device.offer()
    with wording.raises(CapacityError):  # the weights are not there yet
        own.sibling(adapter=adapter)
    await own.load()
    adapted = own.sibling(adapter=adapter)
    await adapted.load()
    assert own._runtimes[0]._model is adapted._runtimes[0]._model
    await adapted.close()
    await own.close()


async def test_a_whole_model_of_the_same_tokens_may_take_the_place(device: Device) -> None:
    draft = device.start()
    write_tiny_gguf(device.folder / "newer.part", TinyShape(num_layers=1), seed=8)
    (device.folder / "newer.part").rename(device.folder / "newer.gguf")
    newer = await trial_of(draft)
    assert len(await text_by(newer)) == 12
    draft.keep_alive = 5.0
    assert newer.keep_alive == draft.current.keep_alive == 5.0


async def test_every_draft_on_trial_stays_loaded_as_long_as_the_one_in_force(device: Device) -> None:
    draft = device.start()
    device.offer(age=9)
    judge(draft, await trial_of(draft), better=0.2)
    device.offer(0.25, "newest.gguf")
    newer = await trial_of(draft)
    assert newer.keep_alive == draft.keep_alive == -1.0


async def test_a_named_file_is_taken_with_its_hash_alone(device: Device) -> None:
    named, _ = device.offer(age=9), device.offer(0.25, "newest.gguf")
    sha256 = hash_of(Path(named))
    assert newest(str(device.folder), f"newer.gguf#{sha256}")[0] == named
    assert newest(str(device.folder), "")[0] == str(device.folder / "newest.gguf")
    assert newest(str(device.folder / "missing"), "") == ("", None)
    with wording.raises(UserError):
        newest(str(device.folder), "missing.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updated_draft, "find_model", lambda name: f"/cache/{name}")
        assert newest("hf://a/b/", "c.gguf#12") == ("/cache/hf://a/b/c.gguf", "c.gguf#12")
        assert newest("hf://a/b", "") == ("", None)
    draft = device.start()
    draft.wanted = f"newer.gguf#{'0' * 64}"
    await until(lambda: draft.last)
    assert draft.choose().file == str(device.model)
    draft.wanted = f"newer.gguf#{sha256}"
    assert (await trial_of(draft)).file == named


async def test_texts_too_short_or_of_other_models_tell_nothing(device: Device) -> None:
    draft = device.start()
    device.offer()
    newer = await trial_of(draft)
    for _ in range(200):
        draft.judge(newer, 0, 7)
        draft.judge(draft.current, 7, 7)
        draft.judge(object(), 50, 50)
    assert draft.status()["trial"]["texts"] == draft.status()["trial"]["texts_before"] == 0


async def test_nothing_is_looked_for_without_a_place(device: Device) -> None:
    own = SharedDraftModel(settings(device.model), 2)
    draft = UpdatedDraft(own)
    draft.start()
    assert draft.choose() is own
    assert draft.status() == {}
    await draft.close()


def test_a_copy_of_a_file_is_another_file(model: Path, tmp_path: Path) -> None:
    shutil.copyfile(model, tmp_path / "copy.gguf")
    marks = {str(newest(str(folder), "")[1]) for folder in (model.parent, tmp_path)}
    assert len(marks) == 2
