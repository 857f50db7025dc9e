"""Prompts differ from their first tokens on; what clients are told travels as JSON and is dealt out whole."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.sampling import SamplingParams
from lab.bench.load import (
    DraftOption,
    LoadJob,
    first_difference,
    prompt_tokens,
    prompts_of,
    shares,
)


def test_no_two_prompts_begin_alike() -> None:
    prompts = prompts_of([list(range(100 * place, 100 * place + 60)) for place in range(4)], 20)
    assert len({prompt[:8] for prompt in prompts}) == 20
    assert prompts[0] == tuple(range(60))
    assert prompts[4] == tuple(range(7, 60))
    assert min(map(len, prompts)) == 60 - 4 * 7


def test_prompts_too_short_for_so_many_are_refused() -> None:
    with pytest.raises(UserError, match="do not make 30 different ones"):
        prompts_of([list(range(20))], 30)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_the_first_difference_is_the_first(one: list[int], other: list[int]) -> None:
    place = first_difference(one, other)
    if place is None:
        assert one == other
    else:
        assert one[:place] == other[:place]
        assert one[place : place + 1] != other[place : place + 1]


@pytest.mark.torch
def test_a_folder_without_a_tokenizer_is_refused(tmp_path: object) -> None:
    with pytest.raises(UserError, match="cannot be loaded"):
        prompt_tokens(str(tmp_path), ["x"])


# Jobs


@pytest.mark.parametrize("text", ["off", "oracle=0.8", "recorded", "oracle=0", "oracle=1"])
def test_drafts_are_read_as_they_are_written(text: str) -> None:
    assert str(DraftOption.parse(text)) == text


@pytest.mark.parametrize("text", ["", "oracle", "oracle=2", "oracle=x", "off=0.5", "recorded=1", "live"])
def test_other_drafts_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        DraftOption.parse(text)


SAMPLING = SamplingParams(
    temperature=0.8, stop_token_ids=(3, 4), logit_bias=((5, 1.5),), max_tokens=7, seed=9
)


@given(
    st.lists(st.integers(0, 99), max_size=9),
    st.integers(1, 9),
    st.integers(1, 4),
    st.booleans(),
)
def test_a_job_survives_json_and_its_shares_are_all_of_it(
    numbers: list[int], clients: int, processes: int, is_open: bool
) -> None:
    times = tuple(float(each) for each in range(len(numbers))) if is_open else ()
    drafts = DraftOption.parse("oracle=0.5")
    job = LoadJob("a:1", tuple(numbers), drafts, "tree", SAMPLING, clients=clients, times=times)
    assert LoadJob.from_json(json.loads(json.dumps(asdict(job)))) == job
    parts = shares(job, processes)
    assert sorted(number for part in parts for number in part.numbers) == sorted(numbers)
    assert sum(part.clients for part in parts) == clients
    assert all(len(part.times) == len(part.numbers) for part in parts if part.is_open)
