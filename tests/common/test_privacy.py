"""Levels of privacy are ordered, and have names."""

from __future__ import annotations

import pytest

from common.errors import UserError
from common.privacy import LEVELS, Privacy, privacy_named, stricter


@pytest.mark.parametrize("title", LEVELS)
def test_every_level_is_found_by_its_title(title: str) -> None:
    assert privacy_named(title).title == title


def test_an_unknown_one_is_refused_with_those_that_are() -> None:
    with pytest.raises(UserError, match="'tight' is not known; it is one of off, padded, strict"):
        privacy_named("tight")


@pytest.mark.parametrize("one", Privacy)
@pytest.mark.parametrize("other", Privacy)
def test_of_two_levels_the_later_holds_whoever_asks(one: Privacy, other: Privacy) -> None:
    found = stricter(one, other)
    assert found is stricter(other, one)
    assert found.value == max(one.value, other.value)
