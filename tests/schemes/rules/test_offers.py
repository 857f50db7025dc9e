"""Laws of offers: which children a rule may look at, and what of an edge's word is believed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloud_verifier.core.arrivals import offers_of
from cloud_verifier.core.engine_protocol import Offer, StepItem
from cloud_verifier.core.kv_memory import KvMemory
from cloud_verifier.core.sources import VerifierSource
from cloud_verifier.core.verify_session import VerifySession
from common.acceptance import Acceptance, AcceptanceRule, Draft
from common.errors import Code, PeerError
from common.messages import Open, Propose
from common.sampling import SamplingParams
from schemes.rules.offers import Offers
from tests import wording
from tests.cloud_verifier.core.bench import VOCAB, Bench, ask, leased

REJECTION = Acceptance(AcceptanceRule.REJECTION)
HALVES = Draft((2, 7), (128, 128))
THIRDS = Draft((3, 4, 5), (86, 85, 85))


def opening(acceptance: Acceptance = REJECTION) -> Open:
    return replace(ask(temperature=1.0), acceptance=acceptance)


def make(request: Open | None = None, max_live: int = 32, *sources: VerifierSource) -> VerifySession:
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
    session = make()
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
    session = make()
    session.receive(first, 0.0)
    session.receive(second, 0.0)
    assert offers(session)[0] == offer


def test_a_rule_that_draws_nothing_is_offered_all_children() -> None:
    session = make(opening(Acceptance(AcceptanceRule.TYPICAL)))
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
    session = make(opening(Acceptance(rule)))
    for token, logprob in ((3, -2.0), (5, -1.5), (8, -1.0), (9, -5.0)):
        session.tree.grow(session.tree.tip, token, logprob)
    session.receive(siblings(7, 5), 0.0)  # the edge proposes one of the guesses, too
    session, memory = leased(session)
    nodes = [node for node in session.step_nodes() if node.token != 9]  # which the step has no room for
    item = session.plan(session.num_prefill, [session.tree.tip, *nodes], memory)
    assert item.ask is not None
    assert item.ask.offers[0] == Offer(tokens)


def test_a_drawn_rule_considers_no_guess() -> None:
    session = make()
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
    session, memory = leased(make(), 200)
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
        make().receive(message, 0.0)
    assert caught.value.code is code
