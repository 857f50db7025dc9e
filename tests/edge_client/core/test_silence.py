"""Laws of silence: when a session asks whether its verifier is there, and that only no answer is a loss."""

from __future__ import annotations

import pytest

from common.errors import UnavailableError
from common.messages import Commit, Opened
from common.sampling import SamplingParams
from edge_client.core.config import SessionConfig
from edge_client.core.effects import Connect, Effect, Finished, Probe
from edge_client.core.policies import GrowthPolicy, OffPolicy, SyncPolicy
from edge_client.core.session import EdgeSession, State
from edge_client.core.silence import LONGEST, MOST_PATIENCE, SHORTEST, Silence, patience_for


def opened(policy: GrowthPolicy | None = None) -> EdgeSession:
    """Open since 1.0 over a link of a tenth of a second; its effects taken."""
    config = SessionConfig((7, 8), SamplingParams(max_tokens=400), b"", patience=None)
    session = EdgeSession(config, policy or OffPolicy(), luck=lambda number: 0.0)
    session.start(0.9)
    session.on_message(Opened(1, 32), 1.0)
    session.effects()
    return session


def writing(gap: float, count: int = 33) -> tuple[EdgeSession, float]:
    """After `count` tokens that came so many seconds apart; and when the last came."""
    session, now = opened(), 1.0
    for place in range(count):
        now = 1.0 + gap * (1 + place)
        session.on_message(Commit(2 + place, (5,)), now)
    session.effects()
    return session, now


def timer(session: EdgeSession, now: float) -> list[Effect]:
    assert session.next_timer_at == pytest.approx(now)
    session.on_timer(session.next_timer_at or now)
    return session.effects()


@pytest.mark.parametrize(("gap", "quiet"), [(0.01, SHORTEST), (0.125, 0.5), (0.25, 1.0), (3.0, LONGEST)])
def test_it_asks_after_four_times_the_usual_gap_within_limits(gap: float, quiet: float) -> None:
    session, now = writing(gap)
    assert timer(session, now + quiet) == [Probe(patience_for(session.view.rtt.smoothed_rtt))]
    assert session.next_timer_at is None, "one question at a time"


def test_one_slow_gap_in_twenty_is_usual_and_two_are_not() -> None:
    for slow, usual in ((1, SHORTEST), (2, 2.0)):
        silence, now = Silence(), 0.0
        silence.opening(now)
        for number in range(24):
            now += 0.5 if number < slow else 0.01
            silence.heard(now, usual=True)
        assert silence.at == pytest.approx(now + usual)


def test_before_anything_is_usual_it_asks_late() -> None:
    session = opened()
    assert timer(session, 1.0 + LONGEST) == [Probe(1.0)]


def test_a_stream_that_is_not_let_in_is_asked_about_too() -> None:
    config = SessionConfig((7, 8), SamplingParams(), b"", patience=None)
    session = EdgeSession(config, OffPolicy())
    session.start(0.0)
    session.effects()
    assert timer(session, LONGEST) == [Probe(MOST_PATIENCE)]


def test_whoever_answers_is_slow_and_not_gone() -> None:
    """A verifier that reads a prompt of minutes keeps its stream; the questions become rarer."""
    session, now = writing(0.01)
    asked = []
    for _ in range(6):
        now = session.next_timer_at or 0.0
        session.on_timer(now)
        assert [type(effect) for effect in session.effects()] == [Probe]
        session.on_probed(True, now)
        assert session.next_timer_at is not None
        asked.append(round(session.next_timer_at - now, 9))
    assert asked == [0.5, 1.0, 2.0, 2.5, 2.5, 2.5]
    assert session.state is State.OPEN


def test_silence_without_an_answer_is_a_loss() -> None:
    session, now = writing(0.01)
    timer(session, now + SHORTEST)
    session.on_probed(False, now + 1.25)
    assert session.state is State.LOST
    assert timer(session, now + 1.35)[0] == Connect()


def test_the_loss_says_how_long_nothing_was_heard() -> None:
    session = EdgeSession(
        SessionConfig((7, 8), SamplingParams(), b"", patience=None, max_attempts=0), OffPolicy()
    )
    session.start(0.0)
    session.on_timer(LONGEST)
    session.effects()
    session.on_probed(False, 4.5)
    (finished,) = session.effects()
    assert isinstance(finished, Finished)
    assert isinstance(finished.error, UnavailableError)
    assert "has said nothing for 4.5 s and does not answer when it is asked" in str(finished.error)


def test_text_that_comes_while_the_answer_is_out_makes_it_void() -> None:
    session, now = writing(0.01)
    timer(session, now + SHORTEST)
    session.on_message(Commit(35, (5,)), now + 0.5)
    session.on_probed(False, now + 1.25)
    assert session.state is State.OPEN


def test_an_answer_about_a_stream_that_is_gone_is_void() -> None:
    session, now = writing(0.01)
    timer(session, now + SHORTEST)
    session.on_stream_lost(UnavailableError("reset"), now + 0.3)
    session.on_probed(False, now + 1.25)
    assert not session.view.stream_up
    session.on_timer(session.next_timer_at or now)
    session.on_probed(False, now + 1.3)
    assert session.state is State.OPENING


def test_without_fill_nothing_is_owed_until_something_is_asked() -> None:
    session = opened(SyncPolicy(2))
    assert session.next_timer_at is None, "the drafter is at work, and the verifier waits for it"
    session.on_drafted([], 1.1)  # it says nothing, so the verifier is nudged
    assert session.next_timer_at == 1.1 + LONGEST


def test_a_text_that_has_ended_asks_nothing() -> None:
    session, now = writing(0.01)
    session.close(now)
    assert session.next_timer_at is None


def test_a_slow_link_has_longer_for_its_answer() -> None:
    assert [patience_for(rtt) for rtt in (0.0, 0.1, 0.2, 0.25, 9.0)] == [1.0, 1.0, 1.6, 2.0, 2.0]
