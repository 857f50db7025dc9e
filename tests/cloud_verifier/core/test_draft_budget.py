"""Laws of drafts and credit: a row must pay for all, and credit follows what is evaluated."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.batching import NOBODY_SPARED
from cloud_verifier.core.cost import MeasuredStepCost, StepCost
from cloud_verifier.core.draft_account import MOST_SAVED, RowShare
from cloud_verifier.core.draft_budget import DraftBudget
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.node_credit import MIN_CREDIT, TRIAL, Credit
from cloud_verifier.core.verify_session import StepProgress, VerifySession
from common.messages import Propose, pack_logprob
from tests.cloud_verifier.core.bench import VOCAB, ask

BASE, PER_ROW = 0.030, 0.001  # seconds; a row costs a thirtieth of a step


def session(key: int, *chances: float, balance: float = 1.0, fill: bool = True) -> VerifySession:
    """One with a child of its tip for each of the chances."""
    found = VerifySession(key, ask(fill=fill), VOCAB, frozenset(), max_live=128, now=0.0)
    logprobs = bytes(pack_logprob(math.log(chance)) for chance in chances)
    tokens = tuple(range(1, 1 + len(chances)))
    found.receive(Propose(tokens, logprobs, (0,) * len(chances), 0), 0.0)
    found.account.balance = balance
    return found


def taught(max_slowdown: float = 0.02) -> DraftBudget:
    """It has seen what rows cost."""
    sharing = DraftBudget(max_slowdown, StepCost())
    for num_rows in (1, 20) * 200:
        sharing.cost.sample(num_rows, 0, BASE + PER_ROW * (num_rows - 1))
    assert sharing.cost.per_row == pytest.approx(PER_ROW, rel=1e-3)
    return sharing


def drafts(
    sharing: DraftBudget, *sessions: VerifySession, share: int = 16, max_rows: int = 256
) -> dict[int, int]:
    """How many draft rows each gets."""
    picked = sharing.pick(sessions, sessions, max_rows, share).nodes
    assert all(nodes[0] is each.tree.tip for each, nodes in zip(sessions, picked.values(), strict=True))
    return {key: len(nodes) - 1 for key, nodes in picked.items()}


def test_a_row_that_is_almost_certain_is_tried_however_dear_it_seems() -> None:
    sharing = DraftBudget(0.02, StepCost())
    for num_rows, duration in ((5, 2.0), (1, 0.005), (1, 0.005)):  # one step was slow for another reason
        sharing.cost.sample(num_rows, 0, duration)
    assert sharing.cost.per_row >= sharing.cost.predict(1, 0)
    assert drafts(sharing, session(1, 0.8, 0.15)) == {1: 1}


def on_a_processor() -> DraftBudget:
    """It has seen steps of a processor: the second row takes as long as the first, the next seven nothing."""
    sharing = DraftBudget(0.02, StepCost())
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


@pytest.mark.parametrize(
    ("crowd", "rows"),
    [
        ([session(1, 0.30, 0.05, 0.04, 0.02, 0.01)], {1: 3}),  # a row is likelier than its cost in steps
        ([session(1, 0.3, 0.01, 0.001, fill=False)], {1: 3}),  # a classic block is taken whole
        ([session(1, 0.3, 0.01, fill=False), session(2, balance=0.0)], {1: 0, 2: 0}),
        ([session(1, 0.9, 0.8), session(2, balance=0.0)], {1: 0, 2: 0}),  # one that won nothing bears none
        ([session(1, 0.9, 0.8, balance=0.0), session(2, 0.7, balance=MOST_SAVED)], {1: 2, 2: 0}),
        # of a step of 31 ms: three rows of a millisecond
        ([session(1, *[0.9] * 8, balance=0.0), session(2, balance=0.1)], {1: 3, 2: 0}),
        # four sessions each lose PER_ROW of a step of BASE + 3 * PER_ROW: 0.12 tokens
        ([session(key, 0.5, 0.2, 0.1, balance=MOST_SAVED) for key in (1, 2, 3, 4)], {1: 2, 2: 2, 3: 2, 4: 2}),
        ([session(1, 0.5, 0.2, 0.1, balance=MOST_SAVED)], {1: 3}),
    ],
)
def test_a_row_must_pay_for_all_and_each_bears_what_it_has_left(
    crowd: list[VerifySession], rows: dict[int, int]
) -> None:
    assert drafts(taught(), *crowd) == rows


def test_where_room_is_short_tenants_share_it_alike() -> None:
    crowd = [session(key, 0.9, 0.9, 0.9, balance=MOST_SAVED) for key in (1, 2, 3)]
    crowd[2].tenant = "other"
    assert drafts(taught(), *crowd, max_rows=3 + 4) == {1: 1, 2: 1, 3: 2}


def brought(each: VerifySession, num_drafts: int, num_won: int) -> StepProgress:
    """What a step was for a session: its tip, so many drafts, of which so many were right."""
    return StepProgress(each, 0.0, num_outputs=1 + num_drafts, tokens=[0] * (1 + num_won))


def settle(
    sharing: DraftBudget, parts: Sequence[StepProgress], spared: Mapping[int, float] = NOBODY_SPARED
) -> None:
    """Enter a step that took the time of its tips for each token of its fastest session."""
    most = max(len(part.tokens) for part in parts)
    sharing.settle(parts, most * sharing.bare([part.session for part in parts]), spared)


@pytest.mark.parametrize(("make", "num_drafts"), [(taught, 10), (on_a_processor, 7)])
def test_a_balance_is_what_was_won_less_what_others_cost(
    make: Callable[[], DraftBudget], num_drafts: int
) -> None:
    """Rows share what they add, whatever the table."""
    sharing, loud, quiet = make(), session(1, balance=1.0), session(2, balance=1.0)
    settle(sharing, [brought(loud, num_drafts, 2), brought(quiet, 0, 0)])
    added = sharing.cost.predict(2 + num_drafts, 0) / sharing.cost.predict(2, 0) - 1
    assert loud.account.balance == pytest.approx(1.0 + 2 + 0.02)
    assert quiet.account.balance == pytest.approx(1.0 + 0.02 - added)


def test_one_that_reads_its_prompt_pays_as_far_as_it_is_not_kept_in_pace() -> None:
    sharing, loud, reading = taught(), session(1, balance=1.0), session(2, balance=1.0)
    reading.account.promised = 3.0  # of a step before its KV was dropped
    step = [brought(loud, 6, 2), StepProgress(reading, 0.0, num_rows=50)]
    settle(sharing, step, {2: 1.0})
    assert reading.account.balance == pytest.approx(1.0 + 0.02)
    settle(sharing, step, {2: 0.5})
    assert reading.account.balance == pytest.approx(1.0 + 0.04 - 6 / 30 / 2, rel=1e-3)
    assert reading.account.kept.ratio == 1.0


def test_what_drafts_add_to_a_step_is_told_as_a_share_of_its_tips() -> None:
    both = session(1, 0.9, 0.8), session(2)
    assert taught().pick(both, both, 256, 16).longer == pytest.approx(2 / 31, rel=1e-3)
    assert taught().pick(both[1:], both, 256, 16).longer == 0.0


def test_a_balance_does_not_grow_for_ever() -> None:
    sharing, each = taught(), session(1)
    for _ in range(10):
        settle(sharing, [brought(each, 3, 3)])
    assert each.account.balance == MOST_SAVED


def test_an_edge_is_believed_as_far_as_it_was_right() -> None:
    sharing, honest, liar = taught(), session(1, 0.5), session(2, *[1.0] * 8)
    for _ in range(20):
        liar.account.promised = 8.0
        settle(sharing, [brought(honest, 0, 0), brought(liar, 8, 0)])
    honest.account.balance = liar.account.balance = MOST_SAVED
    assert drafts(sharing, honest, liar) == {1: 1, 2: 0}


def test_what_a_step_promises_is_the_chance_of_its_paths() -> None:
    sharing, each = taught(), session(1, 0.5, 0.25)
    sharing.pick([each], [each], 256, 16)
    assert each.account.promised == pytest.approx(0.75, rel=0.05)  # a chance has a byte on the wire
    each.tree.advance(9)  # neither was right
    sharing.pick([each], [each], 256, 16)
    assert each.account.promised == 0.0


def test_a_verifier_whose_steps_take_no_time_takes_every_row() -> None:
    sharing, poor = DraftBudget(0.02, StepCost()), session(2, balance=0.0)
    for _ in range(3):
        sharing.cost.sample(1, 0, 0.0)
        settle(sharing, [brought(poor, 0, 0)])
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
        assert lost <= max(each.account.balance, 0.0) + 1e-9


# On an engine that pads its steps, rows that fill a bucket cost nothing.

BUCKETS = (4, 8, 16, 32)


def padding() -> DraftBudget:
    """It has seen that a bucket takes as long as its last row."""
    sharing = DraftBudget(0.02, StepCost(buckets=BUCKETS))
    for num_rows in BUCKETS * 100:
        sharing.cost.sample(num_rows, 0, BASE + 3 * PER_ROW * num_rows)
    return sharing


@pytest.mark.parametrize(
    ("chances", "beside", "num_rows"),
    [
        ([1e-3] * 9, 0, 3),  # with the tip, a bucket of four
        ([1e-3] * 2, 0, 2),
        ([0.9, 0.8, 0.7, 0.6, *[1e-3] * 5], 0, 7),  # the next bucket pays, and is filled
        ([1e-3] * 9, 2, 1),  # two prompt tokens fill the bucket, too
        ([1e-3] * 9, 3, 0),
    ],
)
def test_a_bucket_is_filled_with_the_next_best_nodes(
    chances: list[float], beside: int, num_rows: int
) -> None:
    each = session(1, *chances)
    picked = padding().pick([each], [each], 256, 32, beside).nodes[1]
    assert len(picked) - 1 == num_rows
    worth = each.tree.worth
    left = [node for node in each.step_nodes() if node not in picked]
    assert all(worth(node) >= worth(other) for node in picked[1:] for other in left)


@given(st.lists(SESSION, min_size=1, max_size=6), st.integers(0, 9), st.integers(6, 30))
def test_filling_never_lengthens_the_bucket(
    crowd: list[tuple[list[float], float]], beside: int, max_rows: int
) -> None:
    """What is picked besides the rows that pay ends with their bucket, and nothing that fits is left."""
    sharing = padding()
    sessions = [session(key, *chances, balance=MOST_SAVED) for key, (chances, _) in enumerate(crowd, start=1)]
    num_offers = sum(len(chances) for chances, _ in crowd)
    picked = sharing.pick(sessions, sessions, max_rows, 16, beside).nodes
    num_nodes, padded = sum(map(len, picked.values())), sharing.cost.padded
    room = min(max_rows, len(sessions) + num_offers)
    assert num_nodes == min(room, padded(num_nodes + beside) - beside)


# Credit ------------------------------------------------------------------------------------------------


CONFIG = SchedulerConfig()


def lagging(rows_taken: float = 0.0, lag: int = 0, fill: bool = True, num_turns: int = 0) -> VerifySession:
    found = VerifySession(1, ask(fill=fill), VOCAB, frozenset(), 128, 0.0)
    found.share.num_rows, found.share.num_turns, found.arrivals.lag = rows_taken, num_turns, lag
    return found


def pressed(share_left_out: float) -> Credit:
    credit = Credit(CONFIG)
    for _ in range(200):
        credit.note(100, round(100 * (1 - share_left_out)))
    return credit


def test_while_nobody_stays_out_the_budget_is_divided() -> None:
    credit = Credit(CONFIG)
    credit.note(0, 0)
    assert [credit.of(lagging(), number) for number in (1, 16, 64)] == [128, 128, 32]


def test_who_sends_in_vain_has_no_credit_but_for_a_trial_now_and_then() -> None:
    found, credit = lagging(), pressed(1.0)
    told = []
    for found.share.num_turns in range(1, 1 + 3 * TRIAL):
        told.append(credit.of(found, 4))
    assert sorted(set(told)) == [0, MIN_CREDIT]
    assert told.count(MIN_CREDIT) == 3


@pytest.mark.parametrize(
    ("times", "pays"),
    [
        ({1: 41.0, 2: 82.0, 8: 328.0}, False),  # each row is a step of its own
        ({1: 41.0, 2: 100.0, 8: 240.0}, True),  # eight rows together are cheaper than six steps
        ({1: 41.0, 2: 43.0}, True),
    ],
)
def test_where_even_sure_rows_do_not_pay_there_is_no_credit_for_an_edge_that_can_do_without(
    times: dict[int, float], pays: bool
) -> None:
    cost = MeasuredStepCost([(rows, 1e-3 * ms) for rows, ms in times.items()])
    crowd = [lagging(), lagging()]
    credit = Credit(CONFIG)
    credit.rows_pay = DraftBudget(0.02, cost).may_pay(crowd, CONFIG.max_nodes_per_session - 1)
    assert credit.of(crowd[0], 2) == (128 if pays else 0)
    assert credit.of(lagging(fill=False), 2) == 128


def test_an_edge_whose_drafts_are_never_worth_a_row_pauses_and_tries_again_less_and_less_often() -> None:
    share = RowShare()
    begins, pauses = list[int](), False
    for turn in range(2000):
        share.offered(False)
        if share.pauses is not pauses:
            pauses = not pauses
            begins += [turn] * pauses
        share.turn_over(0)
    gaps = [after - before for before, after in pairwise(begins)]
    assert 50 <= begins[0] <= 100
    assert len(gaps) > 2
    assert all(1.5 * before < after for before, after in pairwise(gaps))
    share.offered(True)
    assert not share.pauses


@pytest.mark.parametrize(
    ("pressure", "each", "num_sessions", "credit"),
    [
        (1.0, lagging(), 4, MIN_CREDIT),  # it begins with the least
        (1.0, lagging(rows_taken=0.1, num_turns=1), 4, MIN_CREDIT),  # it gets a row now and then
        (1.0, lagging(fill=False, num_turns=1), 4, MIN_CREDIT),  # without fill it waits for its own nodes
        (1.0, lagging(rows_taken=6.0, lag=12), 4, 36),  # what two turns use
        (0.5, lagging(rows_taken=6.0, lag=12), 4, (128 + 36) // 2),
        (1.0, lagging(rows_taken=200.0), 64, 32),  # never more than without pressure
    ],
)
def test_credit_moves_with_the_pressure(
    pressure: float, each: VerifySession, num_sessions: int, credit: int
) -> None:
    assert pressed(pressure).of(each, num_sessions) == pytest.approx(credit, abs=1 if pressure < 1 else 0)


def woken_time(rows: int) -> float:
    """Step time of gpt-oss 120B by its bytes, at 1 TB/s: 2.1 GB for all rows, and of 60 GB the experts that
    the rows wake, 4 of 128 each."""
    return 0.0021 + 0.060 * (1 - (1 - 4 / 128) ** rows)


def flat_time(rows: int) -> float:
    return 0.030 + 0.0001 * rows


@pytest.mark.parametrize("num_sessions", [1, 4])
@pytest.mark.parametrize(
    ("time", "chances", "best"),
    [
        (woken_time, [0.3, 0.2, 0.1], 0),
        (woken_time, [0.9, 0.05], 1),
        (flat_time, [0.3, 0.2, 0.1], 3),
        (flat_time, [0.9, 0.05], 2),
    ],
)
def test_rows_that_wake_experts_are_drafted_only_where_they_pay(
    time: Callable[[int], float], chances: list[float], best: int, num_sessions: int
) -> None:
    """Between drafts a prompt's chunk is read, which wakes nearly all experts."""
    sharing = DraftBudget(0.02, StepCost(expert_share=4 / 128 if time is woken_time else 0.0))
    crowd = [session(key, *chances) for key in range(1, 1 + num_sessions)]
    taken: dict[int, int] = {}
    for step in range(200):
        if step % 20 == 0:
            sharing.cost.sample(256 + num_sessions, 0, time(256 + num_sessions))
        taken = drafts(sharing, *crowd)
        parts = [brought(each, taken[each.key], round(sum(chances[: taken[each.key]]))) for each in crowd]
        for part in parts:
            part.num_rows = part.num_outputs
        num_rows = sum(part.num_rows for part in parts)
        sharing.cost.sample(num_rows, 0, time(num_rows))
        sharing.settle(parts, time(num_rows))
    assert list(taken.values()) == [best] * num_sessions
