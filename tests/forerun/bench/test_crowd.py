"""Clients in this process against a verifier in this process: loads end, and texts are checked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.floor import FlooredEngine
from cloud_verifier.server import Server
from cloud_verifier.worker import Worker
from common.sampling import SamplingParams
from edge_client.channel import OWN_CONNECTION, VerifierChannel
from forerun.bench.crowd import Crowd, Library
from forerun.bench.formula import TABLE, FormulaEngine, formula_text
from forerun.bench.job import Drafts, Job
from forerun.bench.texts import Text

pytestmark = pytest.mark.grpc

LENGTH = 12
SAMPLING = SamplingParams(max_tokens=LENGTH, ignore_eos=True)
TEXTS = [Text(number, (number, 5, 9), formula_text((number, 5, 9), LENGTH)) for number in range(4)]


@contextlib.asynccontextmanager
async def verifier(config: SchedulerConfig | None = None, step_time: float = 0.0) -> AsyncIterator[Any]:
    """A verifier of the formula; at the end all its slots are there again."""
    engine = FormulaEngine(8192)
    scheduler = VerifyScheduler(engine.info, config)
    worker = Worker(FlooredEngine(engine, step_time), scheduler)
    async with Server(worker, engine.info, TABLE, "127.0.0.1:0") as server:
        yield f"127.0.0.1:{server.port}", scheduler
        await worker.wait_until_gone()
        while not scheduler.idle:  # noqa: ASYNC110 - the last step may still run; nothing announces its end
            await asyncio.sleep(0.005)
    scheduler.check_integrity()


def library(texts: list[Text] = TEXTS) -> Library:
    found = Library()
    found.texts = {text.number: text for text in texts}
    return found


def job(address: str, **more: Any) -> Job:
    given: dict[str, Any] = {"numbers": (0, 1, 2, 3), "drafts": Drafts("off"), "policy": "adaptive"}
    return Job(address=address, sampling=SAMPLING, **{**given, **more})


async def carried_out(task: Job, known: Library | None = None) -> Crowd:
    async with Crowd(known or library(), task) as crowd:
        await crowd.run()
    return crowd


@pytest.mark.parametrize("drafts", ["off", "oracle=0.8", "oracle=0"])
@pytest.mark.parametrize("policy", ["adaptive", "chain"])
async def test_a_closed_loop_writes_every_text_once_and_right(drafts: str, policy: str) -> None:
    async with verifier() as (address, _):
        crowd = await carried_out(job(address, drafts=Drafts.parse(drafts), policy=policy, clients=2))
    assert sorted(run.number for run in crowd.runs) == [0, 1, 2, 3]
    assert all(run.finished and run.difference is None for run in crowd.runs)
    assert all(len(run.arrivals) == LENGTH for run in crowd.runs)
    proposed = sum(run.stats["proposed"] for run in crowd.runs)
    assert (proposed > 0) is (drafts != "off")


async def test_a_perfect_oracle_saves_target_steps() -> None:
    async with verifier(step_time=0.01) as (address, _):
        crowd = await carried_out(job(address, drafts=Drafts.parse("oracle=1"), policy="chain", numbers=(0,)))
    (run,) = crowd.runs
    assert run.stats["target_steps"] < LENGTH
    assert run.asked == run.right > 0


async def test_a_text_that_is_not_the_references_is_found() -> None:
    wrong = replace(TEXTS[1], reference=(*TEXTS[1].reference[:3], 0, *TEXTS[1].reference[4:]))
    async with verifier() as (address, _):
        crowd = await carried_out(job(address), library([TEXTS[0], wrong, *TEXTS[2:]]))
    assert {run.number: run.difference for run in crowd.runs} == {0: None, 1: 3, 2: None, 3: None}
    assert crowd.pulse.take(0.0)["different"] == 1


async def test_who_finds_the_verifier_full_is_refused_and_counted() -> None:
    async with verifier(SchedulerConfig(max_sessions=1), step_time=0.02) as (address, _):
        crowd = await carried_out(job(address, times=(0.0, 0.0, 0.0, 0.0), clients=4))
    assert sum(run.finished for run in crowd.runs) == 1
    assert sum(run.refused for run in crowd.runs) == 3


async def test_an_open_loop_does_not_wait_for_those_who_are_served() -> None:
    async with verifier(step_time=0.02) as (address, _):
        crowd = await carried_out(job(address, times=(0.0, 0.01, 0.02, 0.03), clients=1))
    opened = [run.opened_at for run in crowd.runs]
    assert max(opened) < min(run.ended_at for run in crowd.runs)
    assert all(run.finished for run in crowd.runs)


async def test_an_idle_session_stays_open_as_long_as_others_are_busy() -> None:
    async with verifier(step_time=0.005) as (address, scheduler):
        task = job(address, clients=1, idle=2, think=0.02, duration=0.6)
        async with Crowd(library(), task) as crowd:
            running = asyncio.create_task(crowd.run())
            while len(scheduler.sessions) < 3:  # noqa: ASYNC110 - nothing announces that a session is open
                await asyncio.sleep(0.005)
            kinds = sorted(session.request.fill for session in scheduler.sessions.values())
            await running
    assert kinds == [False, False, True]
    assert len(crowd.runs) >= 4


async def test_recorded_drafts_are_said_again() -> None:
    known = library()
    known.said = {
        text.number: [((token, (token + 1) % 4096), (-0.01, -5.0)) for token in text.reference]
        for text in TEXTS
    }
    async with verifier(step_time=0.01) as (address, _):
        crowd = await carried_out(job(address, drafts=Drafts.parse("recorded"), policy="chain"), known)
    assert all(run.finished and run.difference is None for run in crowd.runs)
    assert sum(run.stats["accepted"] for run in crowd.runs) > 0


async def test_devices_have_connections_of_their_own() -> None:
    async with verifier() as (address, _), contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            channel = await stack.enter_async_context(VerifierChannel(address, OWN_CONNECTION))
            await channel.describe()
        connections = _connections(int(address.rpartition(":")[2]))
    assert len(connections) == 3


def _connections(port: int) -> list[str]:
    """Established connections to a port of this machine, from the client's side."""
    try:
        tables = [Path(f"/proc/net/{name}").read_text(encoding="ascii") for name in ("tcp", "tcp6")]
    except OSError:
        pytest.skip("needs Linux's /proc/net/tcp")
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return [row[1] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"]
