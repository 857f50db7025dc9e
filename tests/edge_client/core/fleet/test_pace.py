"""A fleet does not speak with one voice: waits grow and differ, and events are bounded and counted."""

from __future__ import annotations

from edge_client.core.fleet.pace import EVENT_EXPIRY, MAX_EVENTS, Backoff, Beat, EventQueue
from edge_client.core.fleet.payloads import Event, EventKind


def test_waits_double_up_to_the_most_and_lie_in_their_upper_half() -> None:
    it = Backoff(first=1.0, most=10.0)
    waits = []
    for _ in range(6):
        it.on_lost(0.0)
        waits.append((it.wait(0.0), it.wait(1.0)))
    assert waits == [(0.5, 1.0), (1.0, 2.0), (2.0, 4.0), (4.0, 8.0), (5.0, 10.0), (5.0, 10.0)]


def test_a_broker_that_lets_in_and_throws_out_is_none_that_came_back() -> None:
    it = Backoff(first=1.0, most=100.0)
    for lasted in (0.0, 5.0, 59.0):
        it.on_lost(lasted)
    assert it.wait(1.0) == 4.0
    it.on_lost(60.0)
    assert it.wait(1.0) == 1.0


def test_after_a_takeover_the_wait_is_long_at_once() -> None:
    it = Backoff(first=1.0, most=100.0)
    it.on_lost(3600.0)
    assert (it.wait(0.0, hard=True), it.wait(0.5, hard=True)) == (50.0, 75.0)


def test_a_thousand_failures_overflow_nothing() -> None:
    it = Backoff()
    for _ in range(5000):
        it.on_lost(0.0)
    assert it.wait(1.0) == 120.0


def test_beats_have_a_phase_of_their_own_and_missed_ones_are_not_made_up_for() -> None:
    it = Beat(interval=30.0, now=100.0, chance=0.5)
    assert it.due_at == 115.0
    it.on_due(115.2)
    assert it.due_at == 145.0
    it.on_due(1000.0)
    assert it.due_at == 1015.0


def event(kind: EventKind = EventKind.FALLBACK, at: float = 0.0) -> Event:
    return Event(kind=kind, at=at, epoch=1)


def test_events_leave_in_order_and_stay_until_they_have_left() -> None:
    it = EventQueue()
    it.add(event(at=1.0), now=1.0)
    it.add(event(at=2.0), now=2.0)
    assert it.take(now=11.0) == it.take(now=11.0) == (event(at=1.0), EVENT_EXPIRY - 10.0)
    it.on_told(0)
    assert it.take(now=11.0) == (event(at=2.0), EVENT_EXPIRY - 9.0)


def test_the_oldest_gives_way_and_the_next_one_tells_how_many_did() -> None:
    it = EventQueue()
    for number in range(MAX_EVENTS + 3):
        it.add(event(at=float(number)), now=0.0)
    found = it.take(now=0.0)
    assert found is not None
    assert (found[0].at, found[0].dropped, len(it)) == (3.0, 3, MAX_EVENTS)
    it.on_told(found[0].dropped)
    assert it.dropped == 0


def test_an_event_of_more_than_an_hour_ago_is_dropped_and_counted() -> None:
    it = EventQueue()
    it.add(event(), now=0.0)
    assert it.take(now=EVENT_EXPIRY) is None
    assert (len(it), it.dropped) == (0, 1)


def test_what_strangers_cause_is_told_once_a_minute() -> None:
    it = EventQueue()
    for now in (0.0, 1.0, 59.0, 60.0, 61.0):
        it.add(event(EventKind.ORDER_REFUSED), now)
        it.add(event(EventKind.FALLBACK), now)
    assert len(it) == 2 + 5
