"""What is logged of streams and sessions, and what never is."""

import logging
from typing import Any

import pytest

from cloud_verifier.telemetry.monitor import REFUSALS_BURST, REFUSALS_RATE, Monitor, shortened
from common.errors import UserError
from common.messages import Close
from tests import wording
from tests.cloud_verifier.telemetry.desk import ask, begin, make, running, whole


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="cloud_verifier")
    return caplog


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """What was logged: the words, and the values beside them."""
    return [(record.getMessage(), vars(record).get("fields", {})) for record in caplog.records]


async def test_a_session_is_logged_when_it_begins_and_when_it_ends(lines: pytest.LogCaptureFixture) -> None:
    async with running(make()) as worker:
        await whole(worker, ask(max_tokens=7, session_id="abc"), tenant="acme")
    (opened, begun), (ended, account) = told(lines)
    assert (opened, ended) == ("session opened", "session ended")
    assert begun == {
        "stream": 1, "session_id": "abc", "tenant": "acme", "prompt_tokens": 3, "max_tokens": 7,
        "cached_tokens": 0, "fill": True,
    }  # fmt: skip
    assert {name: account[name] for name in ("stream", "session_id", "tenant", "prompt_tokens")} == {
        "stream": 1, "session_id": "abc", "tenant": "acme", "prompt_tokens": 3,
    }  # fmt: skip
    assert (account["reason"], account["committed"], account["accepted"]) == ("LENGTH", 7, 0)
    assert account["rows"] == 2 + 7
    assert account["steps"] == 7
    assert 0 < account["first_token_seconds"] <= account["seconds"]


async def test_a_text_that_was_complete_ends_without_a_beginning(lines: pytest.LogCaptureFixture) -> None:
    async with running(make()) as worker:
        await whole(worker, ask(max_tokens=2, committed=(4, 5)))
    ((words, account),) = told(lines)
    assert (words, account["reason"], account["resumed_tokens"], account["committed"]) == (
        "session ended", "LENGTH", 2, 0,
    )  # fmt: skip
    assert worker.snapshot().instruments.whole_time.total == 0


def test_a_stream_that_breaks_is_lost_and_a_goodbye_is_none(lines: pytest.LogCaptureFixture) -> None:
    worker = make()
    lost, _ = begin(worker, ask())
    closed, _ = begin(worker, ask())
    worker.disconnect(lost)
    worker.receive(closed, Close())
    worker.disconnect(closed)
    ends = [fields for words, fields in told(lines) if words == "session ended"]
    assert [(each["stream"], each["reason"]) for each in ends] == [(lost, "LOST"), (closed, "CANCELLED")]


def test_why_is_told_of_this_verifier_and_not_of_what_a_client_sent(lines: pytest.LogCaptureFixture) -> None:
    worker = make(max_sessions=1)
    begin(worker, ask())
    begin(worker, ask())  # no room
    begin(worker, ask((1, 99)))  # no such token
    refused = [fields for words, fields in told(lines) if words == "stream refused"]
    assert [(each["reason"], each["fault"]) for each in refused] == [
        ("RESOURCE_EXHAUSTED", "capacity"),
        ("OUT_OF_RANGE", "user"),
    ]
    wording.keep(refused[0]["why"])
    assert "why" not in refused[1]
    assert "99" not in str(refused[1])


def test_of_many_refused_streams_some_have_a_line_and_the_others_are_counted(
    lines: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    monitor = Monitor(clock=lambda: now)

    def refuse(number: int) -> None:
        for _ in range(number):
            monitor.connected(1, "")
            monitor.failed(1, UserError("not this one"))
            monitor.disconnected(1)

    refuse(REFUSALS_BURST + 30)
    assert len(told(lines)) == REFUSALS_BURST
    now = 1.0
    refuse(100)
    later = [fields.get("untold") for _, fields in told(lines)[REFUSALS_BURST:]]
    assert later == [30, *[None] * (int(REFUSALS_RATE) - 1)]


@pytest.mark.parametrize(
    ("name", "short"),
    [("ab-1", "ab-1"), ("x" * 65, "x" * 61 + "..."), ("a\nb\x1b[2J", "a?b?[2J"), ("é日", "é日"), ("", "")],
)
def test_names_that_others_choose_are_short_and_printable(name: str, short: str) -> None:
    assert shortened(name) == short
