"""Laws of the edge session: what each input does in each state, and that no stream's end ends the text."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from common.acceptance import make_acceptance
from common.errors import CapacityError, LocalError, PeerError, UnavailableError, UserError
from common.messages import (
    INITIAL_CREDIT,
    Close,
    Commit,
    Drain,
    Finish,
    FinishReason,
    Open,
    Opened,
    Propose,
    TokenLogprobs,
)
from common.privacy import Privacy
from common.prompt_lookup import SharedTexts
from common.sampling import SamplingParams
from common.suffix_index import GrowingIndex
from common.tree import Node
from edge_client.core.draft_times import ENOUGH, DraftTimes
from edge_client.core.effects import (
    DEAR_MASKS,
    NOTHING_READ,
    ChangeMode,
    Connect,
    DraftRow,
    Effect,
    Emit,
    Expand,
    Expansion,
    Fallback,
    Finished,
    Mode,
    MoveTip,
    ReadingTime,
    Reroot,
    Send,
    SessionConfig,
    StartDrafter,
)
from edge_client.core.policies import (
    AdaptivePolicy,
    GrowthPolicy,
    GrowthView,
    OffPolicy,
    SyncPolicy,
    make_policy,
)
from edge_client.core.session import EdgeSession, StreamState
from schemes.policies.chain import ChainPolicy
from schemes.policies.tree import TreePolicy
from tests import wording

PROMPT = (7, 8)
CONFIG = SessionConfig(PROMPT, SamplingParams(max_tokens=20), b"print", session_id="s")
QUIET: dict[str, Any] = {"patience": None, "asks_when_silent": False}
GONE = UnavailableError("the link broke")
OUT_OF_PAPER = LocalError("out of paper")


def make(policy: GrowthPolicy | None = None, max_tokens: int = 20, **config: Any) -> EdgeSession:
    """Without the mode `device-only` and questions into silence, whose laws are those of test_offline.py and
    test_reconnect.py; pauses are the shortest."""
    settings = replace(CONFIG, sampling=SamplingParams(max_tokens=max_tokens), **QUIET)
    return EdgeSession(replace(settings, **config), policy or OffPolicy(), luck=lambda number: 0.0)


def opened(policy: GrowthPolicy | None = None, credit: int = 32, **config: Any) -> EdgeSession:
    """Open since 1.0, its effects taken."""
    session = make(policy, **config)
    session.start(0.0)
    session.on_message(Opened(session.tree.tip_position, credit), 1.0)
    session.effects()
    return session


@pytest.mark.parametrize(("position", "cached", "counted"), [(1, 1, 1), (1, 9, 2), (3, 3, 0)])
def test_what_was_cached_counts_for_the_prompt_alone(position: int, cached: int, counted: int) -> None:
    session = make()
    session.start(0.0)
    if position > 1:  # the second stream finds what the first one evaluated
        session.on_message(Opened(1, 32), 0.1)
        session.on_message(Commit(2, (5, 6)), 0.2)
        session.on_stream_lost(UnavailableError("gone"), 0.3)
        session.on_timer(session.next_timer_at or 0.0)
    session.on_message(Opened(position, 32, cached=cached), 9.0)
    assert session.stats.cached == counted


def told(**sampling: Any) -> EdgeSession:
    """Open, of at most four tokens below 10, of which the target ends its text with 0."""
    params = SamplingParams(max_tokens=4, **sampling)
    return opened(sampling=params, eos_token_ids=(0,), ends_are_told=True, vocab_size=10)


def chain() -> ChainPolicy:
    return ChainPolicy(cut=1e-6, max_depth=8)


def draft(
    session: EdgeSession, tokens: tuple[int, ...], now: float, reading: ReadingTime = NOTHING_READ
) -> list[Effect]:
    """Answer the `Expand` under way with the same candidates for each row."""
    busy = [node.id for node in session.tree.live.values() if node.busy]
    scores = tuple(-float(rank) for rank in range(len(tokens)))
    session.on_drafted([Expansion(node, tokens, scores) for node in busy], now, reading)
    session.check_integrity()
    return session.effects()


def proposals(effects: list[Effect]) -> list[Propose]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Propose)]


# The order of effects ---------------------------------------------------------------------------------


def test_a_session_begins_with_its_drafter_then_the_stream_then_the_first_draft() -> None:
    session = make(chain(), privacy=Privacy.OFF)
    session.start(0.0)
    sampling = SamplingParams(max_tokens=20)
    assert session.effects() == [
        StartDrafter(PROMPT, 1, sampling),
        Connect(),
        Send(Open(PROMPT, sampling, b"print", session_id="s", privacy=Privacy.OFF, hints=True)),
        Expand((DraftRow(1, None, 8, 1),)),
    ]
    assert session.effects() == [], "each is handed out once"


def test_a_commit_shows_the_text_then_moves_the_drafter_then_sends_then_drafts() -> None:
    session = make(SyncPolicy(1))
    session.start(0.0)
    draft(session, (5,), 0.1)
    session.on_message(Opened(1, 32), 0.2)
    session.effects()
    session.on_message(Commit(2, (5, 6), server_made=0b10, echo=1), 0.3)
    tip = session.tree.tip
    assert session.effects() == [
        Emit(2, (5, 6), 0b10),
        MoveTip(Reroot(((2, 5), (tip.id, 6)), ())),
        Expand((DraftRow(tip.id, None, 6, 3),)),
    ]


LATER: dict[str, Callable[[EdgeSession], None]] = {
    "plan": lambda s: s.plan(1.4),
    "drafted": lambda s: s.on_drafted([Expansion(1, (4,), (-1.0,))], 1.4),
    "failed": lambda s: s.on_drafter_failed(OUT_OF_PAPER, 1.4),
    "commit": lambda s: s.on_message(Commit(3, (6,)), 1.4),
    "lost": lambda s: s.on_stream_lost(GONE, 1.4),
    "timer": lambda s: s.on_timer(1.4),
    "ready": lambda s: s.on_ready(1.4),
    "close": lambda s: s.close(1.4),
    "fail": lambda s: s.fail(OUT_OF_PAPER, 1.4),
}


@pytest.mark.parametrize("name", LATER)
def test_without_a_plan_only_the_text_comes_and_any_later_input_books_it_as_of_its_arrival(name: str) -> None:
    session = opened(chain())
    draft(session, (5,), 1.1)  # node 2; then its children are being drafted
    session.on_message(Commit(2, (5,), echo=1, credit=7), 1.3, plan=False)
    assert session.effects() == [Emit(2, (5,), 0)]
    assert (session.text, session.stats.committed) == ((), 0)
    LATER[name](session)
    moves = [each for each in session.effects() if isinstance(each, MoveTip)]
    assert moves[0] == MoveTip(Reroot(((2, 5),), ()))
    assert session.text[:1] == (5,)
    assert session.stats.committed == len(session.text)
    assert session.view.rtt.latest_rtt == pytest.approx(0.2)  # from its Propose to its arrival
    session.check_integrity()


def test_what_a_commit_tells_of_its_tokens_is_shown_with_them_and_was_asked_for() -> None:
    session = make(SyncPolicy(1), logprobs=1)
    session.start(0.0)
    asked = [each.message for each in session.effects() if isinstance(each, Send)]
    assert [each.logprobs for each in asked if isinstance(each, Open)] == [1]
    session.on_message(Opened(1, 32), 0.2)
    session.effects()
    told = (TokenLogprobs(-0.5, ((5, -0.5),)), TokenLogprobs(-2.0, ((4, -0.25),)))
    session.on_message(Commit(2, (5, 6), logprobs=told), 0.3)
    assert Emit(2, (5, 6), 0, told) in session.effects()


def test_a_commit_tells_the_drafter_every_node_that_died() -> None:
    session = opened(TreePolicy(width=1, max_children=3, cut=1e-5))
    draft(session, (5, 6, 4), 1.1)
    session.on_message(Commit(2, (6,)), 1.2)
    assert session.effects()[1] == MoveTip(Reroot(((3, 6),), (2, 4)))
    session.check_integrity()


# A draft that waits -----------------------------------------------------------------------------------


def expands(effects: list[Effect]) -> list[Expand]:
    return [effect for effect in effects if isinstance(effect, Expand)]


@pytest.mark.parametrize("name", ["adaptive", "tree", "chain", "sync:2"])
@pytest.mark.parametrize("committed", [(), (3, 4)])
def test_a_draft_that_waits_begins_after_the_first_commit(name: str, committed: tuple[int, ...]) -> None:
    session = make(make_policy(name), draft_waits=True, committed=committed)
    for _ in range(ENOUGH):
        session.view.pace.cores.sample(0.0, 0.03)  # an earlier text has shown the target's own steps
    session.start(0.0)
    opening = session.effects()
    tip = session.tree.tip_position
    session.on_message(Opened(tip, 32), 1.0)
    opening += session.effects()
    assert not expands(opening)
    assert bool(proposals(opening)) is (name == "sync:2"), "a verifier without fill is asked to go on"
    session.on_message(Commit(tip + 1, (5,)), 1.2, plan=False)
    assert not expands(session.effects()), "the text goes out first"
    session.plan(1.2)
    (expand,) = expands(session.effects())
    assert expand.rows[0].token == 5


def test_the_first_text_shows_the_targets_own_steps_before_the_draft_shares_its_cores() -> None:
    session = make(make_policy("adaptive"), draft_waits=True)
    session.start(0.0)
    session.on_message(Opened(1, 32), 1.0)
    at = 1.0
    for place in range(1 + ENOUGH):
        at += 0.03
        session.on_message(Commit(2 + place, (5,), compute_us=30_000, evaluated=1), at)
        assert bool(expands(session.effects())) is (place >= ENOUGH)
    assert session.view.pace.cores.knows_alone


@pytest.mark.parametrize("step", [0.009, 0.002])
def test_drafts_of_the_first_text_leave_when_the_target_shows_what_they_cost_or_soon(step: float) -> None:
    session = make(make_policy("adaptive"), draft_waits=True)
    session.start(0.0)
    session.on_message(Opened(1, 32), 0.001)
    place, drafts = 0, bool(expands(session.effects()))
    sent: list[Propose] = []
    while not any(message.tokens for message in sent) and place < 4 * ENOUGH:
        at = 0.03 * place
        while drafts and at + step < 0.03 * (place + 1):
            effects = draft(session, (5, 8), at := at + step)
            drafts, sent = bool(expands(effects)), sent + proposals(effects)
        at, place = 0.03 * (place + 1), place + 1
        session.on_message(Commit(1 + place, (5,), compute_us=30_000, evaluated=1), at)
        effects = session.effects()
        drafts, sent = drafts or bool(expands(effects)), sent + proposals(effects)
    assert place == 1 + 2 * ENOUGH, "after as many steps alone, and as many beside the draft"


@pytest.mark.parametrize("shares", [True, False])
def test_target_steps_beside_a_draft_step_are_told_from_those_alone(shares: bool) -> None:
    session = opened(chain(), draft_waits=shares)
    cores = session.view.pace.cores
    for _ in range(ENOUGH):
        cores.sample(0.0, 0.03)
    at = 1.1
    session.on_message(Commit(2, (5,)), at)
    assert bool(expands(session.effects())) is shares, "else the draft has begun; in both cases it goes on"
    for place in range(ENOUGH):
        at += 0.08
        session.on_message(Commit(3 + place, (5,), compute_us=80_000, evaluated=1), at)
    assert cores.cost(1.0) == pytest.approx(1.0 - 3 / 8 if shares else 0.0)


def test_a_later_stream_finds_a_draft_that_need_not_wait() -> None:
    session = opened(chain(), draft_waits=True)
    session.on_message(Commit(2, (5,)), 1.1)
    draft(session, (6,), 1.2)
    draft(session, (), 1.3)
    session.on_stream_lost(GONE, 1.4)
    session.on_timer(session.next_timer_at or 0.0)
    session.on_message(Opened(2, 32), 2.0)
    session.on_message(Commit(3, (9,)), 2.1)
    assert expands(session.effects())


# States -----------------------------------------------------------------------------------------------

INPUTS: dict[str, Callable[[EdgeSession], None]] = {
    "start": lambda s: s.start(9.0),
    "opened": lambda s: s.on_message(Opened(1, 8), 9.0),
    "commit": lambda s: s.on_message(Commit(2, (5,)), 9.0),
    "finish": lambda s: s.on_message(Finish(FinishReason.STOP, 1), 9.0),
    "drain": lambda s: s.on_message(Drain(), 9.0),
    "lost": lambda s: s.on_stream_lost(GONE, 9.0),
    "refused": lambda s: s.on_stream_lost(UserError("no such model"), 9.0),
    "timer": lambda s: s.on_timer(9.0),
    "close": lambda s: s.close(9.0),
    "fail": lambda s: s.fail(OUT_OF_PAPER, 9.0),
}
ALLOWED: dict[StreamState, dict[str, StreamState]] = {
    StreamState.NEW: {
        "start": StreamState.OPENING,
        "timer": StreamState.NEW,
        "close": StreamState.OVER,
        "fail": StreamState.OVER,
    },
    StreamState.OPENING: {
        "opened": StreamState.OPEN,
        "drain": StreamState.LOST,
        "lost": StreamState.LOST,
        "refused": StreamState.OVER,
        "timer": StreamState.OPENING,
        "close": StreamState.OVER,
        "fail": StreamState.OVER,
    },
    StreamState.OPEN: {
        "commit": StreamState.OPEN,
        "finish": StreamState.OVER,
        "drain": StreamState.LOST,
        "lost": StreamState.LOST,
        "refused": StreamState.OVER,
        "timer": StreamState.OPEN,
        "close": StreamState.OVER,
        "fail": StreamState.OVER,
    },
    StreamState.LOST: {
        **dict.fromkeys(("opened", "commit", "finish", "drain", "lost", "refused"), StreamState.LOST),
        "timer": StreamState.OPENING,
        "close": StreamState.OVER,
        "fail": StreamState.OVER,
    },
    StreamState.OVER: dict.fromkeys(INPUTS.keys() - {"start"}, StreamState.OVER),
}
PEER_AT_FAULT = {
    (StreamState.OPENING, "commit"),
    (StreamState.OPENING, "finish"),
    (StreamState.OPEN, "opened"),
}


def in_state(state: StreamState) -> EdgeSession:
    session = make()
    if state is not StreamState.NEW:
        session.start(0.0)
    if state in (StreamState.OPEN, StreamState.LOST, StreamState.OVER):
        session.on_message(Opened(1, 32), 1.0)
    if state is StreamState.LOST:
        session.on_stream_lost(GONE, 2.0)
    if state is StreamState.OVER:
        session.close(2.0)
    session.effects()
    assert session.state is state
    return session


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("state", StreamState)
def test_each_input_in_each_state(state: StreamState, name: str) -> None:
    session = in_state(state)
    if name in ALLOWED[state]:
        INPUTS[name](session)
        assert session.state is ALLOWED[state][name]
        if state is StreamState.OVER:
            assert (session.effects(), session.next_timer_at) == ([], None), "nothing follows the end"
    else:
        with wording.raises(PeerError if (state, name) in PEER_AT_FAULT else LocalError):
            INPUTS[name](session)
        assert session.state is state
        assert session.effects() == []


def test_a_draft_nobody_asked_for_is_our_own_fault() -> None:
    with wording.raises(LocalError):
        opened().on_drafted([], 2.0)
    with wording.raises(LocalError):
        opened().on_drafter_failed(GONE, 2.0)


# Text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Commit(3, (5,)),
        Commit(1, (5,)),
        Commit(2, (5,) * 5),
        Finish(FinishReason.LENGTH, 2),
        Finish(FinishReason.LENGTH, 1),
        Finish(FinishReason.CANCELLED, 1),
        Finish(FinishReason.STOP, 1),
        Commit(2, (5, 10)),
        Commit(2, (5,), logprobs=(TokenLogprobs(-1.0, ((10, -1.0),)),)),
    ],
)
def test_a_verifier_that_breaks_the_protocol_is_named_and_changes_nothing(
    message: Opened | Commit | Finish,
) -> None:
    session = told()
    with wording.raises(PeerError):
        session.on_message(message, 1.1)
    assert session.text == ()
    assert session.effects() == []


@pytest.mark.parametrize(
    ("tokens", "reason", "is_allowed"),
    [
        ((5, 0), FinishReason.STOP, True),
        ((5, 7), FinishReason.STOP, True),
        ((0, 5), FinishReason.STOP, False),
        ((5, 6, 5, 6), FinishReason.LENGTH, True),
        ((5, 6, 5), FinishReason.LENGTH, False),
        ((5, 0), FinishReason.CANCELLED, False),
    ],
)
def test_a_text_ends_with_what_its_end_says(
    tokens: tuple[int, ...], reason: FinishReason, is_allowed: bool
) -> None:
    session = told(stop_token_ids=(7,))
    session.on_message(Commit(2, tokens), 1.1)
    finish = Finish(reason, 1 + len(tokens))
    if is_allowed:
        session.on_message(finish, 1.2)
        assert session.effects()[-1] == Finished(reason)
    else:
        with wording.raises(PeerError):
            session.on_message(finish, 1.2)


@pytest.mark.parametrize("position", [0, 2])
def test_a_session_opened_elsewhere_is_refused(position: int) -> None:
    session = in_state(StreamState.OPENING)
    with wording.raises(PeerError):
        session.on_message(Opened(position, 32), 0.1)


# Time -------------------------------------------------------------------------------------------------


def test_the_first_round_trip_is_open_to_opened_less_the_hold() -> None:
    session = make()
    session.start(10.0)
    session.on_message(Opened(1, 32, hold_us=250_000), 11.0)
    assert (session.view.rtt.latest_rtt, session.view.rtt.num_samples) == (0.75, 1)


def test_reading_is_no_part_of_a_draft_steps_pace() -> None:
    """A prompt takes half a minute on a small device. As a step's pace it would end all drafting."""
    session = opened(chain())
    pace = session.view.pace
    usual = pace.rows.predict(1)
    draft(session, (5,), 30.0, ReadingTime(500, 29.0))
    assert pace.rows.predict(1) == usual
    assert pace.reads.predict(500) == pytest.approx(29.0, rel=0.02)
    assert session.stats.read == 500
    draft(session, (5,), 30.007)
    assert pace.rows.predict(1) == pytest.approx(0.007, rel=0.01)


def test_a_step_with_dear_masks_is_no_sample_of_the_pace() -> None:
    session = opened(chain())
    for at in (1.007, 1.014):
        draft(session, (5,), at)
    usual = session.view.pace.rows.predict(1)
    draft(session, (5,), 1.414, DEAR_MASKS)
    assert session.view.pace.rows.predict(1) == usual


def test_a_first_step_after_a_rest_is_no_sample_of_the_pace() -> None:
    session = opened(ChainPolicy(max_depth=2))
    for at in (1.007, 1.014):
        draft(session, (5,), at)
    usual = session.view.pace.rows.predict(1)
    session.on_message(Commit(2, (5, 5), server_made=0), 3.0)
    draft(session, (5,), 3.09)
    assert session.view.pace.rows.predict(1) == usual
    assert not session.view.is_paced


def test_a_draft_that_comes_too_late_still_tells_how_good_the_draft_is() -> None:
    """Far from the verifier each look ends after the text went on. If it told nothing, the device would rest
    for ever."""
    session = opened(chain())
    begun, usual = session.tree.tip.id, session.view.survival.mean
    session.on_message(Commit(2, (5, 6, 7), server_made=7), 1.1)
    session.on_drafted([Expansion(begun, (4, 5, 6), (0.0, -9.0, -9.5))], 1.2)
    assert session.view.survival.mean > usual  # it was sure of itself
    assert session.calibration.num_observed == 1  # and wrong
    assert session.calibration.confidence.sharpness < make().calibration.confidence.sharpness


def test_what_the_draft_has_not_read_is_counted() -> None:
    """The verifier wrote three tokens; the draft had only seen the first."""
    session = opened(chain())
    assert session.view.num_unread == len(CONFIG.prompt) - 1
    draft(session, (5,), 1.1)
    assert session.view.num_unread == 0
    session.on_message(Commit(2, (5, 6, 7), server_made=6), 1.2)
    draft(session, (), 1.3)  # of the node with 5, which has become text meanwhile
    assert session.view.num_unread == 1


def reading(length: int, max_tokens: int, **config: int) -> tuple[EdgeSession, list[Effect]]:
    """A session just begun whose prompt is so long, at 6 ms a token, and what it did."""
    pace = DraftTimes()
    for _ in range(20):
        pace.reads.sample(length, 0.006 * length)
    long = replace(CONFIG, prompt=(7,) * length, sampling=SamplingParams(max_tokens=max_tokens), **config)  # type: ignore[arg-type]  # fields vary by case
    session = EdgeSession(long, chain(), pace=pace)
    session.start(0.0)
    return session, session.effects()


def test_a_text_that_cannot_be_read_before_its_end_is_not_drafted_and_the_mode_says_why() -> None:
    _, effects = reading(4000, 100)
    assert not [each for each in effects if isinstance(each, Expand)]
    (told,) = [each for each in effects if isinstance(each, ChangeMode)]
    assert told.standing.mode is Mode.SERVER_ONLY
    assert "4" in told.standing.why
    _, kept = reading(4000, 100, num_read=3990)
    assert [each for each in kept if isinstance(each, Expand)]


def test_while_a_long_prompt_is_read_the_mode_says_so() -> None:
    session, effects = reading(1000, 2000)
    assert [each.standing.mode for each in effects if isinstance(each, ChangeMode)] == [Mode.SERVER_ONLY]
    session.on_message(Opened(999, 32), 0.1)
    session.on_drafted([Expansion(1, (5,), (0.0,))], 6.0, ReadingTime(999, 6.0))
    assert [e.standing.mode for e in session.effects() if isinstance(e, ChangeMode)] == [Mode.AHEAD]


def test_the_verifier_s_own_reading_is_no_part_of_a_turn() -> None:
    session = opened(chain())
    turn, step = session.view.turn.smoothed, session.view.step_time.predict(1)
    session.on_message(Commit(2, (5,), compute_us=4_000_000, evaluated=1), 5.0)
    assert (session.view.turn.smoothed, session.view.step_time.predict(1)) == (turn, step)
    session.on_message(Commit(3, (5,), queue_us=5_000, compute_us=20_000, evaluated=1), 5.1)
    assert session.view.turn.smoothed == pytest.approx(0.025)
    session.on_stream_lost(GONE, 6.0)
    session.on_timer(7.0)
    session.on_message(Opened(3, 32), 7.0)
    step = session.view.step_time.predict(1)
    session.on_message(Commit(4, (5,), compute_us=4_000_000, evaluated=1), 11.0)
    assert session.view.step_time.predict(1) == step, "a resumed text is read, too"


def test_an_echo_gives_one_sample_from_the_newest_propose_it_names() -> None:
    session = opened(chain())
    rtt = session.view.rtt
    draft(session, (5,), 2.0)  # Propose 1
    draft(session, (5,), 2.5)  # Propose 2
    draft(session, (5,), 3.0)  # Propose 3
    session.on_message(Commit(2, (5,), echo=2, hold_us=125_000), 3.125)
    assert (rtt.latest_rtt, rtt.num_samples) == (0.5, 2)
    session.on_message(Commit(3, (5,), echo=2, hold_us=1), 4.0)
    assert rtt.num_samples == 2, "an echo that repeats gives no sample"
    session.on_message(Commit(4, (5,), echo=3, hold_us=250_000), 4.25)
    assert (rtt.latest_rtt, rtt.num_samples) == (1.0, 3)


def test_only_text_counts_attempts_anew() -> None:
    session = make(max_attempts=2)
    session.start(0.0)
    for now in (1.0, 2.0):
        session.on_stream_lost(GONE, now)
        session.on_timer(now + 0.9)
    session.on_message(Opened(1, 32), 3.0)
    session.on_message(Commit(2, (5,)), 3.1)
    session.on_stream_lost(GONE, 4.0)
    session.on_timer(4.9)
    session.on_message(Opened(2, 32), 5.0)  # a verifier that opens and drops would be tried for ever
    session.on_stream_lost(GONE, 6.0)
    session.on_timer(6.9)
    session.on_stream_lost(GONE, 7.0)
    assert session.state is StreamState.OVER


def test_another_verifier_is_asked_at_once_also_if_it_turns_up_in_a_pause() -> None:
    session = opened()
    session.on_stream_lost(GONE, 2.0, elsewhere=True)
    assert session.next_timer_at == 2.0
    session = in_state(StreamState.LOST)
    session.effects()
    session.on_ready(2.01)
    assert session.state is StreamState.OPENING
    assert [type(effect) for effect in session.effects()] == [Connect, Send]
    session.on_ready(2.02)
    assert session.effects() == [], "there is a stream already"


def test_a_drain_is_left_at_once_and_only_once() -> None:
    session = opened()
    session.on_message(Drain(), 2.0)
    assert session.next_timer_at == 2.0
    session.on_timer(2.0)
    session.on_message(Drain(), 2.5)  # still no text: it would be asked as fast as it answers
    assert session.next_timer_at == 2.6


def test_a_refusal_is_not_tried_again_before_the_verifiers_own_time() -> None:
    session = opened()
    session.on_stream_lost(CapacityError("full", retry_after=3.0), 2.0)
    assert session.next_timer_at == 5.0
    session.on_ready(2.5)  # another one: what the first asked for is not its affair
    assert session.state is StreamState.OPENING


# Text that is there when the session begins -----------------------------------------------------------


def test_a_timer_that_is_early_does_nothing() -> None:
    session = in_state(StreamState.LOST)
    session.on_timer(2.09)
    assert (session.state, session.next_timer_at) == (StreamState.LOST, 2.1)
    session.on_timer(2.1)
    assert session.state is StreamState.OPENING
    assert session.next_timer_at is None


def test_a_drain_is_followed_by_a_reconnect_though_its_stream_ends_meanwhile() -> None:
    session = opened()
    session.on_message(Drain(grace_us=1_000_000), 2.0)
    session.on_message(Commit(2, (5,)), 2.01)
    session.on_stream_lost(UnavailableError("the stream was ended"), 2.05)
    assert session.effects() == []
    session.on_timer(2.1)
    effects = session.effects()
    assert effects[0] == Connect()
    assert session.text == (), "a Commit of the stream given up is asked for again"


# Resuming ---------------------------------------------------------------------------------------------


def test_a_resumed_stream_tells_everything_and_sends_live_nodes_with_new_numbers() -> None:
    session = opened(chain())
    for now in (1.1, 1.2, 1.3):
        draft(session, (5,), now)
    session.on_message(Commit(2, (5,), echo=1, credit=4), 1.4)
    session.on_stream_lost(GONE, 1.5)
    draft(session, (6,), 1.55)
    session.effects()
    session.on_timer(1.6)
    effects = session.effects()
    assert effects[0] == Connect()
    assert isinstance(effects[1], Send)
    assert isinstance(effects[1].message, Open)
    assert effects[1].message.committed == (5,)
    (propose,) = proposals(effects)
    assert (propose.tokens, propose.anchor, propose.seen_advance) == ((5, 5, 6), 2, 0)
    assert [node.wire_id for node in session.tree.speculative()] == [1, 2, 3]
    assert session.view.credit == INITIAL_CREDIT
    assert session.stats.resumes == 1
    session.check_integrity()


def test_while_the_stream_is_lost_drafting_goes_on_and_nothing_is_sent() -> None:
    session = opened(chain())
    session.on_stream_lost(GONE, 1.5)
    session.effects()
    assert [type(effect) for effect in draft(session, (5,), 1.6)] == [Expand]


def test_echoes_count_from_the_new_stream() -> None:
    session = opened(chain())
    draft(session, (5,), 2.0)
    session.on_stream_lost(GONE, 2.5)
    session.on_timer(2.6)  # Propose 1 of the new stream
    session.on_message(Opened(1, 32), 2.75)
    session.on_message(Commit(2, (5,), echo=1), 3.6)
    assert session.view.rtt.latest_rtt == pytest.approx(1.0)


# Credit and what was seen -----------------------------------------------------------------------------


def test_no_more_is_sent_than_the_credit() -> None:
    session = opened(chain(), credit=2)
    for now in (1.1, 1.2, 1.3):
        if any(node.busy for node in session.tree.live.values()):
            draft(session, (5,), now)
    assert session.stats.proposed == 2
    session.on_message(Commit(2, (5,), credit=4), 1.4)
    session.effects()
    sent = 0
    while any(node.busy for node in session.tree.live.values()):
        sent += sum(len(p.tokens) for p in proposals(draft(session, (5,), 1.5)))
    assert sent == 3
    assert session.view.num_sent == 4


def test_many_nodes_are_sent_in_several_messages() -> None:
    session = make(TreePolicy(width=1, max_children=600, cut=1e-9))
    session.start(0.0)
    session.on_message(Opened(1, 1000), 0.5)
    session.effects()
    messages = proposals(draft(session, tuple(range(600)), 0.6))
    assert [len(message.tokens) for message in messages] == [256, 256, 88]
    assert session.view.num_sent == 600


# Nudges -----------------------------------------------------------------------------------------------


class PatientChain(AdaptivePolicy):
    """Sends nothing that could leave with what a draft step brings, and else as a chain."""

    def __init__(self, max_depth: int) -> None:
        super().__init__()
        chain = ChainPolicy(cut=1e-6, max_depth=max_depth)
        self.branch, self.expand, self._send = chain.branch, chain.expand, chain.send  # type: ignore[method-assign]
        self.ends_at = 0.0
        self.num_asked = 0  # what to send

    def can_wait(self, view: GrowthView, draft_ends_at: float) -> bool:
        self.ends_at = draft_ends_at
        return True

    def send(self, view: GrowthView) -> Sequence[Node]:
        self.num_asked += 1
        return self._send(view)


def test_what_waits_for_a_draft_step_leaves_in_one_message_when_drafting_rests() -> None:
    policy = PatientChain(max_depth=3)
    session = make(policy)
    session.start(0.0)
    session.effects()
    assert not proposals(draft(session, (5,), 0.1)), "another draft step has begun"
    assert not proposals(draft(session, (5,), 0.2))
    assert [message.tokens for message in proposals(draft(session, (5,), 0.3))] == [(5, 5, 5)]
    assert session.stats.proposes == policy.num_asked == 1


def test_nothing_waits_for_a_drafter_that_has_failed() -> None:
    session = make(PatientChain(max_depth=8))
    session.start(0.0)
    session.effects()
    draft(session, (5,), 0.1)
    session.on_drafter_failed(OUT_OF_PAPER, 0.2)
    assert [message.tokens for message in proposals(session.effects())] == [(5,)]


def test_a_session_without_fill_asks_once_a_commit_for_a_step_without_a_draft() -> None:
    session = opened(SyncPolicy(2))
    assert proposals(draft(session, (), 1.1)) == [Propose()]
    session.on_message(Commit(2, (5,), 1, echo=1), 1.2)
    session.effects()
    assert proposals(draft(session, (), 1.3)) == [Propose(seen_advance=1)]


def test_a_drafter_that_fails_leaves_the_text_to_the_verifier() -> None:
    session = opened(SyncPolicy(2))
    session.on_drafter_failed(LocalError("the model is gone"), 1.1)
    nudge, told = session.effects()
    assert nudge == Send(Propose())
    assert isinstance(told, ChangeMode)
    assert told.standing.mode is Mode.SERVER_ONLY
    wording.keep(told.standing.why)
    session.on_message(Commit(2, (5,), 1, echo=1), 1.2)
    text, _, *rest = session.effects()
    assert (text, rest) == (Emit(2, (5,), 1), [Send(Propose(seen_advance=1))])
    assert session.state is StreamState.OPEN


# Ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [each for each in StreamState if each is not StreamState.OVER])
def test_closing_and_failing_say_goodbye_once_to_a_stream(state: StreamState) -> None:
    for end, finished in (
        ("close", Finished(FinishReason.CANCELLED)),
        ("fail", Finished(None, OUT_OF_PAPER)),
    ):
        session = in_state(state)
        for again in (end, "close", "fail"):
            INPUTS[again](session)
        goodbye = [Send(Close())] if state in (StreamState.OPENING, StreamState.OPEN) else []
        assert session.effects() == [*goodbye, finished]


# Settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ()),
        ("patience", 0.0),
        ("fallback", Fallback.FAIL),
        ("logprobs", 21),
        ("committed", (5,) * 600),
    ],
)
def test_a_bad_setting_is_named(field: str, value: float | tuple[int, ...] | Fallback) -> None:
    good = SessionConfig(PROMPT, SamplingParams(), b"", patience=None)
    with wording.raises(UserError):
        replace(good, **{field: value})  # type: ignore[arg-type]  # one of several types


# What the session learns of its draft -----------------------------------------------------------------


def test_committed_tokens_teach_the_session_how_far_to_trust_its_draft() -> None:
    session = opened(chain())
    before = session.calibration.confidence.sharpness
    draft(session, (5, 6), 1.1)  # after the tip: 5 is best
    draft(session, (5, 6), 1.2)
    session.on_message(Commit(start=2, tokens=(6,), server_made=1, echo=1), 1.3)  # the runner-up it was
    assert session.calibration.num_observed == 1
    assert session.calibration.confidence.sharpness < before


def test_a_draft_whose_scores_are_no_numbers_proposes_nothing_and_teaches_nothing() -> None:
    session = opened(chain())
    busy = [node.id for node in session.tree.live.values() if node.busy]
    session.on_drafted([Expansion(node, (5, 6), (float("nan"), 0.0)) for node in busy], 1.1)
    assert session.tree.num_speculative == 0
    session.on_message(Commit(start=2, tokens=(6,), server_made=1), 1.3)
    assert session.calibration.num_observed == 0
    session.check_integrity()


# Guesses ------------------------------------------------------------------------------------------------

DRAWN: dict[str, Any] = {
    "sampling": SamplingParams(temperature=1.0, max_tokens=20),
    "acceptance": make_acceptance("specinfer"),
}

COPIED = (11, 12, 13, 14, 15, 16, 1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16)
"""A prompt whose end stood at its beginning."""


def guessing(policy: GrowthPolicy) -> EdgeSession:
    config = SessionConfig(COPIED, SamplingParams(max_tokens=20), b"print", recall=True)
    session = EdgeSession(config, policy)
    session.start(0.0)
    return session


def test_what_the_text_repeats_is_sent_with_the_open_and_takes_no_draft() -> None:
    session = guessing(TreePolicy())
    (message,) = proposals(session.effects())
    assert message.tokens[:3] == (1, 2, 3)
    assert message.anchor == 17
    assert session.stats.draft_steps == 0


def test_guesses_follow_each_commit_though_the_drafter_has_failed() -> None:
    session = guessing(TreePolicy())
    session.on_message(Opened(17, 64), 0.1)
    session.on_drafter_failed(OUT_OF_PAPER, 0.2)
    session.effects()
    session.on_message(Commit(18, (11, 12)), 0.3)  # not what was guessed
    (message,) = proposals(session.effects())
    assert message.tokens[:2] == (13, 14)
    assert message.anchor == 19
    session.check_integrity()


def test_the_draft_evaluates_what_a_guess_hangs_below() -> None:
    """The newest leaf is several guesses deep."""
    session = guessing(ChainPolicy(cut=1e-6, max_depth=40))
    (expand,) = (effect for effect in session.effects() if isinstance(effect, Expand))
    rows = [(row.parent, row.token, row.position) for row in expand.rows]
    guessed = [node.id for node in session.tree.speculative()]
    assert [token for _, token, _ in rows] == [16, *COPIED[6 : 6 + len(guessed)]]
    assert [parent for parent, _, _ in rows] == [None, session.tree.tip.id, *guessed[:-1]]


def test_near_the_tip_the_draft_says_the_tokens_and_behind_its_path_the_copied_text() -> None:
    """The horizontal cascade of CS Drafting (arXiv 2312.11462), with a statistical model for the tail: the
    position of a node decides which drafter says it. Then the draft evaluates the tail as one batch."""
    config = SessionConfig((*COPIED[:6], 9), SamplingParams(max_tokens=20), b"print", recall=True)
    session = EdgeSession(config, ChainPolicy(cut=1e-6, max_depth=40))
    session.start(0.0)
    assert session.tree.num_speculative == 0, "nothing followed a 9"
    effects = session.effects()
    for token in (11, 12, 13):
        assert [node.token for node in session.tree.speculative()] == list(range(11, token))
        effects = draft(session, (token,), 0.1)
    assert [node.token for node in session.tree.speculative()] == list(config.prompt)
    (expand,) = (effect for effect in effects if isinstance(effect, Expand))
    assert [row.token for row in expand.rows] == list(config.prompt[2:])


@pytest.mark.parametrize("agrees", [True, False])
def test_the_draft_accepts_and_rejects_guesses(agrees: bool) -> None:
    """Staged speculation, arXiv 2308.04623: the second stage verifies what the first one copied."""
    session = guessing(TreePolicy())
    guess = next(session.tree.speculative())
    before = guess.logprob
    draft(session, (guess.token if agrees else 99,), 0.1)
    assert (guess.logprob > before) is agrees
    assert guess.logprob != before
    session.check_integrity()


@pytest.mark.parametrize("policy", [OffPolicy(), SyncPolicy(2), TreePolicy()])
@pytest.mark.parametrize("drawn", [False, True])
def test_the_plain_service_the_classic_scheme_and_drawn_drafts_are_not_helped(
    policy: GrowthPolicy, drawn: bool
) -> None:
    """A guess that a draw finds again would be no draw any more."""
    session = make(policy, prompt=COPIED, recall=True, **DRAWN if drawn else {})
    session.start(0.0)
    assert (session.tree.num_speculative > 0) is (isinstance(policy, TreePolicy) and not drawn)


def test_a_device_guesses_from_what_it_wrote_before() -> None:
    shared = SharedTexts(GrowingIndex(capacity=100))
    first = EdgeSession(
        SessionConfig((5,), SamplingParams(max_tokens=9), b"print", recall=True), chain(), shared
    )
    first.start(0.0)
    first.on_message(Opened(0, 64), 0.1)
    first.on_message(Commit(1, (6, 4, 9, 3)), 0.2)
    first.close(0.3)
    later = SessionConfig((2, 5), SamplingParams(max_tokens=9), b"print", recall=True)
    session = EdgeSession(later, chain(), shared)
    session.start(0.0)
    session.on_message(Opened(1, 64), 0.1)
    session.on_drafter_failed(OUT_OF_PAPER, 0.2)
    session.on_message(Commit(2, (6, 4)), 0.3)
    assert [node.token for node in session.tree.speculative()] == [9, 3]


def test_beside_a_draft_model_only_likely_guesses_count() -> None:
    """Two tokens that stood there before foretell the next one time in three, as far as is known at first."""
    config = SessionConfig((1, 2, 3, 4, 5, 1, 2), SamplingParams(max_tokens=20), b"print", recall=True)
    session = EdgeSession(config, chain())
    session.start(0.0)
    assert session.tree.num_speculative == 0
    session.on_message(Opened(6, 64), 0.1)
    session.on_drafter_failed(OUT_OF_PAPER, 0.2)
    session.on_message(Commit(7, (3,)), 0.3)
    assert [node.token for node in session.tree.speculative()][:1] == [4]
