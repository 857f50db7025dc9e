"""Prompts of a load are different from their first tokens on; differences of texts are found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from forerun.bench.formula import FORMULA
from forerun.bench.texts import Text, first_difference, prompts_of
from forerun.bench.tokens import prompt_tokens


def test_no_two_prompts_begin_alike() -> None:
    prompts = prompts_of([list(range(100 * place, 100 * place + 60)) for place in range(4)], 20)
    assert len({prompt[:8] for prompt in prompts}) == 20
    assert prompts[0] == tuple(range(60))
    assert prompts[4] == tuple(range(7, 60))
    assert min(map(len, prompts)) == 60 - 4 * 7


def test_many_prompts_are_cut_finer() -> None:
    prompts = prompts_of([list(range(100 * place, 100 * place + 60)) for place in range(4)], 80)
    assert len({prompt[:8] for prompt in prompts}) == 80
    assert min(map(len, prompts)) >= 16


def test_prompts_too_short_for_so_many_are_refused() -> None:
    with pytest.raises(UserError, match="do not make 30 different ones"):
        prompts_of([list(range(20))], 30)


def test_a_short_prompt_is_taken_as_it_is() -> None:
    assert prompts_of([[1, 2]], 1) == [(1, 2)]


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_the_first_difference_is_the_first(one: list[int], other: list[int]) -> None:
    place = first_difference(one, other)
    if place is None:
        assert one == other
    else:
        assert one[:place] == other[:place]
        assert one[place : place + 1] != other[place : place + 1]


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9)))
def test_a_text_survives_json(prompt: list[int], reference: list[int]) -> None:
    text = Text(3, tuple(prompt), tuple(reference))
    assert Text.from_json(text.as_json()) == text


def test_the_formula_has_prompts_of_its_own() -> None:
    prompts = prompt_tokens(FORMULA, ["never read"])
    assert len({tuple(prompt[:4]) for prompt in prompts}) == len(prompts)


@pytest.mark.torch
def test_a_folder_without_a_tokenizer_is_refused(tmp_path: object) -> None:
    with pytest.raises(UserError, match="cannot be loaded"):
        prompt_tokens(str(tmp_path), ["x"])
