"""Laws of the pauses between reconnects: they grow, they differ, and a verifier's own advice counts."""

import pytest

from common.errors import CapacityError, Code, LocalError, PeerError, UnavailableError
from common.messages import Commit, Opened
from common.sampling import SamplingParams
from edge_client.core.effects import Connect, Effect, Finished, Probe, SessionConfig
from edge_client.core.policies import GrowthPolicy, OffPolicy, SyncPolicy
from edge_client.core.reconnect import (
    LONGEST,
    LONGEST_ADVICE,
    SHORTEST,
    Reconnects,
    Silence,
    patience_for,
    same_kind,
)
from edge_client.core.session import EdgeSession, StreamState
from tests import wording

GONE = UnavailableError("the link broke")


def reconnects(*luck: float, session_id: str = "s", **config: int | None) -> Reconnects:
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


def test_devices_that_were_cut_off_at_once_come_back_one_by_one() -> None:
    """The same prompt and seed on a hundred devices: in each tenth of the first pauses' range some come."""
    first = [pauses(reconnects(session_id=f"device-{number}"), 1)[0] for number in range(100)]
    assert len(set(first)) == 100
    counts = [
        sum(0.1 + 0.02 * tenth <= pause < 0.12 + 0.02 * tenth for pause in first) for tenth in range(10)
    ]
    assert min(counts) >= 3
    assert sum(counts) == 100


def test_who_turns_up_shortens_a_pause_and_never_makes_one() -> None:
    own = reconnects(1.0)
    assert not own.hurry(1.0)
    own.lost(GONE, 10.0)
    assert own.hurry(10.1)
    assert own.at == 10.1
    assert not own.hurry(10.2)


def test_other_words_for_an_error_keep_what_a_program_needs() -> None:
    full = same_kind(CapacityError("full", retry_after=2.0), "x")
    assert isinstance(full, CapacityError)
    assert (full.retry_after, str(full)) == (2.0, "x")
    late = same_kind(UnavailableError("late", Code.DEADLINE_EXCEEDED), "y")
    assert (type(late), late.code) == (UnavailableError, Code.DEADLINE_EXCEEDED)


@pytest.mark.parametrize(
    ("advice", "elsewhere", "at"),
    [
        (4.0, False, 14.5),
        (0.05, False, 10.1),
        (4000.0, False, 10.0 + LONGEST_ADVICE * 1.125),
        (4.0, True, 10.0),
    ],
    ids=["and a little longer", "shorter than the pause", "limited", "another verifier is there"],
)
def test_a_verifiers_advice_is_waited_for(advice: float, elsewhere: bool, at: float) -> None:
    own = reconnects(0.0, 0.5)
    own.lost(CapacityError("full", retry_after=advice), 10.0, elsewhere)
    assert own.at == pytest.approx(at)


@pytest.mark.parametrize("most", [0, 3, None])
def test_it_gives_up_after_so_many_and_without_a_limit_never(most: int | None) -> None:
    own = reconnects(1.0, max_attempts=most)
    assert pauses(own, 3000 if most is None else most)[-1:] in ([], [2.7], [5.0])
    assert own.can_help(GONE) is (most is None)
    assert own.can_help(LocalError("late", Code.DEADLINE_EXCEEDED)) is (most is None)
    assert not own.can_help(PeerError("a rule was broken"))


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
    assert session.state is StreamState.OPEN


def test_silence_without_an_answer_is_a_loss() -> None:
    session, now = writing(0.01)
    timer(session, now + SHORTEST)
    session.on_probed(False, now + 1.25)
    assert session.state is StreamState.LOST
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
    wording.keep(str(finished.error))


def test_text_that_comes_while_the_answer_is_out_makes_it_void() -> None:
    session, now = writing(0.01)
    timer(session, now + SHORTEST)
    session.on_message(Commit(35, (5,)), now + 0.5)
    session.on_probed(False, now + 1.25)
    assert session.state is StreamState.OPEN


def test_an_answer_about_a_stream_that_is_gone_is_void() -> None:
    session, now = writing(0.01)
    timer(session, now + SHORTEST)
    session.on_stream_lost(UnavailableError("reset"), now + 0.3)
    session.on_probed(False, now + 1.25)
    assert not session.view.stream_up
    session.on_timer(session.next_timer_at or now)
    session.on_probed(False, now + 1.3)
    assert session.state is StreamState.OPENING


def test_without_fill_nothing_is_owed_until_something_is_asked() -> None:
    session = opened(SyncPolicy(2))
    assert session.next_timer_at is None, "the drafter is at work, and the verifier waits for it"
    session.on_drafted([], 1.1)  # it says nothing, so the verifier is nudged
    assert session.next_timer_at == 1.1 + LONGEST


def test_a_slow_link_has_longer_for_its_answer() -> None:
    assert [patience_for(rtt) for rtt in (0.0, 0.1, 0.2, 0.25, 9.0)] == [1.0, 1.0, 1.6, 2.0, 2.0]
