"""Laws of node credit: it follows what is evaluated, as far as others keep it from being."""

from __future__ import annotations

import pytest

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.credit import TRIAL, Credit
from cloud_verifier.core.session import VerifySession
from tests.cloud_verifier.core.bench import VOCAB, ask

CONFIG = SchedulerConfig()


def session(rows_taken: float = 0.0, lag: int = 0, fill: bool = True) -> VerifySession:
    found = VerifySession(1, ask(fill=fill), VOCAB, frozenset(), 128, 0.0)
    found.rows_taken, found.arrivals.lag = rows_taken, lag
    return found


def pressed(share_left_out: float) -> Credit:
    credit = Credit(CONFIG)
    for _ in range(200):
        credit.note(100, round(100 * (1 - share_left_out)))
    return credit


def test_while_nobody_stays_out_the_budget_is_divided() -> None:
    credit = Credit(CONFIG)
    credit.note(0, 0)
    assert [credit.of(session(), number) for number in (1, 16, 64)] == [128, 128, 32]


def test_a_session_begins_with_the_least_when_all_stay_out() -> None:
    assert pressed(1.0).of(session(), 4) == CONFIG.min_credit


def test_who_sends_in_vain_has_no_credit_but_for_a_trial_now_and_then() -> None:
    found, credit = session(), pressed(1.0)
    told = []
    for found.num_turns in range(1, 1 + 3 * TRIAL):
        told.append(credit.of(found, 4))
    assert sorted(set(told)) == [0, CONFIG.min_credit]
    assert told.count(CONFIG.min_credit) == 3


def test_who_gets_a_row_now_and_then_may_go_on() -> None:
    found, credit = session(rows_taken=0.1), pressed(1.0)
    found.num_turns = 1
    assert credit.of(found, 4) == CONFIG.min_credit


def test_one_without_fill_is_never_told_to_send_nothing() -> None:
    """It waits for its own nodes."""
    found, credit = session(fill=False), pressed(1.0)
    found.num_turns = 1
    assert credit.of(found, 4) == CONFIG.min_credit


def test_under_pressure_credit_is_what_two_turns_use() -> None:
    """Rows that it gets, and what is under way to a device that has not seen the last tokens."""
    assert pressed(1.0).of(session(rows_taken=6.0, lag=12), 4) == 36


def test_credit_moves_with_the_pressure() -> None:
    assert pressed(0.5).of(session(rows_taken=6.0, lag=12), 4) == pytest.approx((128 + 36) / 2, abs=1)


def test_it_is_never_more_than_without_pressure() -> None:
    assert pressed(1.0).of(session(rows_taken=200.0), 64) == 32
