"""Laws of hints: they grow children with a learnt promise, and decide nothing."""

import math

import pytest

from common.acceptance import make_acceptance
from common.errors import PeerError
from common.messages import Commit, Hint, Open, Opened, Propose
from common.sampling import SamplingParams
from common.tree import Node
from common.tree_hints import hint_at
from edge_client.core.effects import Expand, Expansion, Send, SessionConfig
from edge_client.core.policies import GrowthPolicy, OffPolicy, SyncPolicy
from edge_client.core.session import EdgeSession
from schemes.drafters.hints import FIRST
from schemes.policies.tree import TreePolicy

GREEDY = SamplingParams(max_tokens=12)
DRAWN = SamplingParams(temperature=1.0, max_tokens=40)


def opened(policy: GrowthPolicy | None = None, vocab_size: int | None = None) -> EdgeSession:
    """A session whose draft step for the tip is under way."""
    config = SessionConfig((7, 8), GREEDY, b"print", patience=None, vocab_size=vocab_size)
    session = EdgeSession(config, policy or TreePolicy())
    session.start(0.0)
    session.on_message(Opened(1, 64), 1.0)
    return session


def child(session: EdgeSession, token: int) -> Node:
    return session.tree.live[session.tree.tip.children[token]]


@pytest.mark.parametrize(
    ("policy", "sampling", "rule", "asked"),
    [
        (TreePolicy(), GREEDY, "coupled", True),
        (OffPolicy(), GREEDY, "coupled", False),
        (SyncPolicy(2), GREEDY, "coupled", False),
        (TreePolicy(), DRAWN, "rejection", False),
    ],
)
def test_hints_are_asked_for_where_they_help(
    policy: GrowthPolicy, sampling: SamplingParams, rule: str, asked: bool
) -> None:
    config = SessionConfig((7, 8), sampling, b"print", acceptance=make_acceptance(rule))
    session = EdgeSession(config, policy)
    session.start(0.0)
    (message,) = [e.message for e in session.effects() if isinstance(e, Send) and isinstance(e.message, Open)]
    assert message.hints is asked


def test_a_hinted_token_is_sent_at_once_and_drafted_on() -> None:
    session = opened()
    session.effects()
    session.on_message(Hint(0, 1, (), (5,)), 1.1)
    (propose,) = [effect.message for effect in session.effects() if isinstance(effect, Send)]
    assert isinstance(propose, Propose)
    assert (propose.tokens, propose.anchor) == ((5,), 1)
    session.on_drafted([Expansion(session.tree.tip.id, (4, 6), (9.0, 1.0))], 1.2)
    (expand,) = [effect for effect in session.effects() if isinstance(effect, Expand)]
    assert expand.rows[0].token == 5


def test_what_a_hint_leaves_is_shared_by_the_drafts_own_candidates() -> None:
    """Whether the draft spoke before or after it."""
    for hint_first in (True, False):
        session = opened()
        if hint_first:
            session.on_message(Hint(0, 1, (), (5,)), 1.1)
        session.on_drafted([Expansion(session.tree.tip.id, (4, 5), (9.0, 1.0))], 1.2)
        if not hint_first:
            assert child(session, 4).logprob > math.log(FIRST)
            session.on_message(Hint(0, 1, (), (5,)), 1.3)
        assert child(session, 5).logprob == pytest.approx(math.log(FIRST))
        assert child(session, 4).logprob <= math.log(1.0 - FIRST) + 1e-9
        session.check_integrity()


@pytest.mark.parametrize("holds", [True, False])
def test_the_promise_follows_how_often_hints_held(holds: bool) -> None:
    session = opened()
    for position in range(2, 12):
        session.on_message(Hint(0, position - 1, (), (5, 6)), 1.0 + position)
        session.on_message(Commit(position, (5 if holds else 6,)), 1.5 + position)
    session.on_message(Hint(0, 11, (), (5, 6)), 20.0)
    first, second = child(session, 5).logprob, child(session, 6).logprob
    assert first > math.log(0.9) if holds else second > math.log(0.7)
    assert (first > second) is holds


def test_a_place_is_named_by_a_sent_node_or_by_the_text_and_a_path() -> None:
    session = opened()
    session.on_message(Hint(0, 1, (), (5,)), 1.1)  # sent as node 1
    session.on_message(Hint(1, 0, (), (6,)), 1.2)
    session.on_message(Hint(1, 0, (6,), (9,)), 1.3)
    assert [node.token for node in session.tree.likeliest_path()] == [5, 6, 9]
    session.on_message(Commit(2, (5,)), 1.4)
    session.on_message(Hint(0, 2, (6, 9), (3,)), 1.5)
    assert [node.token for node in session.tree.likeliest_path()] == [6, 9, 3]
    session.check_integrity()


def test_a_named_place_is_found_again() -> None:
    session = opened()
    tree, tokens = session.tree, (5, 6, 9)
    for index in range(len(tokens)):
        session.on_message(Hint(0, 1, tokens[:index], tokens[index : index + 1]), 1.1)
    for node in [tree.tip, *tree.speculative()]:
        for hint in (hint_at(tree, node, (2,)), hint_at(tree, node, (2,), lambda _: 0)):
            assert hint is not None
            assert session._place_of(hint) is node


def test_a_place_that_is_gone_or_unknown_is_passed_over() -> None:
    session = opened()
    session.on_message(Hint(0, 1, (), (5,)), 1.1)
    session.on_message(Commit(2, (8,)), 1.2)
    for hint in (Hint(1, 0, (), (6,)), Hint(0, 1, (), (6,)), Hint(0, 2, (4,), (6,))):
        session.on_message(hint, 1.3)
    assert not session.tree.num_speculative


def test_no_hint_goes_beyond_the_text() -> None:
    session = opened()
    for depth in range(50):
        session.on_message(Hint(0, 1, (5,) * depth, (5,)), 1.1)
    assert max(node.position for node in session.tree.live.values()) == session.view.last_position


@pytest.mark.parametrize("hint", [Hint(9, 0, (), (5,)), Hint(0, 2, (), (5,)), Hint(0, 1, (), (100,))])
def test_a_place_that_cannot_be_is_the_verifiers_fault(hint: Hint) -> None:
    session = opened(vocab_size=100)
    with pytest.raises(PeerError):
        session.on_message(hint, 1.1)
