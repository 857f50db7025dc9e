"""Laws of the mode `device-only`: when it begins and ends, what its guess is, and that text stays text."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from common.errors import CapacityError, LocalError, UnavailableError
from common.messages import INITIAL_CREDIT, Commit, Finish, FinishReason, Opened
from common.sampling import SamplingParams
from edge_client.core.effects import (
    ChangeMode,
    Effect,
    Emit,
    Expand,
    Expansion,
    Fallback,
    Finished,
    Mode,
    ModeStatus,
    MoveTip,
    Preview,
    PreviewEnds,
    Probe,
    Reroot,
    Send,
    SessionConfig,
    Withdraw,
)
from edge_client.core.policies import AdaptivePolicy, AdaptiveSettings, GrowthPolicy, make_policy
from edge_client.core.policies.governor import STEPS_SAVED
from edge_client.core.session import EdgeSession
from schemes.policies.chain import ChainPolicy
from tests import wording

PROMPT = (7, 8)
GONE = UnavailableError("the link broke")
GUESS = "what follows is the draft's own guess, which no target has seen"


def make(
    policy: GrowthPolicy | None = None, sampling: SamplingParams | None = None, **config: object
) -> EdgeSession:
    settings = SessionConfig(
        PROMPT, sampling or SamplingParams(max_tokens=20), b"print", asks_when_silent=False
    )
    settings = replace(settings, **config)  # type: ignore[arg-type]  # many types
    return EdgeSession(settings, policy or chain(), luck=lambda number: 0.0)


def chain() -> ChainPolicy:
    return ChainPolicy(cut=0.5, max_depth=2)


def lost(policy: GrowthPolicy | None = None, **config: object) -> EdgeSession:
    """Opened at 0.0 with one draft step under way, the stream lost at 1.0; its effects taken."""
    session = make(policy, **config)  # type: ignore[arg-type]  # many types
    session.start(0.0)
    session.on_message(Opened(1, 32), 0.0)
    session.on_stream_lost(GONE, 1.0)
    session.effects()
    return session


def draft(session: EdgeSession, now: float, tokens: Sequence[int] = (5, 6), by: float = 1.0) -> list[Effect]:
    """Answer the `Expand` under way; the first candidate leads `by` nats."""
    busy = [node.id for node in session.tree.live.values() if node.busy]
    scores = tuple(-by * rank for rank in range(len(tokens)))
    session.on_drafted([Expansion(node, tuple(tokens), scores) for node in busy], now)
    session.check_integrity()
    return session.effects()


def timer(session: EdgeSession, now: float) -> list[Effect]:
    assert session.next_timer_at == pytest.approx(now)
    session.on_timer(session.next_timer_at or now)
    session.check_integrity()
    return session.effects()


def alone(tokens: Sequence[int] = (5, 6, 4), **config: object) -> EdgeSession:
    """Reconnecting since 1.1 without an answer and device-only since 2.0, `tokens` shown."""
    session = lost(**config)  # type: ignore[arg-type]  # many types
    timer(session, 1.1)
    draft(session, 1.2, tokens[:1])
    draft(session, 1.3, tokens[1:2])
    timer(session, 2.0)
    for number, token in enumerate(tokens[2:]):
        draft(session, 2.1 + 0.1 * number, (token,))
    assert preview(session) == list(tokens)
    return session


def test_a_draft_that_waits_for_text_guesses_while_no_verifier_answers() -> None:
    session = make(draft_waits=True)
    session.start(0.0)
    assert Expand not in kinds(session.effects())
    assert Expand in kinds(timer(session, 1.0))
    draft(session, 1.1)
    assert preview(session) == [5]


def kinds(effects: list[Effect]) -> list[type]:
    return [type(effect) for effect in unsent(effects)]


def preview(session: EdgeSession) -> list[int]:
    return list(session.preview)


def unsent(effects: list[Effect]) -> list[Effect]:
    """All but what goes to a stream that does not answer."""
    return [effect for effect in effects if not isinstance(effect, Send)]


# When it begins ---------------------------------------------------------------------------------------


def test_a_second_without_a_server_shows_what_was_drafted_and_drafts_on() -> None:
    session = lost()
    draft(session, 1.05)
    assert Preview not in kinds(timer(session, 1.1))
    draft(session, 1.2)
    effects = timer(session, 2.0)
    standing = ModeStatus(Mode.DEVICE_ONLY, f"the verifier has not answered for 1.0 s: {GUESS}")
    assert effects[:2] == [ChangeMode(standing), Preview(2, (5, 5))]
    assert kinds(effects[2:]) == [Expand]
    assert draft(session, 2.3)[0] == Preview(4, (5,))


def test_the_time_alone_counts_from_the_loss_and_not_from_each_attempt() -> None:
    session = lost()
    draft(session, 1.05)
    for now in (1.1, 1.5):
        session.on_timer(now)
        session.on_stream_lost(GONE, now + 0.2)
    session.on_timer(1.8)
    assert session.next_timer_at == pytest.approx(2.0)


@pytest.mark.parametrize("patience", [0.25, 4.0, None])
def test_patience_is_a_setting(patience: float | None) -> None:
    session = lost(patience=patience)
    session.on_timer(1.1)
    due = None if patience is None else 1.0 + patience
    assert session.next_timer_at == due


@pytest.mark.parametrize("fallback", list(Fallback))
def test_an_open_stream_is_a_server_however_long_it_is_silent(fallback: Fallback) -> None:
    session = make(fallback=fallback)
    session.start(0.0)
    session.on_message(Opened(1, 32), 0.9)
    assert session.next_timer_at is None
    assert Preview not in kinds(draft(session, 60.0))


def test_without_a_drafter_nobody_writes() -> None:
    session = lost()
    session.on_drafter_failed(LocalError("the model is gone"), 1.05)
    session.on_timer(1.1)
    assert session.next_timer_at is None
    assert not {Preview, Expand} & {type(each) for each in session.effects()}


# What it shows ----------------------------------------------------------------------------------------


def test_the_guess_is_the_drafts_first_choice_though_the_policy_left_it_out() -> None:
    session = lost(AdaptivePolicy(AdaptiveSettings(cut=0.5)))
    timer(session, 1.1)
    draft(session, 1.2, (5, 6, 4), by=0.1)  # none is worth 0.5
    assert session.tree.num_speculative == 0
    assert timer(session, 2.0)[1] == Preview(2, (5,))
    assert [node.token for node in session.tree.speculative()] == [5]


@pytest.mark.parametrize(
    ("sampling", "eos"),
    [
        (SamplingParams(stop_token_ids=(5,)), ()),
        (SamplingParams(), (5,)),
        (SamplingParams(stop_token_ids=(5,), ignore_eos=True), (6,)),
    ],
)
def test_it_ends_at_an_end_token(sampling: SamplingParams, eos: tuple[int, ...]) -> None:
    session = lost(sampling=sampling, eos_token_ids=eos)
    timer(session, 1.1)
    draft(session, 1.2, (6,) if eos == (6,) else (4,))
    draft(session, 1.3, (5,))
    effects = timer(session, 2.0)
    assert kinds(effects) == [ChangeMode, Preview, PreviewEnds]
    assert PreviewEnds(3, FinishReason.STOP) in effects


def test_it_has_a_greatest_length() -> None:
    session = lost(max_preview=3)
    timer(session, 1.1)
    draft(session, 1.2)
    timer(session, 2.0)
    draft(session, 2.1)
    assert unsent(draft(session, 2.2)) == [Preview(4, (5,)), PreviewEnds(4, None)]
    assert session.tree.num_speculative == 3


def test_it_may_run_to_the_end_of_a_long_text_and_says_once_that_it_has() -> None:
    session = lost(max_preview=None, sampling=SamplingParams(max_tokens=400))
    timer(session, 1.1)
    ends, now = list[Effect](), 2.0
    session.on_timer(now)
    while any(node.busy for node in session.tree.live.values()):
        now += 0.01
        ends += [effect for effect in draft(session, now) if isinstance(effect, PreviewEnds)]
    session.on_timer(now + 1.0)
    assert len(session.preview) == 400
    assert ends == [PreviewEnds(401, FinishReason.LENGTH)]


def test_the_power_budget_holds_and_a_timer_says_when_it_goes_on() -> None:
    session = lost(make_policy("adaptive:max_steps_per_second=2"), sampling=SamplingParams())
    session.on_timer(2.0)
    steps, now = 0, 2.0
    while now < 12.0:
        if any(node.busy for node in session.tree.live.values()):
            steps += 1
            now += 0.01
            draft(session, now)
        else:
            assert session.next_timer_at is not None
            assert session.next_timer_at > now
            now = session.next_timer_at
            session.on_timer(now)
    assert len(session.preview) == steps == 20 + STEPS_SAVED


# When it ends -----------------------------------------------------------------------------------------


def test_a_stream_that_opens_and_no_more_does_not_end_it() -> None:
    session = alone()
    session.on_message(Opened(1, 32), 3.0)
    assert ChangeMode not in kinds(session.effects())
    assert kinds(draft(session, 3.1))[0] is Preview
    session.on_stream_lost(GONE, 3.2)
    timer(session, 3.3)
    session.on_message(Opened(1, 32), 3.5)
    session.effects()
    session.on_message(Commit(2, (5,)), 4.0)
    assert session.effects()[:3] == [
        Emit(2, (5,), 0),
        ChangeMode(ModeStatus(Mode.AHEAD, "the verifier writes again after 3.0 s; the draft runs ahead")),
        MoveTip(Reroot(((2, 5),), ())),
    ]


@pytest.mark.parametrize(
    ("tokens", "void", "kept"),
    [((5, 6), None, [4]), ((5, 9), Withdraw(3, (6, 4)), []), ((5, 6, 4, 9), None, [])],
    ids=["confirmed", "refuted", "beyond the guess"],
)
def test_what_the_target_refutes_is_withdrawn_before_its_text_comes_and_the_rest_of_the_guess_stays(
    tokens: tuple[int, ...], void: Withdraw | None, kept: list[int]
) -> None:
    session = alone((5, 6, 4))
    session.on_message(Opened(1, 32), 3.0)
    session.effects()
    session.on_message(Commit(2, tokens), 3.1)
    shown = [each for each in session.effects() if isinstance(each, Emit | Withdraw)]
    assert shown == [*([void] if void else []), Emit(2, tokens, 0)]
    assert (preview(session), session.text) == (kept, tokens)
    session.check_integrity()


def test_a_text_that_ends_before_its_guess_takes_the_rest_back() -> None:
    session = alone((5, 6, 4))
    session.on_message(Opened(1, 32), 3.0)
    session.on_message(Commit(2, (5,)), 3.1)
    session.effects()
    session.on_message(Finish(FinishReason.STOP, 2), 3.1)
    assert session.effects() == [Withdraw(3, (6, 4)), Finished(FinishReason.STOP)]


def test_a_second_outage_goes_on_where_the_guess_stands() -> None:
    session = alone((5, 6, 4))
    session.on_message(Opened(1, 32), 3.0)
    session.on_message(Commit(2, (5,)), 3.1)
    session.on_stream_lost(GONE, 4.0)
    session.effects()
    assert preview(session) == [6, 4]
    timer(session, 4.1)
    effects = timer(session, 5.0)
    assert Preview not in kinds(effects), "nothing new is shown yet"
    assert draft(session, 5.1, (3,))[0] == Preview(5, (3,))
    assert preview(session) == [6, 4, 3]


# Afterwards -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["adaptive", "tree", "chain", "sync:4"])
def test_a_guess_that_is_right_becomes_text_as_fast_as_it_can_be_sent(policy: str) -> None:
    """A verifier that agrees takes what the policy sends, and a token more; alone it takes 60 turns."""
    session = lost(make_policy(policy), sampling=SamplingParams(max_tokens=60))
    timer(session, 1.1)
    for place in range(60):
        session.on_timer(2.0)
        draft(session, 2.0 + 0.01 * place, by=9.0)
    session.on_timer(2.6)
    assert preview(session) == [5] * 60
    session.on_stream_lost(GONE, 3.0)
    session.on_timer(4.0)
    assert session.view.num_sent <= INITIAL_CREDIT
    session.on_message(Opened(1, 8), 4.1)
    taken = 0
    while (tip := session.tree.tip_position) < 61:
        accepted = min(session.view.num_sent + 1, 61 - tip)
        session.on_message(Commit(tip + 1, (5,) * accepted, compute_us=30_000), 4.2 + taken * 0.1)
        session.check_integrity()
        taken += 1
    assert taken == 4, "32 nodes before Opened tells the credit, then 8 a turn"
    assert Withdraw not in kinds(session.effects())


# The other fallbacks ----------------------------------------------------------------------------------


def test_who_waits_is_told_so_once_and_reconnects_for_ever() -> None:
    session = lost(fallback=Fallback.WAIT)
    told = list[Effect]()
    for now in range(2, 300):
        session.on_timer(float(now))
        told += [effect for effect in session.effects() if isinstance(effect, ChangeMode | Preview)]
        session.on_stream_lost(GONE, now + 0.5)
    words = "the verifier has not answered for 1.0 s: the text goes on when one does"
    assert told == [ChangeMode(ModeStatus(Mode.WAITING, words))]
    session.on_timer(400.0)
    session.on_message(Opened(1, 32), 400.1)
    session.on_message(Commit(2, (5,)), 400.2)
    back = "the verifier writes again after 399.2 s; the draft runs ahead"
    assert ChangeMode(ModeStatus(Mode.AHEAD, back)) in session.effects()


def test_who_is_to_fail_ends_when_nobody_has_answered_for_its_patience() -> None:
    session = lost(fallback=Fallback.FAIL)
    session.on_timer(1.1)  # opening, and nobody answers
    session.effects()
    (finished,) = timer(session, 2.0)
    assert isinstance(finished, Finished)
    assert isinstance(finished.error, UnavailableError)
    wording.keep(str(finished.error))
    assert session.next_timer_at is None


def opening(**config: object) -> EdgeSession:
    """Its `Open` has left at 0.0 and is not answered; it asks when nothing comes."""
    session = make(asks_when_silent=True, patience=0.8, **config)  # type: ignore[arg-type]  # many types
    session.start(0.0)
    session.effects()
    return session


@pytest.mark.parametrize("fallback", list(Fallback))
def test_a_verifier_that_answers_and_has_not_opened_yet_is_a_server(fallback: Fallback) -> None:
    """It reads a vocabulary or a grammar; the fallback would show a dead verifier."""
    session = opening(fallback=fallback)
    now = 0.0
    for quiet in (0.4, 0.8, 1.6, 2.5, 2.5):
        assert Probe in kinds(timer(session, now + quiet))
        now += quiet + 0.1
        session.on_probed(True, now)
        assert not {Finished, ChangeMode} & set(kinds(session.effects()))
    session.on_message(Opened(1, 32), now)
    session.on_message(Commit(2, (5,)), now)
    assert Emit in kinds(session.effects())


def test_a_question_without_an_answer_begins_the_fallback_when_it_is_due() -> None:
    session = opening(fallback=Fallback.FAIL)
    timer(session, 0.4)
    session.on_probed(True, 0.5)
    timer(session, 1.3)
    (finished,) = timer(session, 1.7)
    assert isinstance(finished, Finished)
    assert isinstance(finished.error, UnavailableError)


def test_who_is_to_fail_gives_a_refusal_on_with_the_verifiers_advice() -> None:
    session = make(fallback=Fallback.FAIL)
    session.start(0.0)
    session.on_stream_lost(CapacityError("no room", retry_after=7.0), 0.25)
    session.on_timer(1.0)
    finished = session.effects()[-1]
    assert isinstance(finished, Finished)
    assert isinstance(finished.error, CapacityError)
    assert finished.error.retry_after == 7.0


def test_a_verifier_that_opens_and_drops_saves_nobody_from_failing() -> None:
    session = lost(fallback=Fallback.FAIL)
    session.on_timer(1.1)
    session.on_message(Opened(1, 32), 1.25)
    session.on_stream_lost(GONE, 5.0)
    session.on_timer(5.1)
    session.effects()
    (finished,) = timer(session, 5.75)
    assert isinstance(finished, Finished)
    wording.keep(str(finished.error))
