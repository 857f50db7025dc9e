"""The queue before the device's seats: bounded, fair between clients, nothing leaks."""

import asyncio

import pytest

from common.errors import CapacityError
from edge_client.texts.queue import Admission
from tests import wording


class Crowd:
    """Texts that hold their place until told to go."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.entered: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, client: str) -> None:
        self._gates[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._hold(name, client))
        await settle()

    async def go(self, name: str) -> None:
        self._gates[name].set()
        await self._tasks[name]
        await settle()

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._tasks[name]
        await settle()

    async def _hold(self, name: str, client: str) -> None:
        async with self.admission.place(client):
            self.entered.append(name)
            await self._gates[name].wait()


async def settle() -> None:
    """Let whatever can run, run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_clients_take_turns() -> None:
    admission = Admission(1, 10)
    crowd = Crowd(admission)
    for name, client in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c")):
        await crowd.come(name, client)
    for name in ("a1", "a2", "b1", "c1", "a3"):
        assert crowd.entered[-1] == name
        await crowd.go(name)
    assert (admission.num_active, admission.num_waiting) == (0, 0)


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_again() -> None:
    admission = Admission(1, 1)
    crowd = Crowd(admission)
    await crowd.come("first", "a")
    await crowd.come("second", "a")
    with wording.raises(CapacityError) as caught:
        admission.place("b")
    assert caught.value.retry_after is not None
    assert caught.value.retry_after >= 1
    assert admission.num_refused == 1
    admission.place("b", had_one=True).release()  # of a text that a restart takes up again
    await crowd.go("first")
    await crowd.go("second")
    first, second = admission.place("a"), admission.place("b")
    first.release()
    first.release()
    assert (admission.num_active, admission.num_waiting) == (1, 0), "the second has the seat now"
    second.release()
    assert (admission.num_active, admission.num_waiting) == (0, 0)


async def test_who_gives_up_leaves_the_queue() -> None:
    admission = Admission(1, 10)
    crowd = Crowd(admission)
    await crowd.come("first", "a")
    await crowd.come("second", "b")
    await crowd.come("third", "c")
    await crowd.give_up("second")
    assert admission.num_waiting == 1
    await crowd.go("first")
    assert crowd.entered == ["first", "third"]
    await crowd.go("third")
    assert (admission.num_active, admission.num_waiting) == (0, 0)
