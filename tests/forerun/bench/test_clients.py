"""The process of clients: it does what its lines say, and is gone when nobody listens any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.sampling import SamplingParams
from forerun.bench.formula import FORMULA, formula_text
from forerun.bench.job import Drafts, Job
from forerun.bench.stage import Stage, StageSettings
from forerun.bench.texts import Text
from forerun.rig import START_TIMEOUT, Child

pytestmark = pytest.mark.grpc

TEXTS = [Text(number, (number, 5), formula_text((number, 5), 8)) for number in range(5)]
SETTINGS = StageSettings(("--model", FORMULA, "--step-floor", "2"), client_processes=2, pin=False)


def job(address: str, **more: Any) -> Job:
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    return Job(address, tuple(text.number for text in TEXTS), Drafts("off"), "off", sampling, **more)


async def test_two_processes_share_a_load_and_a_third_goes_without() -> None:
    async with Stage(SETTINGS) as stage:
        await stage.learn(TEXTS)
        both = await stage.run(job(stage.verifier.address, clients=3))
        one = await stage.run(job(stage.verifier.address, clients=1))
    assert sorted(run.number for run in both.runs) == [0, 1, 2, 3, 4]
    assert len(both.client_cpu) == 2
    assert len(one.client_cpu) == 1
    assert all(run.finished and run.difference is None for run in (*both.runs, *one.runs))
    assert both.verifier["steps"] > 0
    assert both.verifier["choices"] == 40


async def test_without_anybody_who_listens_a_load_ends_at_once() -> None:
    async with Stage(SETTINGS) as stage:
        child = await Child.start("clients", module="forerun.bench.clients")
        try:
            await child.write({"do": "learn", "texts": [text.as_json() for text in TEXTS]})
            await child.read(START_TIMEOUT)
            endless = job(stage.verifier.address, clients=2, duration=3600.0)
            await child.write({"do": "run", "job": endless.as_json()})
            await child.read(START_TIMEOUT)
            await child.write({"do": "go"})
            assert child._process.stdin is not None
            child._process.stdin.close()
            await asyncio.wait_for(child._process.wait(), START_TIMEOUT)
        finally:
            await child.stop()
