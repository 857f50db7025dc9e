"""Laws of `Sharing`: a row must pay for all, and nobody pays for others more than drafts have won it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.session import Progress, VerifySession
from cloud_verifier.core.sharing import MOST_SAVED, Sharing
from common.messages import Propose, pack_logprob
from tests.cloud_verifier.core.bench import VOCAB, ask

BASE, PER_ROW = 0.030, 0.001  # seconds; a row costs a thirtieth of a step


def session(key: int, *chances: float, balance: float = 1.0, fill: bool = True) -> VerifySession:
    """One with a child of its tip for each of the chances."""
    found = VerifySession(key, ask(fill=fill), VOCAB, frozenset(), max_live=128, now=0.0)
    logprobs = bytes(pack_logprob(math.log(chance)) for chance in chances)
    tokens = tuple(range(1, 1 + len(chances)))
    found.receive(Propose(tokens, logprobs, (0,) * len(chances), 0), 0.0)
    found.balance = balance
    return found


def taught(max_slowdown: float = 0.02) -> Sharing:
    """It has seen what rows cost."""
    sharing = Sharing(max_slowdown)
    for num_rows in (1, 20) * 200:
        sharing.cost.sample(num_rows, 0, BASE + PER_ROW * (num_rows - 1))
    assert sharing.cost.per_row == pytest.approx(PER_ROW, rel=1e-3)
    return sharing


def drafts(
    sharing: Sharing, *sessions: VerifySession, share: int = 16, max_rows: int = 256
) -> dict[int, int]:
    """How many draft rows each gets."""
    picked = sharing.pick(sessions, sessions, max_rows, share).nodes
    assert all(nodes[0] is each.tree.tip for each, nodes in zip(sessions, picked.values(), strict=True))
    return {key: len(nodes) - 1 for key, nodes in picked.items()}


def test_alone_a_row_pays_if_it_is_likelier_than_its_cost_in_steps() -> None:
    assert drafts(taught(), session(1, 0.30, 0.05, 0.04, 0.02, 0.01)) == {1: 3}


def test_a_classic_block_is_taken_whole() -> None:
    assert drafts(taught(), session(1, 0.3, 0.01, 0.001, fill=False)) == {1: 3}
    assert drafts(taught(), session(1, 0.3, 0.01, fill=False), session(2, balance=0.0)) == {1: 0, 2: 0}


def test_a_row_that_is_almost_certain_is_tried_however_dear_it_seems() -> None:
    sharing = Sharing(0.02)
    for num_rows, duration in ((5, 2.0), (1, 0.005), (1, 0.005)):  # one step was slow for another reason
        sharing.cost.sample(num_rows, 0, duration)
    assert sharing.cost.per_row >= sharing.cost.predict(1, 0)
    assert drafts(sharing, session(1, 0.8, 0.15)) == {1: 1}


def on_a_processor() -> Sharing:
    """It has seen steps of a processor: the second row takes as long as the first, the next seven nothing."""
    sharing = Sharing(0.02)
    for rows in (1, 2, 4, 9, 17) * 60:
        sharing.cost.sample(rows, 0, {1: 0.122, 2: 0.260, 4: 0.234, 9: 0.270, 17: 0.287}[rows])
    return sharing


@pytest.mark.parametrize(
    ("chances", "num_rows"),
    [
        ([0.6], 0),
        ([0.8], 0),  # 1.8 tokens in 260 ms are fewer a second than one in 122 ms
        ([0.6, 0.1], 0),
        ([0.9, 0.6], 2),
        ([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2], 8),  # the line asks for 0.1 or so of each
        ([0.2] * 8, 8),
        ([0.1] * 8, 0),
    ],
)
def test_behind_a_dear_second_row_there_are_cheap_ones(chances: list[float], num_rows: int) -> None:
    assert drafts(on_a_processor(), session(1, *chances)) == {1: num_rows}


def test_what_is_left_of_dear_rows_must_still_pay() -> None:
    poor = session(2, balance=0.0)  # it bears no row of the others, so they get none
    assert drafts(on_a_processor(), session(1, *[0.9] * 8), poor) == {1: 0, 2: 0}


def test_rows_share_what_they_add_whatever_the_table() -> None:
    sharing = on_a_processor()
    loud, quiet = session(1, balance=1.0), session(2, balance=1.0)
    sharing.settle([brought(loud, 7, 2), brought(quiet, 0, 0)])
    added = sharing.cost.predict(9, 0) / sharing.cost.predict(2, 0) - 1
    assert loud.balance == pytest.approx(1.0 + 2 + 0.02)
    assert quiet.balance == pytest.approx(1.0 + 0.02 - added)


def test_the_more_sessions_wait_the_likelier_a_row_must_be() -> None:
    crowd = [session(key, 0.5, 0.2, 0.1, balance=MOST_SAVED) for key in range(1, 5)]
    # four sessions each lose PER_ROW of a step of BASE + 3 * PER_ROW: 0.12 tokens
    assert drafts(taught(), *crowd) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert drafts(taught(), crowd[0]) == {1: 3}


def test_a_session_that_has_won_nothing_bears_no_rows_of_others() -> None:
    poor = session(2, balance=0.0)
    assert drafts(taught(), session(1, 0.9, 0.8), poor) == {1: 0, 2: 0}


def test_its_own_rows_are_its_own_affair() -> None:
    poor, rich = session(1, 0.9, 0.8, balance=0.0), session(2, 0.7, balance=MOST_SAVED)
    assert drafts(taught(), poor, rich) == {1: 2, 2: 0}


def test_what_others_may_cost_it_is_what_it_has_left() -> None:
    poor = session(2, balance=0.1)  # of a step of 31 ms: three rows of a millisecond
    assert drafts(taught(), session(1, *[0.9] * 8, balance=0.0), poor) == {1: 3, 2: 0}


def brought(each: VerifySession, num_drafts: int, num_won: int) -> Progress:
    """What a step was for a session: its tip, so many drafts, of which so many were right."""
    return Progress(each, 0.0, num_outputs=1 + num_drafts, tokens=[0] * (1 + num_won))


def test_a_balance_is_what_was_won_less_what_others_cost() -> None:
    sharing, loud, quiet = taught(), session(1, balance=1.0), session(2, balance=1.0)
    sharing.settle([brought(loud, 10, 2), brought(quiet, 0, 0)])
    assert loud.balance == pytest.approx(1.0 + 2 + 0.02)
    assert quiet.balance == pytest.approx(1.0 + 0.02 - 10 / 31, rel=1e-3)


def test_one_that_reads_its_prompt_pays_as_far_as_it_is_not_kept_in_pace() -> None:
    sharing, loud, reading = taught(), session(1, balance=1.0), session(2, balance=1.0)
    reading.promised = 3.0  # of a step before its KV was dropped
    step = [brought(loud, 6, 2), Progress(reading, 0.0, num_rows=50)]
    sharing.settle(step, {2: 1.0})
    assert reading.balance == pytest.approx(1.0 + 0.02)
    sharing.settle(step, {2: 0.5})
    assert reading.balance == pytest.approx(1.0 + 0.04 - 6 / 30 / 2, rel=1e-3)
    assert reading.kept.ratio == 1.0


def test_what_drafts_add_to_a_step_is_told_as_a_share_of_its_tips() -> None:
    both = session(1, 0.9, 0.8), session(2)
    assert taught().pick(both, both, 256, 16).longer == pytest.approx(2 / 31, rel=1e-3)
    assert taught().pick(both[1:], both, 256, 16).longer == 0.0


def test_a_balance_does_not_grow_for_ever() -> None:
    sharing, each = taught(), session(1)
    for _ in range(10):
        sharing.settle([brought(each, 3, 3)])
    assert each.balance == MOST_SAVED


def test_an_edge_is_believed_as_far_as_it_was_right() -> None:
    sharing, honest, liar = taught(), session(1, 0.5), session(2, *[1.0] * 8)
    for _ in range(20):
        liar.promised = 8.0
        sharing.settle([brought(honest, 0, 0), brought(liar, 8, 0)])
    honest.balance = liar.balance = MOST_SAVED
    assert drafts(sharing, honest, liar) == {1: 1, 2: 0}


def test_one_that_was_right_more_often_than_it_said_is_taken_at_its_word() -> None:
    sharing, modest = taught(), session(1, 0.02)
    for _ in range(20):
        modest.promised = 0.1
        sharing.settle([brought(modest, 3, 3)])
    assert drafts(sharing, modest) == {1: 0}


def test_what_a_step_promises_is_the_chance_of_its_paths() -> None:
    sharing, each = taught(), session(1, 0.5, 0.25)
    sharing.pick([each], [each], 256, 16)
    assert each.promised == pytest.approx(0.75, rel=0.05)  # a chance has a byte on the wire
    each.tree.advance(9)  # neither was right
    sharing.pick([each], [each], 256, 16)
    assert each.promised == 0.0


def test_a_verifier_whose_steps_take_no_time_takes_every_row() -> None:
    sharing, poor = Sharing(0.02), session(2, balance=0.0)
    for _ in range(3):
        sharing.cost.sample(1, 0, 0.0)
        sharing.settle([brought(poor, 0, 0)])
    assert drafts(sharing, session(1, 0.9, 1e-6), poor) == {1: 2, 2: 0}


SESSION = st.tuples(st.lists(st.floats(1e-4, 1.0), max_size=6), st.floats(-0.5, MOST_SAVED))


@given(st.lists(SESSION, min_size=1, max_size=6), st.integers(1, 8), st.integers(6, 30), st.booleans())
def test_no_step_costs_anybody_more_than_it_has(
    crowd: list[tuple[list[float], float]], share: int, max_rows: int, uneven: bool
) -> None:
    sharing = on_a_processor() if uneven else taught()
    sessions = [
        session(key, *chances, balance=balance) for key, (chances, balance) in enumerate(crowd, start=1)
    ]
    given_rows = drafts(sharing, *sessions, share=share, max_rows=max_rows)
    total = sum(given_rows.values())
    assert total + len(sessions) <= max_rows
    bare = sharing.cost.predict(len(sessions), 0)
    added = max(0.0, sharing.cost.predict(len(sessions) + total, 0) - bare)
    for each in sessions:
        assert given_rows[each.key] < share
        lost = added * (1 - given_rows[each.key] / total) / bare if total else 0.0
        assert lost <= max(each.balance, 0.0) + 1e-9
