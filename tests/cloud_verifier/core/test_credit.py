"""Laws of node credit: it follows what is evaluated, as far as others keep it from being."""

from __future__ import annotations

import pytest

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.credit import FULL_PRESSURE, Credit
from cloud_verifier.core.session import VerifySession
from tests.cloud_verifier.core.bench import VOCAB, ask

CONFIG = SchedulerConfig()


def session(rows_taken: float = 0.0, lag: int = 0) -> VerifySession:
    found = VerifySession(1, ask(), VOCAB, frozenset(), 128, 0.0)
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


def test_when_all_stay_out_credit_is_the_least() -> None:
    assert pressed(1.0).of(session(), 4) == CONFIG.min_credit


def test_under_pressure_credit_is_what_two_turns_use() -> None:
    """Rows that it gets, and what is under way to a device that has not seen the last tokens."""
    assert pressed(1.0).of(session(rows_taken=6.0, lag=12), 4) == 36


def test_credit_moves_with_the_pressure() -> None:
    assert pressed(FULL_PRESSURE / 2).of(session(rows_taken=6.0, lag=12), 4) == pytest.approx(
        (128 + 36) / 2, abs=1
    )


def test_it_is_never_more_than_without_pressure() -> None:
    assert pressed(1.0).of(session(rows_taken=200.0), 64) == 32
