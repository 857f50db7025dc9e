"""Laws of drawing: promises know nothing of the tokens, and follow what came true."""

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.arrivals import offers_of
from cloud_verifier.core.engine_protocol import Offer, StepItem
from cloud_verifier.core.kv_memory import KvMemory
from cloud_verifier.core.sources import VerifierSource
from cloud_verifier.core.verify_session import VerifySession
from common.acceptance import COUPLED, MAX_TOKENS, TOTAL, Acceptance, AcceptanceRule, Draft, make_acceptance
from common.chances import SeededChances
from common.errors import Code, LocalError, PeerError
from common.messages import Open, Propose
from common.sampling import SamplingParams
from common.tree import Node, SpeculationTree
from edge_client.core.effects import Expansion, Send, SessionConfig, StartDrafter
from edge_client.core.growth import Growth
from edge_client.core.policies import GrowthPolicy
from edge_client.core.sent_nodes import Outgoing, Untold
from edge_client.core.session import EdgeSession
from schemes.policies.tree import TreePolicy
from schemes.rules.drafts import draw, quantised, remaining
from schemes.rules.drawing import MOST_DRAWN, Drawing, untold
from schemes.rules.offers import Offers
from tests import wording
from tests.cloud_verifier.core.bench import VOCAB, Bench, ask, leased
from tests.edge_client.core.test_session import DRAWN, GONE, PROMPT, chain, draft, make, proposals
from tests.worlds.enumeration import law_of

SCORES = st.lists(st.floats(-8, 0), min_size=1, max_size=12)
FOUND = Expansion(4, (7, 3, 9, 1), (0.0, -0.4, -1.0, -1.5))


def drawing(seed: int = 1) -> Drawing:
    return Drawing(SeededChances(seed))


@given(SCORES, st.integers(0, 2**32), st.integers(1, 99))
def test_children_are_drawn_from_the_distribution_that_comes_with_them(
    scores: list[float], seed: int, node: int
) -> None:
    tokens = tuple(range(10, 10 + len(scores)))
    drawn = drawing(seed).draw(Expansion(node, tokens, tuple(scores)))
    assert drawn.draft == quantised(tokens, scores)
    assert len(drawn.tokens) == min(MOST_DRAWN, len(drawn.draft.tokens))
    assert set(drawn.tokens) <= set(drawn.draft.tokens)
    assert drawn.id == node


@given(SCORES, st.integers(0, 2**32))
def test_promises_do_not_rise_from_an_elder_child_to_a_younger(scores: list[float], seed: int) -> None:
    made = drawing(seed)
    for turn in range(30):
        drawn = made.draw(Expansion(turn, tuple(range(len(scores))), tuple(scores)))
        assert list(drawn.scores) == sorted(drawn.scores, reverse=True)
        assert sum(map(math.exp, drawn.scores)) <= 1.0 + 1e-9
        made.observe(drawn, drawn.tokens[-1])  # the last is always the right one: it must not overtake


def test_a_promise_knows_nothing_of_the_token_that_was_drawn() -> None:
    """Whichever tokens are drawn, and however the draft calls them."""
    promises = {drawing(seed).draw(FOUND).scores for seed in range(50)}
    renamed = Expansion(4, (1, 9, 3, 7), FOUND.scores)
    assert promises == {drawing().draw(renamed).scores}
    assert len({drawing(seed).draw(FOUND).tokens for seed in range(50)}) > 5


def test_a_younger_child_is_judged_only_where_its_elders_were_wrong() -> None:
    made = drawing()
    drawn = made.draw(FOUND)
    for _ in range(100):
        made.observe(drawn, drawn.tokens[0])
    second_if_first_is_wrong = [
        math.exp(each.scores[1]) / (1 - math.exp(each.scores[0])) for each in (drawn, made.draw(FOUND))
    ]
    assert second_if_first_is_wrong[1] == pytest.approx(second_if_first_is_wrong[0], rel=0.01)


def test_a_drafter_that_finds_nothing_draws_nothing_and_teaches_nothing() -> None:
    made, nothing = drawing(), Expansion(4, (), ())
    assert made.draw(nothing) == nothing
    made.observe(nothing, 3)
    assert made.draw(FOUND) == drawing().draw(FOUND)


@pytest.mark.parametrize("rule", ["spectr", "spectr-ot"])
def test_with_replacement_all_draws_below_a_node_are_sent_or_none_and_repeats_take_room(rule: str) -> None:
    """Else it would depend on the tokens which draws the verifier considers."""
    sampling, repeats = SamplingParams(temperature=1.0, max_tokens=50), 0
    config = SessionConfig((1, 2), sampling, b"f", acceptance=make_acceptance(rule))
    for seed in range(40):
        policy = TreePolicy(max_children=3, cut=1e-6)
        growth = Growth(config, policy, chances=SeededChances(seed))
        growth.branch([Expansion(growth.tree.tip.id, (7, 3), (0.0, -0.4))])
        below = next(iter(growth.tree.tip.children.values()))
        growth.branch([Expansion(below, (8, 4), (0.0, -0.4))])
        nodes = policy.send(growth.view)
        for credit, count in ((2, 0), (3, 3), (5, 3), (6, 6)):
            growth.view.credit = credit
            assert len(growth.rule.outgoing(nodes)) == count
        sent = growth.rule.outgoing(nodes)
        repeats += len(sent) - len({node.id for node in sent})
        assert {node.id for node in sent} == {node.id for node in nodes}
        message = Outgoing().propose(growth.tree, sent, 0.0, growth.rule.untold)
        assert sum(draft is not None for draft in message.drafts) == 2
        growth.view.num_sent = len(nodes)
        growth.branch([Expansion(nodes[-1].id, (9, 6), (0.0, -0.4))])
        nodes = [node for node in policy.send(replace(growth.view, credit=64)) if not node.wire_id]
        for credit, count in ((8, 0), (9, 3)):
            growth.view.credit = credit
            assert len(growth.rule.outgoing(nodes)) == count, "the six draws sent before take room, too"
    assert repeats > 40


# A drawn draft is near the draft model's softmax, and is drawn by its own chances.


ANY_SCORES = st.lists(st.floats(-60, 60), min_size=1, max_size=MAX_TOKENS)


def softmax(scores: list[float]) -> np.ndarray:
    weights = np.exp(np.array(scores) - max(scores))
    return np.asarray(weights / weights.sum())


@given(ANY_SCORES)
def test_a_quantised_draft_is_valid_and_near_the_softmax(scores: list[float]) -> None:
    tokens = [7 * place for place in range(len(scores))]
    draft = quantised(tokens, scores)
    assert draft.problem() is None
    counts = dict(zip(draft.tokens, draft.counts, strict=True))
    for token, share in zip(tokens, softmax(scores), strict=True):
        assert abs(counts.get(token, 0) - share * TOTAL) < 1.0 + 1e-9


def test_tokens_that_are_as_good_as_never_drawn_are_left_out() -> None:
    assert quantised([5, 2, 9], [0.0, -20.0, -1.0]) == Draft((5, 9), (187, 69))


@pytest.mark.parametrize(("tokens", "scores"), [([], []), ([1], []), ([1, 2], [0.0])])
def test_a_draft_of_nothing_is_a_defect(tokens: list[int], scores: list[float]) -> None:
    with pytest.raises(LocalError):
        quantised(tokens, scores)


def test_the_chances_of_the_remaining_tokens_sum_to_1() -> None:
    draft = Draft((3, 5, 8), (128, 64, 64))
    tokens, chances = remaining(draft, (5,))
    assert (tokens.tolist(), chances.tolist()) == ([3, 8], [2 / 3, 1 / 3])
    assert [len(each) for each in remaining(draft, (3, 5, 8))] == [0, 0]


def test_children_are_drawn_without_replacement_by_the_drafts_chances() -> None:
    draft = Draft((3, 5, 8), (150, 100, 6))
    law = law_of(lambda branch: draw(draft, 1, 2, branch))
    chance = {token: count / TOTAL for token, count in zip(draft.tokens, draft.counts, strict=True)}
    expected = {
        (first, second): chance[first] * chance[second] / (1 - chance[first])
        for first, second in itertools.permutations(draft.tokens, 2)
    }
    assert law == pytest.approx(expected, abs=1e-15)


@given(ANY_SCORES, st.integers(0, 2**64 - 1), st.integers(1, 2**31))
def test_a_longer_draw_begins_as_the_shorter_one(scores: list[float], seed: int, node: int) -> None:
    draft, chances = quantised(list(range(len(scores))), scores), SeededChances(seed)
    four = draw(draft, node, 4, chances)
    assert draw(draft, node, 2, chances) == four[:2]
    assert len(set(four)) == len(four) == min(4, len(draft.tokens))


# Sessions whose drafts are drawn: what is sent with them, and when.


def drawing_session(policy: GrowthPolicy | None = None, **config: Any) -> EdgeSession:
    """Started, its first effects not taken."""
    session = make(policy or chain(), **(DRAWN | config))
    session.start(0.0)
    return session


def test_a_rule_that_draws_asks_the_drafter_for_plain_candidates_and_the_verifier_for_the_rule() -> None:
    drafter, _, opening, _ = drawing_session(draft_top=7).effects()
    assert isinstance(drafter, StartDrafter)
    assert drafter.plain == 7
    assert isinstance(opening, Send)
    assert isinstance(opening.message, Open)
    assert opening.message.acceptance == make_acceptance("specinfer")


@pytest.mark.parametrize("config", [{"acceptance": COUPLED}, {"sampling": SamplingParams(max_tokens=20)}])
def test_without_chance_or_such_a_rule_nothing_is_drawn(config: dict[str, Any]) -> None:
    session = drawing_session(None, **config)
    assert session.effects()[0] == StartDrafter(PROMPT, 1, session.config.sampling, 0)
    (message,) = proposals(draft(session, (5, 6), 0.1))
    assert (message.tokens, message.drafts) == ((5,), ())


def test_drawn_drafts_travel_with_what_they_were_drawn_from() -> None:
    session = drawing_session(TreePolicy(width=1, max_children=2, cut=1e-5))
    session.effects()
    (message,) = proposals(draft(session, (5, 6, 4), 0.1))
    told = quantised((5, 6, 4), (0.0, -1.0, -2.0))
    assert message.drafts == (told, None)
    assert message.tokens == draw(told, 1, 2, SeededChances(0))
    assert len(set(message.logprobs)) == 2, "promises, first and second"


def test_live_drafts_are_sent_again_on_a_new_stream_as_they_were_drawn() -> None:
    session = drawing_session(TreePolicy(width=1, max_children=2, cut=1e-5))
    session.effects()
    (first,) = proposals(draft(session, (5, 6, 4), 0.1))
    session.on_stream_lost(GONE, 0.2)
    session.on_timer(session.next_timer_at or 0.0)
    again = proposals(session.effects())[0]
    assert (again.tokens[:2], again.drafts[:2]) == (first.tokens, first.drafts)


EVEN, CERTAIN = Draft((1, 4), (128, 128)), Draft((2,), (256,))


def drawn_tree() -> tuple[SpeculationTree, list[Node], dict[int, Expansion], Untold]:
    """Two children of the tip, drawn in the order 4, 1, and one below the first."""
    tree = SpeculationTree(PROMPT)
    first, second = (tree.grow(tree.tip, token, -0.5) for token in (4, 1))
    below = tree.grow(first, 2, -0.5)
    drawn = {
        tree.tip.id: Expansion(tree.tip.id, (4, 1), (-0.5, -0.5), EVEN),
        first.id: Expansion(first.id, (2,), (-0.5,), CERTAIN),
    }
    return tree, [first, second, below], drawn, partial(untold, tree, drawn)


def test_a_distribution_travels_once_with_the_first_child_drawn_from_it() -> None:
    tree, (first, second, below), _, told = drawn_tree()
    outgoing = Outgoing()
    assert outgoing.propose(tree, [first, below], 0.0, told).drafts == (EVEN, CERTAIN)
    assert outgoing.propose(tree, [second], 0.0, told).drafts == ()


def test_a_child_is_never_sent_before_one_that_was_drawn_before_it() -> None:
    tree, (_, second, _), _, told = drawn_tree()
    with pytest.raises(LocalError, match="sent before one that was drawn before it"):
        Outgoing().propose(tree, [second], 0.0, told)


def test_a_child_that_was_not_drawn_is_not_sent_where_drafts_are() -> None:
    tree, nodes, drawn, told = drawn_tree()
    del drawn[tree.tip.id]
    with pytest.raises(LocalError, match="not known what it was drawn from"):
        Outgoing().propose(tree, nodes, 0.0, told)


# Laws of offers: which children a rule may look at, and what of an edge's word is believed.


REJECTION = Acceptance(AcceptanceRule.REJECTION)
HALVES = Draft((2, 7), (128, 128))
THIRDS = Draft((3, 4, 5), (86, 85, 85))


def opening(acceptance: Acceptance = REJECTION) -> Open:
    return replace(ask(temperature=1.0), acceptance=acceptance)


def verifying(request: Open | None = None, max_live: int = 32, *sources: VerifierSource) -> VerifySession:
    return VerifySession(5, request or opening(), VOCAB, frozenset(), max_live, 0.0, sources)


def siblings(*tokens: int, draft: Draft | None = None, anchor: int = 0) -> Propose:
    """Children of a committed token, the first with what they were drawn from."""
    count = len(tokens)
    told = (draft, *(None,) * (count - 1)) if draft else ()
    return Propose(tokens, bytes(count), (0,) * count, anchor, drafts=told)


def plan(session: VerifySession, memory: KvMemory) -> StepItem:
    nodes = [session.tree.tip, *session.step_nodes()]
    return session.plan(session.num_prefill, nodes, memory)


def offers(session: VerifySession, memory: KvMemory | None = None) -> tuple[Offer, ...]:
    item = plan(*(leased(session) if memory is None else (session, memory)))
    assert item.ask is not None
    return item.ask.offers


def test_children_are_offered_in_the_order_of_sending_with_what_they_were_drawn_from() -> None:
    session = verifying()
    session.receive(siblings(7, 2, draft=HALVES), 0.0)
    session.receive(Propose((4,), b"\0", (2,), drafts=(THIRDS,)), 0.0)  # below node 1
    assert offers(session) == (Offer((7, 2), HALVES), Offer((4,), THIRDS), Offer(), Offer())


@pytest.mark.parametrize(
    ("first", "second", "offer"),
    [
        (siblings(7, draft=HALVES), siblings(2), Offer((7, 2), HALVES)),  # a younger child needs none
        (siblings(7), siblings(2), Offer()),  # without a distribution nothing is offered
        (siblings(9), siblings(7, draft=HALVES), Offer()),  # the elder may not be in it at all
        (siblings(7, draft=HALVES), siblings(2, draft=Draft((2,), (256,))), Offer((7, 2), HALVES)),
    ],
)
def test_the_first_child_brings_the_distribution_of_all(
    first: Propose, second: Propose, offer: Offer
) -> None:
    session = verifying()
    session.receive(first, 0.0)
    session.receive(second, 0.0)
    assert offers(session)[0] == offer


def test_a_rule_that_draws_nothing_is_offered_all_children() -> None:
    session = verifying(opening(Acceptance(AcceptanceRule.TYPICAL)))
    session.receive(siblings(7, 2), 0.0)
    session.receive(siblings(5, draft=HALVES), 0.0)
    assert offers(session)[0] == Offer((7, 2, 5))


@pytest.mark.parametrize(
    ("rule", "tokens"),
    [
        (AcceptanceRule.TYPICAL, (7, 5, 8, 3)),
        (AcceptanceRule.TOPK_GAP, (7, 5, 8, 3)),
        (AcceptanceRule.BILD, (7, 5, 8, 3)),
        (AcceptanceRule.REFLECTIVE, (7, 5)),  # it looks again at what was sent
    ],
    ids=lambda value: value.title if isinstance(value, AcceptanceRule) else "",
)
def test_evaluated_guesses_follow_what_was_sent_the_likeliest_first(
    rule: AcceptanceRule, tokens: tuple[int, ...]
) -> None:
    session = verifying(opening(Acceptance(rule)))
    for token, logprob in ((3, -2.0), (5, -1.5), (8, -1.0), (9, -5.0)):
        session.tree.grow(session.tree.tip, token, logprob)
    session.receive(siblings(7, 5), 0.0)  # the edge proposes one of the guesses, too
    session, memory = leased(session)
    nodes = [node for node in session.step_nodes() if node.token != 9]  # which the step has no room for
    item = session.plan(session.num_prefill, [session.tree.tip, *nodes], memory)
    assert item.ask is not None
    assert item.ask.offers[0] == Offer(tokens)


def test_a_drawn_rule_considers_no_guess() -> None:
    session = verifying()
    session.tree.grow(session.tree.tip, 3, -0.1)
    session.receive(siblings(7, 2, draft=HALVES), 0.0)
    assert offers(session)[0] == Offer((7, 2), HALVES)


@pytest.mark.parametrize("rule", [AcceptanceRule.REFLECTIVE, AcceptanceRule.TYPICAL])
def test_a_second_look_comes_with_the_text_before_the_tip(rule: AcceptanceRule) -> None:
    bench = Bench(rules=(AcceptanceRule.COUPLED, rule))
    bench.open(1, replace(opening(Acceptance(rule)), prompt=(1, 2, 3)))
    bench.step()
    (item,) = bench.begin().items
    if rule is AcceptanceRule.TYPICAL:
        assert (item.prompt, item.generated) == (None, None)
        return
    assert item.prompt is not None
    assert item.generated is not None
    before = [*item.prompt.tolist(), *item.generated.tolist()]
    assert before == [1, 2, 3]
    assert len(before) == item.positions[0], "the tip stands behind them"


def test_greedy_text_is_decided_by_the_coupled_rule_unless_a_rule_is_made_for_it() -> None:
    greedy = SamplingParams()
    assert not offers_of(REJECTION, greedy).decides
    assert not offers_of(Acceptance(AcceptanceRule.TYPICAL), greedy).decides
    assert offers_of(Acceptance(AcceptanceRule.BILD), greedy).decides


def test_what_was_told_of_nodes_that_are_gone_is_forgotten() -> None:
    session, memory = leased(verifying(), 200)
    for position in range(30):
        session.receive(siblings(7, draft=HALVES, anchor=position), 0.0)
        item = plan(session, memory)
        session.apply(np.full(len(item.outputs), 1, np.int32), memory, 0.0)
    assert isinstance(session._offers, Offers)
    assert len(session._offers._drafts) <= 2


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (siblings(5, draft=HALVES), Code.INVALID_ARGUMENT),
        (siblings(2, 5, draft=HALVES), Code.INVALID_ARGUMENT),
        (siblings(2, draft=Draft((2, VOCAB), (128, 128))), Code.OUT_OF_RANGE),
        (Propose((2,), b"\0", (0,), 0, drafts=(HALVES, None)), Code.INVALID_ARGUMENT),
    ],
)
def test_what_cannot_have_been_drawn_ends_the_stream(message: Propose, code: Code) -> None:
    with wording.raises(PeerError) as caught:
        verifying().receive(message, 0.0)
    assert caught.value.code is code
