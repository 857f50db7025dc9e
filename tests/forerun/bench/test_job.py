"""What clients are told travels as JSON and is dealt out whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.sampling import SamplingParams
from forerun.bench.job import Drafts, Job, TextRun, runs_from_json
from forerun.bench.stage import shares


@pytest.mark.parametrize("text", ["off", "oracle=0.8", "recorded", "live", "oracle=0", "oracle=1"])
def test_drafts_are_read_as_they_are_written(text: str) -> None:
    assert str(Drafts.parse(text)) == text


@pytest.mark.parametrize("text", ["", "oracle", "oracle=2", "oracle=x", "off=0.5", "recorded=1", "nothing"])
def test_other_drafts_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        Drafts.parse(text)


SAMPLING = SamplingParams(
    temperature=0.8, stop_token_ids=(3, 4), logit_bias=((5, 1.5),), max_tokens=7, seed=9
)


@given(
    st.lists(st.integers(0, 99), max_size=9),
    st.integers(1, 9),
    st.integers(0, 9),
    st.integers(1, 4),
    st.booleans(),
)
def test_a_job_survives_json_and_its_shares_are_all_of_it(
    numbers: list[int], clients: int, idle: int, processes: int, is_open: bool
) -> None:
    times = tuple(float(each) for each in range(len(numbers))) if is_open else ()
    drafts = Drafts.parse("oracle=0.5")
    job = Job("a:1", tuple(numbers), drafts, "tree", SAMPLING, clients=clients, idle=idle, times=times)
    assert Job.from_json(json.loads(json.dumps(job.as_json()))) == job
    parts = shares(job, processes)
    assert sorted(number for part in parts for number in part.numbers) == sorted(numbers)
    assert sum(part.clients for part in parts) == clients
    assert sum(part.idle for part in parts) == idle
    assert all(len(part.times) == len(part.numbers) for part in parts if part.is_open)


def test_everybody_has_all_texts_where_they_are_written_over_and_over() -> None:
    job = Job("a:1", (1, 2, 3), Drafts("off"), "off", SAMPLING, clients=2, duration=5.0)
    assert [part.numbers for part in shares(job, 2)] == [(1, 2, 3), (1, 2, 3)]


def test_a_run_survives_json() -> None:
    run = TextRun(3, 10.0, [0.1, 0.2], None, True, stats={"committed": 2})
    assert runs_from_json(json.loads(json.dumps([run.as_json()]))) == [run]
    assert run.ended_at == pytest.approx(10.2)
