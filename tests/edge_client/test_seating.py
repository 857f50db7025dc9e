"""A text is continued where it is kept, and none is lost for a short match."""

from __future__ import annotations

import pytest

from edge_client.seating import Kept, best_place

CHAT = tuple(range(100))
OTHER = (*range(20), *range(200, 400))  # the same system prompt, another text


@pytest.mark.parametrize(
    ("prompt", "kept", "place"),
    [
        ((*CHAT, 7, 8), [(), OTHER, CHAT], 2),
        (CHAT[:90], [(), CHAT], 1),  # the last question asked again
        ((*CHAT, 7), [CHAT[:60], CHAT, CHAT[:80]], 1),
        (CHAT[:60], [CHAT, CHAT[:70]], 1),  # the shorter remainder
        (CHAT, [OTHER, ()], 1),  # 20 tokens saved are not worth 200
        (CHAT, [OTHER, (5, 6)], 0),  # nobody empty: the first released
        ((1, 2), [(), ()], 0),
        ((), [CHAT, OTHER], 0),
    ],
)
def test_the_place_of_a_prompt(prompt: tuple[int, ...], kept: list[tuple[int, ...]], place: int) -> None:
    free = [Kept(index, text, released_at=index) for index, text in enumerate(kept)]
    assert best_place(prompt, free) == place
    assert best_place(prompt, free[::-1]) == place


def test_of_empty_places_and_of_strangers_the_oldest_goes_first() -> None:
    assert best_place((1,), [Kept(0, (), 5), Kept(1, (), 3)]) == 1
    assert best_place((1,), [Kept(0, (2, 3), 5), Kept(1, (4, 5), 3)]) == 1
