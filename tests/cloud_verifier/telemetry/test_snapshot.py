"""A snapshot shows what is, and does not change when the verifier goes on."""

from __future__ import annotations

import pytest

from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.stats import Stats
from cloud_verifier.telemetry import vllm_names
from cloud_verifier.worker import Worker
from common.messages import Propose
from common.rpc.admin import Mode
from tests.cloud_verifier.telemetry.desk import INFO, ask, begin, make, running, step, whole
from tests.worlds.models import TinyTarget

RUNNING_AND_WAITING = vllm_names.METRICS[:2]


def modes(worker: Worker) -> list[Mode]:
    return [each.mode for each in worker.snapshot().sessions]


def test_a_session_reads_then_writes() -> None:
    worker = make(prefill_chunk=2)
    key, _ = begin(worker, ask((1, 2, 3, 4) * 3))
    assert modes(worker) == [Mode.PREFILL]
    engine = TinyTarget(INFO)
    for mode in (Mode.PREFILL, Mode.DECODE):
        step(worker, engine)
        assert modes(worker) == [mode]
    worker.disconnect(key)
    assert modes(worker) == []


def test_a_session_without_fill_waits_for_a_propose() -> None:
    worker = make()
    key, _ = begin(worker, ask((1,), fill=False))
    assert modes(worker) == [Mode.WAITING]
    worker.receive(key, Propose())
    assert modes(worker) == [Mode.DECODE]


def test_who_gave_way_waits_for_slots() -> None:
    """Of three texts that could be 500 tokens long each, in 1024 slots."""
    worker, engine = make(promised_text=1), TinyTarget(INFO)
    for _ in range(3):
        begin(worker, ask((1, 2), max_tokens=500))
    while Mode.PREEMPTED not in modes(worker):
        step(worker, engine)
    assert modes(worker) == [Mode.DECODE, Mode.DECODE, Mode.PREEMPTED]
    found = worker.snapshot()
    assert found.num_preempted == found.sessions[2].tally.num_preempted == 1
    assert found.sessions[2].num_slots == 0
    assert [metric.value(found) for metric in RUNNING_AND_WAITING] == [2, 1]


async def test_every_slot_is_somewhere() -> None:
    async with running(make()) as worker:
        await whole(worker, ask((1, 2, 3, 4)))
        begin(worker, ask((1, 2, 3, 4, 5), max_tokens=100))
        slots = worker.snapshot().slots
    memory = worker.scheduler.memory
    assert slots.num_all == memory.num_slots
    assert slots.num_available == memory.num_unpromised
    assert slots.num_shared == 4, "what the second text has in common with the first"
    assert slots.used == (slots.num_shared + slots.num_owned) / memory.num_slots


async def test_a_snapshot_does_not_change() -> None:
    async with running(make(max_tenants=1)) as worker:
        key, _ = begin(worker, ask(max_tokens=100), "a")
        before = worker.snapshot()
        copy = repr(before)
        await whole(worker, ask(), "a")
        worker.disconnect(key)
        worker.monitor.note_received(key, Propose(), 12)
        assert repr(before) == copy
        assert repr(worker.snapshot()) != copy


def test_the_engines_own_figures_are_in_it() -> None:
    class Counting(TinyTarget):
        def stats(self) -> Stats:
            return {"graph_steps_total": 3.0}

    assert Worker(Counting(INFO), VerifyScheduler(INFO)).snapshot().engine == {"graph_steps_total": 3.0}
    assert make().snapshot().engine == {}


@pytest.mark.parametrize("number", [0, 1, 3])
def test_it_counts_what_is_open(number: int) -> None:
    worker = make()
    for _ in range(number):
        begin(worker, ask())
    worker.connect()
    found = worker.snapshot()
    assert (len(found.sessions), found.num_open_streams, found.num_streams) == (
        number,
        number + 1,
        number + 1,
    )
