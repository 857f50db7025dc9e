"""Drafting from a given text: where the answer stands in it, and how far it is trusted."""

import random
from collections.abc import Sequence

import pytest

from schemes.drafters.given_text import AHEAD, GivenText

SURELY = -0.7  # nats; half, as beside a draft model
OLD = tuple(random.Random(1).sample(range(1000), 400))


def after(text: Sequence[int], *texts: Sequence[int]) -> GivenText:
    return GivenText(texts, committed=text)


def tokens(source: GivenText, most: int = 1000, path: Sequence[int] = ()) -> list[int]:
    return [guess.token for guess in source.guess(most, path)]


def test_the_first_guess_is_the_beginning_of_the_first_text() -> None:
    assert tokens(GivenText([OLD, (7, 8)]), most=20) == list(OLD[:20])


def test_a_text_that_agrees_is_guessed_by_the_hundred() -> None:
    assert tokens(after(OLD[:100], OLD)) == list(OLD[100:])


def test_a_guess_does_not_run_into_the_next_text() -> None:
    assert tokens(after(OLD[:395], OLD, (7, 8))) == list(OLD[395:])


@pytest.mark.parametrize(
    ("new", "goes_on_at"),
    [
        ((*OLD[:100], 2001), 101),  # one token replaced
        ((*OLD[:100], 2001, 2002, 2003, *OLD[103:105]), 105),  # a line replaced
        ((*OLD[:100], 2001, 2002, OLD[100]), 101),  # two inserted
        ((*OLD[:100], *OLD[120:122]), 122),  # twenty left out
        ((*OLD[:100], *OLD[100 + 2 * AHEAD : 102 + 2 * AHEAD]), 102 + 2 * AHEAD),  # a jump beyond the window
        ((*OLD[:300], *OLD[20:23]), 23),  # back to an earlier place
        ((2001, 2002, 2003, *OLD[:1]), 1),  # words before the text
    ],
)
def test_the_place_is_found_again_after_a_change(new: Sequence[int], goes_on_at: int) -> None:
    found = tokens(after(new, OLD), most=5)
    assert found == list(OLD[goes_on_at : goes_on_at + 5])


def test_tokens_of_a_path_move_the_place_and_teach_nothing() -> None:
    source = after(OLD[:50], OLD)
    before = source.guess(30)
    assert tokens(source, 3, (*OLD[50:60], 2001)) == list(OLD[61:64])
    assert source.guess(30) == before


def test_of_two_places_that_agree_alike_the_nearer_is_taken() -> None:
    line = (1, 2, 3)
    old = (*line, 10, 11, *line, 20, 21, *line, 30, 31)
    assert tokens(after((*line, 10, 11, 99, 2, 3), old), most=2) == [20, 21]


def test_a_text_unlike_the_given_one_soon_gets_no_guess() -> None:
    draw = random.Random(2)
    source, proposed = GivenText([OLD]), 0
    for _ in range(300):
        proposed += len(source.guess(128, (), surely=SURELY))
        source.learn(0, draw.choice(OLD))
    assert proposed < 2 * 300


def test_a_guess_is_shorter_after_a_miss_than_amid_agreement() -> None:
    agreed, missed = after(OLD[:100], OLD), after((*OLD[:100], 2001), OLD)
    longest = [len(tokens(each, path=())) for each in (agreed, missed)]
    assert longest[1] < longest[0] == 300


def test_nothing_is_guessed_without_a_text() -> None:
    assert GivenText([]).guess(10) == []
    assert after((1, 2, 3), ()).guess(10) == []
