"""A flood of messages waits; an edge does not."""

import pytest

from cloud_verifier.server.outbox import MESSAGE_BURST, MESSAGE_RATE, Pace


def test_messages_of_a_flood_wait_and_those_of_an_edge_do_not() -> None:
    pace = Pace(0.0)
    assert [pace.take(number * 0.01) for number in range(5000)] == [0.0] * 5000, "a hundred a second"
    waits = [pace.take(50.0) for _ in range(MESSAGE_BURST + 1000)]
    assert waits[: MESSAGE_BURST - 1] == [0.0] * (MESSAGE_BURST - 1)
    assert waits[-1] == pytest.approx(1000 / MESSAGE_RATE)
    assert pace.take(100.0) == 0.0, "after a pause"
