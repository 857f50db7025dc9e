"""A draft model is loaded once for all who wait, and put away when nobody has used it for a while."""

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import CapacityError, UnavailableError, UserError
from common.llama.model import LlamaSettings, SharedWeights
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from edge_client.core.effects import NOTHING_READ
from edge_client.draft.draft_models import DraftModels, OpenedDraft
from edge_client.draft.measure_pace import PaceTables
from edge_client.draft.seats import PoolSeat
from edge_client.draft.shared_model import MEMORY, ModelState, OtherModel, SharedDraftModel
from edge_client.pair import DraftFiles, open_pair
from edge_client.process.paths import EdgePaths
from edge_client.settings import load_config
from edge_client.texts.alone import AloneRun
from edge_client.texts.queue import Admission
from edge_client.texts.text_request import Writer
from tests import wording
from tests.edge_client.draft.tiny_gguf import TinyShape, write_tiny_gguf
from tests.support.waiting import until

pytestmark = pytest.mark.llama

LONG_WAIT = 60.0  # seconds; only a test that fails waits so long
NEVER = -1.0
AT_ONCE = 0.0


@pytest.fixture
def path(model: Path) -> Path:
    return model


def settings(path: Path, n_seq_max: int = 16) -> LlamaSettings:
    return LlamaSettings(str(path), n_ctx=256, n_seq_max=n_seq_max, n_batch=64, max_rows=8, threads=1)


class Loads:
    """Counts how often weights are loaded, in which threads, and lets them wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        self.open = threading.Event()
        self.open.set()
        load = LlamaRuntime.__init__

        def wait(runtime: LlamaRuntime, wanted: LlamaSettings, *, shared: SharedWeights | None) -> None:
            self.threads.append(threading.get_ident())
            assert self.open.wait(LONG_WAIT)
            load(runtime, wanted, shared=shared)

        monkeypatch.setattr(LlamaRuntime, "__init__", wait)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    return Loads(monkeypatch)


Made = Callable[..., SharedDraftModel]


@pytest.fixture
async def make(path: Path) -> AsyncIterator[Made]:
    made: list[SharedDraftModel] = []

    def one(seats: int = 2, keep_alive: float = NEVER, **changes: int) -> SharedDraftModel:
        made.append(SharedDraftModel(settings(path, **changes), seats, keep_alive))
        return made[-1]

    yield one
    for model in made:
        await model.close()


async def text_at(seat: PoolSeat) -> list[int]:
    sampling = SamplingParams(max_tokens=5, ignore_eos=True)
    run = AloneRun(seat, [1, 2, 3], sampling, ())
    return [token async for shown in run.shown() for token in shown.tokens]


async def test_the_tokens_are_there_without_the_weights(make: Made, path: Path, loads: Loads) -> None:
    model = make()
    assert model.state is ModelState.UNLOADED
    assert model.size_bytes == len(path.read_bytes())  # noqa: ASYNC240  a few kilobytes
    assert b"".join(map(model.tokens.piece, model.tokens.tokenize("the and", False))) == b"the and"
    assert len(model.tokens.token_table()) == 300
    assert loads.threads == []


async def test_all_who_wait_wait_for_one_load_and_the_loop_stays_live(make: Made, loads: Loads) -> None:
    model = make()
    loads.open.clear()
    waiting = [asyncio.create_task(model.acquire()) for _ in range(2)]
    await until(lambda: model.state is ModelState.LOADING)
    given_up = asyncio.create_task(model.acquire())
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    loads.open.set()
    seats = await asyncio.gather(*waiting)
    assert len(loads.threads) == 1
    assert loads.threads[0] != threading.get_ident()
    assert (model.state, model.num_used) == (ModelState.LOADED, 2)
    texts = await asyncio.gather(*map(text_at, seats))
    assert texts[0] == texts[1]
    with wording.raises(CapacityError):
        await model.acquire()
    assert await model.ping(LONG_WAIT)


async def test_a_failure_is_told_to_all_and_the_next_tries_again(
    make: Made, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_runtime: LlamaRuntime) -> None:
        raise UserError("no memory for it; lower n_ctx")

    model = make()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(LlamaRuntime, "_context_params", refuse)
        loads.open.clear()
        waiting = [asyncio.create_task(model.acquire()) for _ in range(2)]
        await until(lambda: model.state is ModelState.LOADING)
        loads.open.set()
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, UserError)
        assert (model.state, model.failure) == (ModelState.FAILED, "no memory for it; lower n_ctx")
    await text_at(await model.acquire())
    assert (model.state, model.failure) == (ModelState.LOADED, "")


async def test_a_file_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    with wording.raises(UserError):
        SharedDraftModel(settings(tmp_path / "nothing.gguf"))


async def test_at_once_means_after_the_last_seat(make: Made, loads: Loads) -> None:
    model = make(keep_alive=AT_ONCE)
    first, second = await model.acquire(), await model.acquire()
    first.release()
    assert model.state is ModelState.LOADED
    await text_at(second)
    second.release()
    await until(lambda: model.state is ModelState.UNLOADED)
    await text_at(await model.acquire())
    assert len(loads.threads) == 2


async def test_a_model_that_is_kept_stays_and_says_how_long(make: Made) -> None:
    model = make(keep_alive=1000.0)
    seat = await model.acquire()
    assert model.seconds_left is None
    seat.release()
    assert model.seconds_left == pytest.approx(1000.0, abs=LONG_WAIT)
    model.keep_alive = NEVER
    assert model.seconds_left is None
    assert model.state is ModelState.LOADED
    model.keep_alive = AT_ONCE
    await until(lambda: model.state is ModelState.UNLOADED)
    assert model.seconds_left is None


async def test_closing_ends_the_drafting_of_a_taken_seat(make: Made) -> None:
    model = make()
    seat = await model.acquire()
    await text_at(seat)
    await model.close()
    with wording.raises(UnavailableError):
        await text_at(seat)
    seat.release()
    assert model.state is ModelState.UNLOADED


@pytest.mark.parametrize("group", ["cascade", "beside"])
async def test_the_same_model_in_front_or_beside_is_loaded_too_and_changes_no_draft(
    path: Path, group: str
) -> None:
    others = (None, OtherModel(settings(path), group))
    models = [SharedDraftModel(settings(path), 1, NEVER, other=other) for other in others]
    assert models[1].size_bytes == 2 * models[0].size_bytes
    written = []
    for model in models:
        seat = await model.acquire()
        run = AloneRun(seat, [5, 9, 2, 41], SamplingParams(max_tokens=12, ignore_eos=True), ())
        written.append([token async for shown in run.shown() for token in shown.tokens])
        seat.release()
        await model.close()
    assert written[0] == written[1]
    assert len(written[0]) == 12


async def test_a_newer_draft_keeps_the_second_beside_it(path: Path, tmp_path: Path) -> None:
    newer = Path(shutil.copyfile(path, tmp_path / "newer.gguf"))
    free = [10**9]
    other = OtherModel(settings(path), "beside")
    model = SharedDraftModel(settings(path), 1, NEVER, other=other, free=lambda layers: free[0])
    sibling = model.sibling(path=str(newer))
    await sibling.load()
    assert [runtime.path for runtime in sibling._runtimes] == [str(newer), str(path)]
    await sibling.close()
    free[0] = 3 * model.size_bytes // 2  # enough for one of the files
    with pytest.raises(CapacityError):
        model.sibling(path=str(newer))
    await model.close()


async def test_another_model_with_other_tokens_is_refused(path: Path, tmp_path: Path) -> None:
    other = write_tiny_gguf(tmp_path / "other.gguf", TinyShape(user_defined=("<extra>",)))
    model = SharedDraftModel(settings(path), 1, NEVER, other=OtherModel(settings(other), "cascade"))
    with pytest.raises(UserError):
        await model.load()
    assert model.state is ModelState.FAILED
    await model.close()


async def test_the_draft_is_measured_when_it_is_first_loaded(
    make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later loading keeps what texts have taught since."""
    tables, measured = PaceTables({1: 0.010, 2: 0.012}, {2: 0.02, 3: 0.03}), list[LlamaRuntime]()

    def measure(runtime: LlamaRuntime) -> PaceTables:
        measured.append(runtime)
        return tables

    monkeypatch.setattr("edge_client.draft.shared_model.measure_pace", measure)
    model = make(keep_alive=1000.0)
    await model.load()
    assert model.pace.rows.predict(1) == pytest.approx(0.010)
    for _ in range(100):
        model.pace.sample(1, 0.030, NOTHING_READ, 0.0)
    await model.unload()
    await model.load()
    assert model.pace.rows.predict(1) > 0.025
    assert len(measured) == 1


# The draft models of several pairs share what they can, and make room for each other.


LONG_AGO = 300.0


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
