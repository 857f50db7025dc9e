"""Prompts differ from their first tokens on; drafts are named as they are written."""

from __future__ import annotations

import pytest

from common.errors import UserError
from lab.bench.load import (
    DraftOption,
    prompts_of,
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


@pytest.mark.parametrize("text", ["off", "oracle=0.8", "recorded", "oracle=0", "oracle=1"])
def test_drafts_are_read_as_they_are_written(text: str) -> None:
    assert str(DraftOption.parse(text)) == text


@pytest.mark.parametrize("text", ["", "oracle", "oracle=2", "oracle=x", "off=0.5", "recorded=1", "live"])
def test_other_drafts_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        DraftOption.parse(text)
