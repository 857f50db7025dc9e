"""Clients write every text once and right."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.worker import Worker
from common.sampling import SamplingParams
from lab.bench.clients import ClientCrowd, Library
from lab.bench.formula import TABLE, FormulaEngine, formula_text
from lab.bench.load import DraftOption, LoadJob, LoadText
from lab.floored_engine import FlooredEngine
from tests.support.waiting import until

pytestmark = pytest.mark.grpc

LENGTH = 12
SAMPLING = SamplingParams(max_tokens=LENGTH, ignore_eos=True)
TEXTS = [LoadText(number, (number, 5, 9), formula_text((number, 5, 9), LENGTH)) for number in range(4)]


@contextlib.asynccontextmanager
async def verifier(config: SchedulerConfig | None = None, step_time: float = 0.0) -> AsyncIterator[Any]:
    """A verifier of the formula; at the end all its slots are there again."""
    engine = FormulaEngine(8192)
    scheduler = VerifyScheduler(engine.info, config)
    worker = Worker(FlooredEngine(engine, step_time), scheduler)
    async with Server(worker, engine.info, TABLE, "127.0.0.1:0") as server:
        yield f"127.0.0.1:{server.port}", scheduler
        await worker.wait_until_gone()
        await until(lambda: scheduler.idle)  # the last step may still run
    scheduler.check_integrity()


def library(texts: list[LoadText] = TEXTS) -> Library:
    found = Library()
    found.texts = {text.number: text for text in texts}
    return found


def job(address: str, **more: Any) -> LoadJob:
    given: dict[str, Any] = {"numbers": (0, 1, 2, 3), "drafts": DraftOption("off"), "policy": "adaptive"}
    return LoadJob(address=address, sampling=SAMPLING, **{**given, **more})


async def carried_out(task: LoadJob, known: Library | None = None) -> ClientCrowd:
    async with ClientCrowd(known or library(), task) as crowd:
        await crowd.run()
    return crowd


@pytest.mark.parametrize("drafts", ["off", "oracle=0.8", "oracle=0"])
@pytest.mark.parametrize("policy", ["adaptive", "chain"])
async def test_a_closed_loop_writes_every_text_once_and_right(drafts: str, policy: str) -> None:
    async with verifier() as (address, _):
        crowd = await carried_out(job(address, drafts=DraftOption.parse(drafts), policy=policy, clients=2))
    assert sorted(run.number for run in crowd.runs) == [0, 1, 2, 3]
    assert all(run.finished and run.difference is None for run in crowd.runs)
    assert all(len(run.arrivals) == LENGTH for run in crowd.runs)
    proposed = sum(run.stats["proposed"] for run in crowd.runs)
    assert (proposed > 0) is (drafts != "off")


async def test_a_text_that_is_not_the_references_is_found() -> None:
    wrong = replace(TEXTS[1], reference=(*TEXTS[1].reference[:3], 0, *TEXTS[1].reference[4:]))
    async with verifier() as (address, _):
        crowd = await carried_out(job(address), library([TEXTS[0], wrong, *TEXTS[2:]]))
    assert {run.number: run.difference for run in crowd.runs} == {0: None, 1: 3, 2: None, 3: None}


async def test_who_finds_the_verifier_full_is_refused_and_counted() -> None:
    async with verifier(SchedulerConfig(max_sessions=1), step_time=0.02) as (address, _):
        crowd = await carried_out(job(address, clients=4))
    assert sum(run.finished for run in crowd.runs) == 1
    assert sum(run.refused for run in crowd.runs) == 3


async def test_recorded_drafts_are_said_again() -> None:
    known = library()
    known.said = {
        text.number: [((token, (token + 1) % 4096), (-0.01, -5.0)) for token in text.reference]
        for text in TEXTS
    }
    async with verifier(step_time=0.01) as (address, _):
        crowd = await carried_out(job(address, drafts=DraftOption.parse("recorded"), policy="chain"), known)
    assert all(run.finished and run.difference is None for run in crowd.runs)
    assert sum(run.stats["accepted"] for run in crowd.runs) > 0
