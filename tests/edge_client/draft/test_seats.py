"""Many generations at one draft model: each is answered as if alone, in its own order, and fails alone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from common.errors import CapacityError, ForerunError, LocalError, UnavailableError
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Expand, Expansion, MoveTip, ReadingTime, Reroot, StartDrafter
from edge_client.draft.seats import DraftPool, PoolSeat, Turns
from edge_client.texts.alone import AloneRun
from tests import wording
from tests.edge_client.draft.tree_world import check_group, exact_settings

pytestmark = pytest.mark.llama

LONG_WAIT = 60.0  # seconds; only a test that fails waits so long


@pytest.fixture
def runtime(model: Path) -> Iterator[LlamaRuntime]:
    with LlamaRuntime(exact_settings(model, n_ctx=1024, n_seq_max=64)) as loaded:
        yield loaded


class Gate:
    """Lets llama_decode wait: `runtime.decode` ends when the gate is open. Counts the rows of each."""

    def __init__(self, runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.num_rows: list[int] = []
        self._decode = runtime.decode
        self._runtime = runtime
        monkeypatch.setattr(runtime, "decode", self._wait)

    def _wait(self) -> int:
        self.reached.set()
        assert self.open.wait(LONG_WAIT)
        self.num_rows.append(self._runtime.batch.struct.n_tokens)
        return self._decode()


def sampling(place: int) -> SamplingParams:
    return SamplingParams(temperature=0.5 * (place % 2), seed=place, max_tokens=20, ignore_eos=True)


def prompt_of(place: int) -> list[int]:
    return [(7 * place + 3 * each) % 300 for each in range(10 + 9 * place)]


async def text_at(seat: PoolSeat, place: int) -> list[int]:
    run = AloneRun(seat, prompt_of(place), sampling(place), ())
    return [token async for shown in run.shown() for token in shown.tokens]


async def expansions(seat: PoolSeat, *rows: DraftRow) -> Sequence[Expansion]:
    answer: asyncio.Future[Sequence[Expansion] | ForerunError] = asyncio.get_running_loop().create_future()
    seat.submit(Expand(rows), lambda outcome, _: answer.set_result(outcome))
    outcome = await asyncio.wait_for(answer, LONG_WAIT)
    if isinstance(outcome, ForerunError):
        raise outcome
    return outcome


def start(seat: PoolSeat, *tokens: int) -> DraftRow:
    """A greedy text; its tip."""
    seat.submit(StartDrafter(tokens, 0, SamplingParams()), lambda *_: None)
    return DraftRow(0, None, tokens[-1], len(tokens) - 1)


async def test_eight_texts_at_once_are_those_that_each_writes_alone(runtime: LlamaRuntime) -> None:
    alone = []
    async with DraftPool(runtime, 1) as pool:
        for place in range(8):
            seat = pool.seat()
            alone.append(await text_at(seat, place))
            seat.release()
    runtime.clear()
    async with DraftPool(runtime, 8) as pool:
        seats = [pool.seat(prompt_of(place)) for place in range(8)]
        assert pool.num_free == 0
        assert await asyncio.gather(*(text_at(seat, place) for place, seat in enumerate(seats))) == alone
        for seat in seats:
            seat.release()
        assert pool.num_free == 8
        assert await pool.ping(LONG_WAIT)
        check_group(pool._group)


async def test_who_is_answered_together_asks_together(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else batches of one and of all but one would follow each other for ever."""
    gate = Gate(runtime, monkeypatch)
    async with DraftPool(runtime, 4) as pool:
        seats = [pool.seat() for _ in range(4)]
        gate.open.clear()
        first = asyncio.create_task(expansions(seats[0], start(seats[0], 5)))
        await asyncio.to_thread(gate.reached.wait, LONG_WAIT)
        others = [asyncio.create_task(write(seat, 6 + place)) for place, seat in enumerate(seats[1:])]
        await asyncio.sleep(0)
        gate.open.set()
        await asyncio.gather(first, *others)
        assert gate.num_rows == [1, 3, 3, 3, 3]


async def write(seat: PoolSeat, token: int) -> None:
    """Four tokens of the draft's, each asked for in the callback of the one before."""
    row = start(seat, token)
    done = asyncio.Event()

    def on_drafted(outcome: Sequence[Expansion] | ForerunError, _: ReadingTime) -> None:
        nonlocal row
        assert not isinstance(outcome, ForerunError)
        if row.position == 3:
            done.set()
            return
        child = outcome[0].tokens[0]
        seat.submit(MoveTip(Reroot(((row.id + 1, child),), ())), lambda *_: None)
        row = DraftRow(row.id + 1, None, child, row.position + 1)
        seat.submit(Expand((row,)), on_drafted)

    seat.submit(Expand((row,)), on_drafted)
    await asyncio.wait_for(done.wait(), LONG_WAIT)


async def test_a_moved_tip_waits_for_the_draft_step_before_it(runtime: LlamaRuntime) -> None:
    async with DraftPool(runtime, 2) as pool:
        seat = pool.seat()
        tip = start(seat, 1, 2, 3)
        step = asyncio.create_task(expansions(seat, tip))
        await asyncio.sleep(0)
        seat.submit(MoveTip(Reroot(((1, 9),), ())), lambda *_: None)
        (before,) = await step
        (after,) = await expansions(seat, DraftRow(1, None, 9, 3))
        assert (before.id, after.id) == (0, 1)


async def test_there_are_so_many_seats_and_no_more(runtime: LlamaRuntime) -> None:
    async with DraftPool(runtime, 2) as pool:
        seats = [pool.seat(), pool.seat()]
        with wording.raises(CapacityError):
            pool.seat()
        seats[0].release()
        seats[0].release()
        assert pool.num_free == 1
        pool.seat()
        with wording.raises(LocalError):
            start(seats[0], 1)


async def test_a_text_is_known_and_not_read_again_after_others_took_all_seats(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with DraftPool(runtime, 2) as pool:
        for first in range(3):
            seat = pool.seat()
            await expansions(seat, start(seat, *[first] * 100))
            seat.release()
        assert await pool.ping(LONG_WAIT)
        gate = Gate(runtime, monkeypatch)
        again = pool.seat([0] * 102)
        assert again.num_kept([0] * 102) == 100
        await expansions(again, start(again, *[0] * 102))
        assert sum(gate.num_rows) == 2


async def test_a_released_seat_hears_no_more_and_the_next_starts_clean(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(runtime, monkeypatch)
    async with DraftPool(runtime, 1) as pool:
        heard: list[object] = []
        seat = pool.seat()
        gate.open.clear()
        seat.submit(Expand((start(seat, 1, 2),)), lambda outcome, _: heard.append(outcome))
        await asyncio.to_thread(gate.reached.wait, LONG_WAIT)
        seat.release()
        other = pool.seat()
        step = asyncio.create_task(expansions(other, start(other, 3, 4)))
        gate.open.set()
        assert [each.id for each in await step] == [0]
        assert heard == []


async def test_what_breaks_in_a_turn_is_told_to_those_in_it(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> int:
        raise ZeroDivisionError("a defect")

    async with DraftPool(runtime, 2) as pool:
        seat = pool.seat()
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(runtime, "decode", broken)
            with wording.raises(LocalError):
                await expansions(seat, start(seat, 1, 2))
        await expansions(seat, start(seat, 1, 2))
        assert await pool.ping(LONG_WAIT)


async def test_a_hung_decode_is_told_from_an_idle_thread(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(runtime, monkeypatch)
    async with DraftPool(runtime, 1) as pool:
        assert await pool.ping(LONG_WAIT)
        seat = pool.seat()
        gate.open.clear()
        step = asyncio.create_task(expansions(seat, start(seat, 1)))
        await asyncio.to_thread(gate.reached.wait, LONG_WAIT)
        assert not await pool.ping(0.01)
        assert not await pool.close(0.01)
        with wording.raises(UnavailableError):
            await step
        gate.open.set()
        assert await pool.close(LONG_WAIT)


async def test_closing_leaves_the_loop_live_and_fails_what_is_under_way(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(runtime, monkeypatch)
    pool = DraftPool(runtime, 2)
    pool.start()
    first, second = pool.seat(), pool.seat()
    gate.open.clear()
    under_way = asyncio.create_task(expansions(first, start(first, 1)))
    await asyncio.to_thread(gate.reached.wait, LONG_WAIT)
    closing = asyncio.create_task(pool.close(LONG_WAIT))
    await asyncio.sleep(0)
    too_late = asyncio.create_task(expansions(second, start(second, 1)))
    await asyncio.sleep(0)
    assert not closing.done()
    gate.open.set()
    assert await closing
    assert len(await under_way) == 1
    with wording.raises(UnavailableError):
        await too_late


async def test_the_groups_of_pools_that_take_turns_know_each_other_until_one_is_closed(
    runtime: LlamaRuntime,
) -> None:
    turns = Turns()
    async with DraftPool(runtime, 2, turns=turns) as first:
        async with DraftPool(runtime, 2, turns=turns) as second:
            assert first._group.beside == [first._group, second._group] == second._group.beside
        assert first._group.beside == [first._group]


def test_a_pool_that_waits_for_its_turn_goes_before_one_that_asks_later() -> None:
    """A `threading.Lock` lets the thread that releases it take it again, which made gaps of several turns."""
    turns, order = Turns(), list[str]()

    def wait() -> None:
        with turns:
            order.append("waited")

    with turns:
        other = threading.Thread(target=wait)
        other.start()
        until = time.monotonic() + LONG_WAIT
        while turns._num_asked < 2:
            assert time.monotonic() < until
            time.sleep(0.001)
    with turns:
        order.append("asked later")
    other.join(LONG_WAIT)
    assert order == ["waited", "asked later"]
