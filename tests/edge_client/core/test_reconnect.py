"""Laws of the pauses between reconnects: they grow, they differ, and a verifier's own advice counts."""

from __future__ import annotations

import pytest

from common.errors import CapacityError, Code, PeerError, UnavailableError
from common.sampling import SamplingParams
from edge_client.core.config import SessionConfig
from edge_client.core.reconnect import LONGEST_ADVICE, Reconnects, own_luck, same_kind

GONE = UnavailableError("the link broke")


def reconnects(*luck: float, session_id: str = "s", **config: int) -> Reconnects:
    """With these numbers, over and over; with its own if there are none."""
    settings = SessionConfig((1,), SamplingParams(), b"", session_id=session_id, **config)  # type: ignore[arg-type]  # numbers
    return Reconnects(settings, (lambda number: luck[(number - 1) % len(luck)]) if luck else None)


def pauses(own: Reconnects, count: int) -> list[float]:
    found = []
    for attempt in range(count):
        own.lost(GONE, 100.0 * attempt)
        assert own.at is not None
        found.append(round(own.at - 100.0 * attempt, 9))
        own.began()
    return found


def test_each_is_drawn_from_the_shortest_up_to_three_times_the_one_before() -> None:
    assert pauses(reconnects(0.0), 3) == [0.1, 0.1, 0.1]
    assert pauses(reconnects(0.5), 4) == [0.2, 0.35, 0.575, 0.9125]
    assert pauses(reconnects(1.0), 5) == [0.3, 0.9, 2.7, 5.0, 5.0], "never beyond the largest"


def test_text_begins_them_anew() -> None:
    own = reconnects(1.0)
    assert pauses(own, 3)[-1] == 2.7
    own.text_came()
    assert pauses(own, 1) == [0.3]
    assert own.attempts == 1


def test_devices_that_were_cut_off_at_once_come_back_one_by_one() -> None:
    """The same prompt and seed on a hundred devices: in each tenth of the first pauses' range some come."""
    first = [pauses(reconnects(session_id=f"device-{number}"), 1)[0] for number in range(100)]
    assert len(set(first)) == 100
    counts = [
        sum(0.1 + 0.02 * tenth <= pause < 0.12 + 0.02 * tenth for pause in first) for tenth in range(10)
    ]
    assert min(counts) >= 3
    assert sum(counts) == 100


def test_a_session_draws_the_same_again() -> None:
    assert pauses(reconnects(), 20) == pauses(reconnects(), 20)
    assert own_luck(1, "s")(1) != own_luck(2, "s")(1) != own_luck(2, "t")(1)


def test_a_verifiers_advice_is_waited_for_and_a_little_longer() -> None:
    own = reconnects(0.0, 0.5)
    own.lost(CapacityError("full", retry_after=4.0), 10.0)
    assert own.at == 14.5


def test_advice_shorter_than_the_pause_changes_nothing() -> None:
    own = reconnects(0.5)
    own.lost(CapacityError("full", retry_after=0.05), 10.0)
    assert own.at == 10.2


def test_advice_has_a_limit() -> None:
    own = reconnects(0.0)
    own.lost(CapacityError("full", retry_after=4000.0), 0.0)
    assert own.at == LONGEST_ADVICE


def test_elsewhere_there_is_no_pause() -> None:
    own = reconnects(1.0)
    own.lost(CapacityError("full", retry_after=4.0), 10.0, elsewhere=True)
    assert own.at == 10.0


def test_who_turns_up_shortens_a_pause_and_never_makes_one() -> None:
    own = reconnects(1.0)
    assert not own.hurry(1.0)
    own.lost(GONE, 10.0)
    assert own.hurry(10.1)
    assert own.at == 10.1
    assert not own.hurry(10.2)


@pytest.mark.parametrize(("most", "tries"), [(0, 0), (3, 3)])
def test_it_gives_up_after_so_many(most: int, tries: int) -> None:
    own = reconnects(0.0, max_attempts=most)
    pauses(own, tries)
    assert not own.can_help(GONE)


def test_without_a_limit_it_never_gives_up() -> None:
    own = reconnects(1.0)
    assert pauses(own, 3000)[-1] == 5.0
    assert own.can_help(GONE)
    assert not own.can_help(PeerError("a rule was broken"))


def test_other_words_for_an_error_keep_what_a_program_needs() -> None:
    full = same_kind(CapacityError("full", retry_after=2.0), "x")
    assert isinstance(full, CapacityError)
    assert (full.retry_after, str(full)) == (2.0, "x")
    late = same_kind(UnavailableError("late", Code.DEADLINE_EXCEEDED), "y")
    assert (type(late), late.code) == (UnavailableError, Code.DEADLINE_EXCEEDED)
