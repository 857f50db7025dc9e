"""The adaptive policy: what comes in time, how wide it pays to draft, what is sent, and when to rest."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.estimators import RttEstimator
from common.messages import INITIAL_CREDIT, NO_WAIT, Commit, Wait
from common.tree import Node, SpeculationTree
from edge_client.core.draft_times import ENOUGH, SharedCores
from edge_client.core.effects import Mode
from edge_client.core.policies import AdaptivePolicy, AdaptiveSettings, GrowthView, TokenCandidate
from edge_client.core.policies.arrival_forecast import ArrivalCases, ArrivalForecast, wait_for
from edge_client.core.policies.governor import LOOK_AGAIN, SETTLED, STEPS_SAVED, Governor

TURN, RTT, STEP = 0.030, 0.060, 0.005


def make_view(
    rtt: float = RTT, turn: float = TURN, step: float = STEP, per_node: float = 0.0003, credit: float = 128
) -> GrowthView:
    """A stream that is open and measured; the newest commit has just come."""
    view = GrowthView(SpeculationTree((9, 9)), last_position=200, credit=int(credit), stream_up=True)
    for _ in range(40):
        view.rtt.sample(rtt)
        view.turn.sample(turn)
        view.pace.rows.sample(1, step)
        view.pace.rows.sample(5, step + 4 * per_node)
    view.news_at = view.now = 10.0
    return view


def grow_chain(view: GrowthView, length: int, chance: float = 0.9) -> list[Node]:
    chain, node = list[Node](), view.tree.tip
    for _ in range(length):
        node = view.tree.grow(node, 1, math.log(chance))
        chain.append(node)
    return chain


def test_without_credit_the_device_rests_and_says_so_and_credit_wakes_it() -> None:
    view, policy = make_view(credit=0), AdaptivePolicy()
    assert not policy.expand(view)
    assert mode(policy) is Mode.SERVER_ONLY
    assert policy.wait(view) == NO_WAIT
    view.credit = 128
    assert run(policy, view, 1.0, (0.9, 0.05))
    assert mode(policy) is Mode.AHEAD


def test_a_policy_that_holds_nothing_back_sends_all_whatever_they_promise() -> None:
    """Where drafts are drawn what hangs below a node tells of its token, so it must not help it."""
    view = make_view(rtt=0.2)
    hopeless = [view.tree.grow(view.tree.tip, token, math.log(0.001)) for token in range(3)]
    policy = AdaptivePolicy()
    policy.send(view)  # it looks after its round trip
    assert not policy.send(view)
    policy.hold_nothing_back()
    assert policy.send(view) == hopeless


# Asking the verifier to wait


def sure(view: GrowthView, survival: float = 0.9) -> GrowthView:
    for _ in range(400):
        view.survival.add(survival)
    return view


def test_nodes_are_announced_for_when_they_come() -> None:
    """After the round trip, and the draft steps that their number takes: near, no more than the wait pays."""
    near, far = (wait_for(sure(make_view(rtt=rtt, step=0.001))) for rtt in (0.0, 0.060))
    assert 59_000 <= far.due_us - near.due_us <= 60_000 + 15_000
    assert 1_000 <= near.due_us <= near.most_us
    assert 0 < near.most_us < TURN * 1e6


def test_a_verifier_waits_the_longer_the_more_is_to_come() -> None:
    sure_ones, doubtful = wait_for(sure(make_view())), wait_for(sure(make_view(), 0.5))
    assert sure_ones.most_us > doubtful.most_us
    assert sure_ones.due_us > doubtful.due_us  # fewer nodes are worth their time
    view = sure(make_view())
    for _ in range(100):
        view.server.learn(Commit(0, (1, 2, 3, 4), guessed=0b0111))
    assert wait_for(view).most_us < sure_ones.most_us  # it does not stand still without them


def test_no_verifier_waits_for_a_draft_that_is_wrong_or_slow_or_unknown() -> None:
    assert wait_for(sure(make_view(), 0.01)) == Wait()
    assert wait_for(sure(make_view(step=10 * TURN))) == Wait()
    view = sure(make_view())
    view.rtt = RttEstimator()
    assert wait_for(view) == Wait()


def test_a_turn_for_which_the_verifier_waits_takes_what_comes_until_then() -> None:
    view, forecast = sure(make_view(rtt=0.010)), ArrivalForecast()
    forecast.update(view, 0.0, 0.0)
    assert forecast.tip_met(view.tree.tip.id, view.now + 0.001) is None
    view.news_at = view.now = 11.0
    forecast.update(view, 0.0, 0.012)
    assert forecast.tip_met(view.tree.tip.id, view.now + 0.001) is view.tree.tip


def note_sent(forecast: ArrivalForecast, nodes: list[Node], now: float) -> None:
    for node in nodes:
        node.wire_id = node.id
    forecast.sent(nodes, now)


def brute_force_tip(view: GrowthView, chain: list[Node], sent_at: list[float], arrival: float) -> int:
    """Depth of the verifier's tip when the turn begins that takes what arrives at `arrival`: turn by turn,
    each takes all of the path that has come and writes one token more."""
    began = (view.news_at or 0.0) - 0.5 * view.rtt.smoothed_rtt
    tip, turn = 0, 0
    while began + turn * view.turn.smoothed < arrival - 1e-12:
        begins = began + turn * view.turn.smoothed
        come = sum(1 for at in sent_at if at + 0.5 * view.rtt.smoothed_rtt <= begins + 1e-12)
        tip = max(tip, come) + 1
        turn += 1
    return tip


# ArrivalForecast ----------------------------------------------------------------------------------------


@given(
    st.floats(0.0, 0.3),
    st.floats(0.004, 0.1),
    st.lists(st.floats(0.0, 0.05), min_size=1, max_size=8),
    st.floats(0.0, 0.1),
)
def test_the_tip_is_foreseen_as_turn_by_turn(
    rtt: float, turn: float, pauses: list[float], later: float
) -> None:
    """Nodes of a path that left one after the other; is a child that leaves `later` still ahead?"""
    view, forecast = make_view(rtt=rtt, turn=turn), ArrivalForecast()
    chain, now, sent_at = grow_chain(view, len(pauses)), view.now, list[float]()
    forecast.update(view)
    for node, pause in zip(chain, pauses, strict=True):
        now += pause
        note_sent(forecast, [node], now)
        sent_at.append(now)
    leaves = now + later
    arrival = leaves + 0.5 * view.rtt.smoothed_rtt
    phases = [(at - 10.0 + view.rtt.smoothed_rtt) / view.turn.smoothed % 1.0 for at in (*sent_at, leaves)]
    if all(1e-6 < phase < 1 - 1e-6 for phase in phases):  # at the very moment of a turn rounding decides
        tip = brute_force_tip(view, chain, sent_at, arrival)
        met = forecast.tip_met(chain[-1].id, leaves)
        assert met == ([view.tree.tip, *chain][tip] if tip <= len(chain) else None)


def test_nothing_is_late_before_the_verifier_has_begun() -> None:
    view, forecast = make_view(rtt=1.0), ArrivalForecast()
    view.news_at = None
    forecast.update(view)
    assert forecast.tip_met(view.tree.tip.id, view.now) is view.tree.tip
    assert forecast.levels_to_catch_up(view.tree.tip, view.now, STEP) == 0
    assert forecast.departure(view.now) == -math.inf


def test_a_draft_behind_catches_up_by_as_many_levels_as_the_verifier_is_ahead() -> None:
    """Over a round trip of 10 turns, drafting 6 levels a turn, 10 + 10/6 + ... = 12 levels lie between."""
    view, forecast = make_view(rtt=0.299), ArrivalForecast()
    forecast.update(view)
    levels = forecast.levels_to_catch_up(view.tree.tip, view.now + STEP, STEP)
    assert levels == math.ceil(11 / (1 - STEP / TURN))
    assert forecast.levels_to_catch_up(view.tree.tip, view.now + STEP, 2 * TURN) > 10_000


def test_what_was_foreseen_is_forgotten_when_there_is_news() -> None:
    """A node that leaves so late comes for the sixth turn; with news of then it is in time again."""
    view, forecast = make_view(rtt=0.0), ArrivalForecast()
    (node,) = grow_chain(view, 1)
    forecast.update(view)
    later = view.now + 5.5 * TURN
    assert forecast.tip_met(node.id, later) is None
    view.news_at = later  # the tip is where it was, only now
    forecast.update(view)
    assert forecast.tip_met(node.id, later) is view.tree.tip


def jittery(deviation: float, samples: int = 400) -> GrowthView:
    """Round trips one turn long, half of them longer and half shorter by `deviation`."""
    view = make_view(rtt=TURN)
    for number in range(samples):
        view.rtt.sample(TURN + (deviation if number % 2 else -deviation))
    return view


@pytest.mark.parametrize("deviation", [0.01, 0.9])
def test_a_round_trip_that_is_steady_or_spreads_over_turns_is_one_case(deviation: float) -> None:
    outlook = ArrivalCases()
    outlook.update(jittery(deviation * TURN))
    assert [likely for likely, _ in outlook.cases] == [1.0]


def test_what_comes_in_time_by_luck_alone_is_worth_that_chance() -> None:
    """On average the second is a little late; one round trip in six is short enough."""
    sent = {}
    for deviation in (0.0, 0.3 * TURN):
        view, policy = jittery(deviation), AdaptivePolicy(AdaptiveSettings(send=0.05))
        policy._sent_at = view.now
        chain = grow_chain(view, 2)
        view.now += 0.3 * TURN
        sent[deviation] = policy.send(view) == chain
    assert sent == {0.0: False, 0.3 * TURN: True}


# Growing --------------------------------------------------------------------------------------------------


def feed(policy: AdaptivePolicy, view: GrowthView, nodes: list[Node], chances: tuple[float, ...]) -> None:
    for node in nodes:
        node.evaluated = True
        view.survival.add(chances[0])
        candidates = [TokenCandidate(rank, math.log(p)) for rank, p in enumerate(chances, 1)]
        for child in policy.branch(view, node, candidates):
            view.tree.grow(node, child.token, child.logprob)


def test_behind_it_goes_deep_and_ahead_it_goes_wide() -> None:
    """Two even children everywhere. Far behind, the deeper of the like paths are drafted first."""
    view = make_view(rtt=0.3)
    policy = AdaptivePolicy(AdaptiveSettings(max_width=1))
    feed(policy, view, list(policy.expand(view)), (0.6, 0.38))
    (first,) = policy.expand(view)
    feed(policy, view, [first], (0.6, 0.38))
    (second,) = policy.expand(view)
    assert second.parent == first.id  # 0.36 of depth 2, still 11 levels to go, before 0.38 of depth 1
    near = make_view(rtt=0.0, turn=1.0)
    policy = AdaptivePolicy(AdaptiveSettings(max_width=1))
    feed(policy, near, list(policy.expand(near)), (0.6, 0.38))
    feed(policy, near, list(policy.expand(near)), (0.6, 0.38))
    (third,) = policy.expand(near)
    assert near.tree.worth(third) == pytest.approx(math.log(0.38))


@pytest.mark.parametrize(("per_node", "width"), [(0.0, 4), (0.002, 2), (0.1, 1)])
def test_it_is_as_wide_as_a_wider_step_pays_for(per_node: float, width: int) -> None:
    view = make_view(per_node=per_node, step=0.005)
    policy = AdaptivePolicy()
    feed(policy, view, [view.tree.tip], (0.5, 0.3, 0.1, 0.05))
    view.news_at = None
    assert len(policy.expand(view)) == width


def test_it_is_no_wider_than_ends_in_time() -> None:
    """Four rows promise more a second, but what they bring leaves after the verifier has gone on."""
    view = make_view(rtt=0.0, turn=0.1, step=0.010)
    for _ in range(40):
        view.pace.rows.sample(4, 0.020)
    policy = AdaptivePolicy()
    feed(policy, view, [view.tree.tip], (0.3, 0.25, 0.2, 0.15))
    assert len(policy.expand(view)) > 1
    late = make_view(rtt=0.0, turn=0.1, step=0.010)
    late.pace = view.pace
    feed(policy := AdaptivePolicy(), late, [late.tree.tip], (0.3, 0.25, 0.2, 0.15))
    late.now += 0.089
    assert len(policy.expand(late)) == 1


def test_a_path_that_is_too_unlikely_is_no_child() -> None:
    view, policy = make_view(), AdaptivePolicy(AdaptiveSettings(cut=0.05))
    kept = policy.branch(
        view, view.tree.tip, [TokenCandidate(1, math.log(0.5)), TokenCandidate(2, math.log(0.04))]
    )
    assert [child.token for child in kept] == [1]
    assert not policy.branch(view, view.tree.tip, [])


def test_nothing_is_drafted_beyond_the_credit_or_its_own_bound() -> None:
    view, policy = make_view(), AdaptivePolicy(AdaptiveSettings(max_live=3))
    grow_chain(view, 3)
    assert policy.expand(view) == ()
    view, policy = make_view(credit=2), AdaptivePolicy()
    for node in grow_chain(view, 2):
        node.wire_id = node.id
    view.num_sent = 2
    assert policy.expand(view) == ()


# Sending --------------------------------------------------------------------------------------------------


def test_what_comes_too_late_stays_here_until_something_below_it_is_in_time() -> None:
    view, policy = make_view(rtt=0.1), AdaptivePolicy()
    policy._sent_at = view.now
    chain = grow_chain(view, 4)
    assert policy.send(view) == []  # the verifier has written four tokens more before these arrive
    chain += [view.tree.grow(chain[-1], 1, math.log(0.9))]
    assert policy.send(view) == chain  # the fifth is in time, and needs all above it


def test_a_node_that_is_being_drafted_is_sent_before_it_is_likely_enough() -> None:
    """Its children come a step later, and the verifier should have it by then."""
    view, policy = make_view(rtt=0.0), AdaptivePolicy(AdaptiveSettings(send=0.2))
    policy._sent_at = view.now
    node = view.tree.grow(view.tree.tip, 1, math.log(0.1))
    assert policy.send(view) == []
    node.busy = True
    assert policy.send(view) == [node]


def test_a_long_silence_is_broken_so_that_the_round_trip_is_known() -> None:
    view, policy = make_view(rtt=0.1), AdaptivePolicy()
    policy._sent_at = view.now - 0.9 * LOOK_AGAIN
    chain = grow_chain(view, 3)
    assert policy.send(view) == []
    view.now += 0.2 * LOOK_AGAIN
    assert policy.send(view) == chain[:1]


def some_sent(view: GrowthView) -> list[Node]:
    """Two unsent nodes below one that the verifier has."""
    first, *rest = grow_chain(view, 3)
    first.wire_id, view.num_sent = 1, 1
    return rest


def test_what_leaves_early_enough_waits_for_the_draft_step_under_way() -> None:
    """A turn of 100 ms began 10 ms ago, and draft steps take 5: one message will do for many of them."""
    view, policy = make_view(rtt=0.0, turn=0.1, credit=INITIAL_CREDIT - 1), AdaptivePolicy()
    rest = some_sent(view)
    view.now += 0.01
    assert policy.can_wait(view, view.now + STEP)
    view.now += 0.08
    assert not policy.can_wait(view, view.now + STEP), "the turn that needs them is about to begin"
    assert policy.send(view) == rest


@pytest.mark.parametrize(("credit", "drawn"), [(INITIAL_CREDIT, False), (INITIAL_CREDIT - 1, True)])
def test_nothing_waits_without_load(credit: int, drawn: bool) -> None:
    """Nor does what was drawn: what is sent must not depend on what was drafted meanwhile."""
    view = make_view(rtt=0.0, turn=0.1, credit=credit)
    rest, policy = some_sent(view), AdaptivePolicy()
    view.now += 0.01
    if drawn:
        policy.hold_nothing_back()
    assert not policy.can_wait(view, view.now + STEP)
    assert policy.send(view) == rest


def test_the_first_nodes_of_a_path_do_not_wait() -> None:
    """Credit that is given for a trial, and taken back by the next commit, would be of no use."""
    view = make_view(rtt=0.0, turn=0.1, credit=8)
    chain, policy = grow_chain(view, 2), AdaptivePolicy()
    view.now += 0.01
    assert not policy.can_wait(view, view.now + STEP)
    assert policy.send(view) == chain


@given(st.floats(0.0, 0.3), st.floats(0.004, 0.1), st.floats(0.0, 0.3))
def test_the_last_moment_to_leave_is_the_last_that_comes_for_the_same_turn(
    rtt: float, turn: float, later: float
) -> None:
    view, forecast = make_view(rtt=rtt, turn=turn), ArrivalForecast()
    forecast.update(view)
    leaves = view.now + later

    def turns_begun(sent_at: float) -> int:
        return brute_force_tip(view, [], [], sent_at + 0.5 * view.rtt.smoothed_rtt)

    phase = (rtt + later) / turn % 1.0
    if 1e-3 < phase < 1 - 1e-3:  # at the very moment of a turn rounding decides
        last = forecast.departure(leaves)
        assert turns_begun(last - 1e-6) == turns_begun(leaves) < turns_begun(last + 1e-6)


def test_a_node_that_costs_the_verifier_more_than_it_may_save_is_not_sent() -> None:
    view, policy = make_view(rtt=0.0), AdaptivePolicy()
    likely = view.tree.grow(view.tree.tip, 1, math.log(0.5))
    view.tree.grow(view.tree.tip, 2, math.log(0.05))
    for rows in (1, 4, 1, 4) * 30:
        view.step_time.sample(rows, 0.020 + 0.003 * rows)  # a node costs a tenth of a turn
    assert policy.send(view) == [likely]


def test_a_row_costs_only_where_the_tip_comes_by() -> None:
    """A path that is right one time in ten, and then as good as sure: its rows are not evaluated in vain."""
    view, policy = make_view(rtt=0.1), AdaptivePolicy()
    *_, above = chain = grow_chain(view, 4, chance=0.1**0.25)
    sure = view.tree.grow(above, 1, math.log(0.9))
    unsure = view.tree.grow(above, 2, math.log(0.05))
    for rows in (1, 4, 1, 4) * 30:
        view.step_time.sample(rows, 0.020 + 0.003 * rows)  # a node costs a tenth of a turn
    assert policy.send(view) == [*chain, sure]
    assert unsure.path_logprob > math.log(AdaptiveSettings().send)


def test_what_comes_late_must_be_paid_by_what_hangs_on_it() -> None:
    """Four come late and cost their tokens. One node in time saves too little for five, two save enough."""
    view, policy = make_view(rtt=0.1), AdaptivePolicy(AdaptiveSettings(send=0.1))
    policy._sent_at = view.now
    *_, above = chain = grow_chain(view, 4, chance=1.0)
    first = view.tree.grow(above, 1, math.log(0.3))  # five tokens cost 0.1 each, times 0.7 for this draft
    assert policy.send(view) == []
    second = view.tree.grow(above, 2, math.log(0.25))
    assert policy.send(view) == [*chain, first, second]


def test_never_more_than_the_credit_the_likeliest_first() -> None:
    view, policy = make_view(rtt=0.0, credit=2), AdaptivePolicy()
    nodes = [view.tree.grow(view.tree.tip, token, math.log(0.1 * token)) for token in (1, 2, 3)]
    assert policy.send(view) == [nodes[2], nodes[1]]


# The governor ---------------------------------------------------------------------------------------------


def run(
    policy: AdaptivePolicy, view: GrowthView, seconds: float, chances: tuple[float, ...] = (0.6, 0.2)
) -> int:
    """Draft steps begun while the verifier writes on alone, none of it drafted."""
    steps, end, next_turn = 0, view.now + seconds, view.now + view.turn.smoothed
    while view.now < end:
        policy.send(view)
        nodes = list(policy.expand(view))
        if nodes:
            steps += 1
            view.now += view.pace.rows.predict(len(nodes))
            feed(policy, view, nodes, chances)
        if not nodes or view.now >= next_turn:
            view.now = max(view.now, next_turn)
            view.tree.advance(77)
            view.news_at = view.now
            next_turn = view.now + view.turn.smoothed
    return steps


def mode(policy: AdaptivePolicy) -> Mode:
    return policy.standing.mode


@pytest.mark.parametrize(
    ("slow", "why"),
    [
        ({"step": 0.060}, "a draft step takes 60 ms, the verifier writes a token in 30 ms"),
        ({"rtt": 0.9}, "over a round trip of 900 ms the verifier writes 30 tokens before a draft comes"),
        ({"turn": 0.004, "step": 0.010}, "a draft step takes 10 ms, the verifier writes a token in 4 ms"),
    ],
)
def test_where_nothing_is_won_it_rests_within_a_second_and_says_why(slow: dict[str, float], why: str) -> None:
    view, policy = make_view(**slow), AdaptivePolicy()
    run(policy, view, 1.0)
    assert policy.standing.mode is Mode.SERVER_ONLY
    assert policy.standing.why.startswith(why)
    assert run(policy, view, 10.0) <= 10.0 / LOOK_AGAIN + 1


@pytest.mark.parametrize(
    ("step", "why"), [(0.025, "the server drafts well"), (0.06, "a draft step takes 60")]
)
def test_beside_a_verifier_that_drafts_well_it_rests_and_says_why(step: float, why: str) -> None:
    view, policy = make_view(rtt=0.3, step=step), AdaptivePolicy()
    for _ in range(100):
        view.server.learn(Commit(0, (1, 2, 3, 4), server_made=0b1111, guessed=0b0111))
    run(policy, view, 2.0, (0.5, 0.1))
    assert policy.standing.mode is Mode.SERVER_ONLY
    assert policy.standing.why.startswith(why)


@pytest.mark.parametrize(("beside", "rests"), [(0.09, True), (0.03, False)])
def test_a_draft_on_the_targets_own_cores_rests_if_it_delays_more_than_it_saves(
    beside: float, rests: bool
) -> None:
    view, policy = make_view(rtt=0.0, step=0.020), AdaptivePolicy()
    for _ in range(ENOUGH):
        view.pace.cores.sample(0.0, 0.03)
        view.pace.cores.sample(1.0, beside)
    run(policy, view, 2.0, (0.4, 0.1))
    assert (mode(policy) is Mode.SERVER_ONLY) is rests


def test_steps_that_take_no_time_tell_nothing_of_shared_cores() -> None:
    cores = SharedCores()
    for busy in (0.0, 1.0) * 10:
        cores.sample(busy, 0.0)
    assert not cores.knows_alone
    assert (cores.cost(1.0), cores.turn(0.03)) == (0.0, 0.03)


def test_it_comes_back_when_that_changes() -> None:
    view, policy = make_view(rtt=0.9), AdaptivePolicy()
    run(policy, view, 2.0)
    assert mode(policy) is Mode.SERVER_ONLY
    for _ in range(30):
        view.rtt.sample(0.01)
    run(policy, view, 2.0, (0.9, 0.05))
    assert mode(policy) is Mode.AHEAD
    assert policy.standing.why.startswith("drafting saves time over a round trip of 2")  # 26 ms by then


def test_a_draft_that_is_never_right_rests() -> None:
    view, policy = make_view(), AdaptivePolicy()
    run(policy, view, 10.0, (1e-4, 1e-5))
    assert policy.standing.mode is Mode.SERVER_ONLY
    assert "seldom right" in policy.standing.why


def test_a_change_is_a_mode_only_when_it_lasts() -> None:
    view, governor = make_view(), Governor()
    for tenth in range(20):
        view.now = 10.0 + 0.1 * tenth * SETTLED
        governor.allows(view, promise=tenth % 3 > 0, step=STEP)
        assert governor.standing.why == "drafting begins"


def test_to_begin_again_takes_more_than_to_go_on() -> None:
    view, governor = make_view(), Governor()
    between = 0.015 * STEP / view.turn.smoothed
    assert governor.allows(view, between, STEP)
    assert not governor.allows(view, 0.0, STEP)
    assert not governor.allows(view, between, STEP)


def test_a_round_trip_that_changes_is_looked_at_more_often() -> None:
    view, governor = make_view(), Governor()
    governor.began(view)
    view.now += LOOK_AGAIN / 5
    assert not governor.should_look(view)
    view.rtt.sample(3 * RTT)
    assert governor.should_look(view)


def test_a_look_goes_on_until_a_step_tells_the_pace() -> None:
    """The first step of a look reads what the verifier wrote meanwhile, and so tells no pace."""
    view, governor = make_view(), Governor()
    governor.began(view)
    view.now += LOOK_AGAIN
    for is_paced in (False, False, True):
        assert governor.should_look(view)
        governor.began(view)
        view.is_paced = is_paced
    assert not governor.should_look(view)


def test_a_look_does_not_read_for_longer_than_it_is_worth() -> None:
    view, governor = make_view(), Governor()
    view.num_unread = 10_000
    assert view.catch_up_time > 1.0
    assert not governor.should_look(view)


def test_reading_is_paid_once_and_does_not_end_drafting() -> None:
    """A step that reads a second's text comes too late for everything; the steps after it do not."""
    view, policy = make_view(), AdaptivePolicy()
    view.num_unread = 60
    for _ in range(40):
        view.pace.reads.sample(60, 0.5)
    assert policy.expand(view) == [view.tree.tip]
    assert policy.standing.mode is Mode.AHEAD


def test_a_power_budget_is_kept_while_it_only_looks() -> None:
    """A round trip that changes all the time is looked at ten times a second, if there is power for it."""
    for rate in (0.2, 1.0, 2.0):
        policy, steps, start = AdaptivePolicy(AdaptiveSettings(max_steps_per_second=rate)), 0, 10.0
        view = make_view(rtt=0.9)
        policy.governor.began(view)
        for tenth in range(190):
            view.now = start + 0.1 * tenth
            view.rtt.sample(0.9 if tenth % 2 else 0.2)
            nodes = list(policy.expand(view))
            steps += bool(nodes)
            feed(policy, view, nodes, (1e-4,))
            view.tree.advance(77)
        assert 19 * rate / 2 <= steps <= 19 * rate + STEPS_SAVED
        assert policy.governor.power_at(view.now) - view.now <= 1.0 / rate


# Guesses --------------------------------------------------------------------------------------------------


def test_a_guess_far_down_costs_all_that_the_draft_must_read() -> None:
    """Where further nodes are dear a step takes the end of the chain alone, and the tip next time."""
    view = make_view(per_node=0.004)
    path = [view.tree.tip, *grow_chain(view, 3, 0.5)]
    view.tree.tip.evaluated = True
    beside = view.tree.grow(view.tree.tip, 7, math.log(0.45))
    chosen = AdaptivePolicy().expand(view)
    assert beside in chosen
    assert path[-1] not in chosen
