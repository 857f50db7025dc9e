"""A draft model is loaded once for all who wait, and put away when nobody has used it for a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from common.errors import CapacityError, UnavailableError, UserError
from common.sampling import SamplingParams
from edge_client.alone import DeviceGeneration
from edge_client.draft_model import DraftModel, KeepAlive, ModelState
from edge_client.draft_pool import Seat
from edge_client.llama.settings import LlamaSettings

pytestmark = pytest.mark.llama

LONG_WAIT = 60.0  # seconds; only a test that fails waits so long
NEVER = -1.0
AT_ONCE = 0.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.edge_client.llama.tiny_gguf import write_tiny_gguf

    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


def settings(path: Path, n_seq_max: int = 16) -> LlamaSettings:
    return LlamaSettings(str(path), n_ctx=256, n_seq_max=n_seq_max, n_batch=64, max_rows=8, threads=1)


class Loads:
    """Counts how often weights are loaded, in which threads, and lets them wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from edge_client.llama.runtime import LlamaRuntime

        self.threads: list[int] = []
        self.open = threading.Event()
        self.open.set()
        load = LlamaRuntime.__init__

        def wait(runtime: LlamaRuntime, wanted: LlamaSettings) -> None:
            self.threads.append(threading.get_ident())
            assert self.open.wait(LONG_WAIT)
            load(runtime, wanted)

        monkeypatch.setattr(LlamaRuntime, "__init__", wait)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    return Loads(monkeypatch)


Made = Callable[..., DraftModel]


@pytest.fixture
async def make(path: Path) -> AsyncIterator[Made]:
    made: list[DraftModel] = []

    def one(seats: int = 2, keep_alive: float = NEVER, **changes: int) -> DraftModel:
        made.append(DraftModel(settings(path, **changes), seats, keep_alive, clock=lambda: 1234.5))
        return made[-1]

    yield one
    for model in made:
        await model.close()


async def text_at(seat: Seat) -> list[int]:
    sampling = SamplingParams(max_tokens=5, ignore_eos=True)
    return [token async for token in DeviceGeneration(seat, [1, 2, 3], sampling, ())]


async def until(model: DraftModel, state: ModelState) -> None:
    """Let the loop run until the model is in that state."""
    async with asyncio.timeout(LONG_WAIT):
        while model.state is not state:  # noqa: ASYNC110  the model has no event for it
            await asyncio.sleep(0)


def put_away_at(keep: KeepAlive) -> float | None:
    return keep.put_away_at


def test_a_model_is_kept_for_so_many_seconds_after_its_last_use() -> None:
    keep = KeepAlive(30.0)
    assert put_away_at(keep) is None
    keep.on_idle(100.0)
    assert put_away_at(keep) == 130.0
    keep.on_used()
    assert put_away_at(keep) is None
    keep.on_idle(150.0)
    assert put_away_at(keep) == 180.0


@pytest.mark.parametrize(("seconds", "at"), [(NEVER, None), (AT_ONCE, 100.0)])
def test_a_model_is_kept_for_ever_or_not_at_all(seconds: float, at: float | None) -> None:
    keep = KeepAlive(seconds)
    keep.on_idle(100.0)
    assert keep.put_away_at == at


def test_an_unwanted_model_goes_at_once_unless_it_is_used_again() -> None:
    keep = KeepAlive(NEVER)
    keep.on_unwanted()
    keep.on_idle(100.0)
    assert put_away_at(keep) == 100.0
    keep.on_used()
    keep.on_idle(200.0)
    assert put_away_at(keep) is None


async def test_the_tokens_are_there_without_the_weights(make: Made, path: Path, loads: Loads) -> None:
    model = make()
    assert model.state is ModelState.UNLOADED
    assert model.loaded_at is None
    assert model.size_bytes == len(path.read_bytes())  # noqa: ASYNC240  a few kilobytes
    assert b"".join(map(model.tokens.piece, model.tokens.tokenize("the and", False))) == b"the and"
    assert len(model.tokens.token_table()) == 300
    assert loads.threads == []


async def test_all_who_wait_wait_for_one_load_and_the_loop_stays_live(make: Made, loads: Loads) -> None:
    model = make()
    loads.open.clear()
    waiting = [asyncio.create_task(model.acquire()) for _ in range(2)]
    await until(model, ModelState.LOADING)
    given_up = asyncio.create_task(model.acquire())
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    loads.open.set()
    seats = await asyncio.gather(*waiting)
    assert len(loads.threads) == 1
    assert loads.threads[0] != threading.get_ident()
    assert (model.state, model.loaded_at, model.num_used) == (ModelState.LOADED, 1234.5, 2)
    texts = await asyncio.gather(*map(text_at, seats))
    assert texts[0] == texts[1]
    with pytest.raises(CapacityError, match="all 2 seats"):
        await model.acquire()
    assert await model.ping(LONG_WAIT)
    assert model.beats > 0


async def test_a_failure_is_told_to_all_and_the_next_tries_again(
    make: Made, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edge_client.llama.runtime import LlamaRuntime

    def refuse(_runtime: LlamaRuntime) -> None:
        raise UserError("no memory for it; lower n_ctx")

    model = make()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(LlamaRuntime, "_new_context", refuse)
        loads.open.clear()
        waiting = [asyncio.create_task(model.acquire()) for _ in range(2)]
        await until(model, ModelState.LOADING)
        loads.open.set()
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, UserError)
        assert (model.state, model.failure) == (ModelState.FAILED, "no memory for it; lower n_ctx")
    await text_at(await model.acquire())
    assert (model.state, model.failure) == (ModelState.LOADED, "")


async def test_too_few_sequences_for_the_seats_are_told_as_such(make: Made) -> None:
    model = make(seats=9)
    with pytest.raises(UserError, match="n_seq_max to be 18 at least"):
        await model.load()
    assert model.state is ModelState.FAILED


async def test_a_file_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no draft model at"):
        DraftModel(settings(tmp_path / "nothing.gguf"))


async def test_at_once_means_after_the_last_seat(make: Made, loads: Loads) -> None:
    model = make(keep_alive=AT_ONCE)
    first, second = await model.acquire(), await model.acquire()
    first.release()
    assert model.state is ModelState.LOADED
    await text_at(second)
    second.release()
    await until(model, ModelState.UNLOADED)
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
    await until(model, ModelState.UNLOADED)
    assert model.seconds_left is None


async def test_unloading_waits_for_the_seats(make: Made) -> None:
    model = make()
    seat = await model.acquire()
    assert not await model.unload()
    await text_at(seat)
    seat.release()
    await until(model, ModelState.UNLOADED)
    await model.load()
    assert await model.unload()
    assert await model.unload(), "again is allowed"
    assert model.state is ModelState.UNLOADED


async def test_a_forced_unloading_ends_the_drafting(make: Made) -> None:
    model = make()
    seat = await model.acquire()
    await text_at(seat)
    assert await model.unload(force=True)
    with pytest.raises(UnavailableError, match="was put away"):
        await text_at(seat)
    seat.release()
    await text_at(await model.acquire())


def copied(path: Path, folder: Path, change: Callable[[bytes], bytes] = bytes) -> Path:
    """A copy, whole or with something done to it."""
    file = folder / "draft.gguf"
    file.write_bytes(change(path.read_bytes()))
    return file


async def test_a_file_that_llama_cpp_dies_of_is_refused_and_this_process_lives(
    path: Path, tmp_path: Path
) -> None:
    from edge_client.llama.trial import Trials

    file, trials = copied(path, tmp_path), Trials(tmp_path / "tried.json")
    model = DraftModel(settings(file), trials=trials)
    copied(path, tmp_path, lambda data: data.replace(b"<filler1>", b"<filler2>"))  # while the daemon runs
    try:
        with pytest.raises(UserError, match="was ended by SIGABRT"):
            await model.acquire()
        assert model.state is ModelState.FAILED
        assert "fetch it or convert the model again" in model.failure
        copied(path, tmp_path)
        (await model.acquire()).release()  # the next text finds a good file
    finally:
        await model.close()
    copied(path, tmp_path, lambda data: data[:-1])
    with pytest.raises(UserError, match="behind the end of the file"):
        DraftModel(settings(file), trials=trials)
