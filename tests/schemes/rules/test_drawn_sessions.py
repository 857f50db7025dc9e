"""Sessions whose drafts are drawn: what is sent with them, and when."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from common.acceptance import COUPLED, Draft, make_acceptance
from common.chances import SeededChances
from common.errors import LocalError
from common.messages import Open
from common.sampling import SamplingParams
from common.tree import Node, SpeculationTree
from edge_client.core.effects import Expansion, Send, StartDrafter
from edge_client.core.policies import GrowthPolicy
from edge_client.core.sent_nodes import Outgoing, Untold
from edge_client.core.session import EdgeSession
from schemes.policies.tree import TreePolicy
from schemes.rules.drafts import draw, quantised
from schemes.rules.drawing import untold
from tests.edge_client.core.test_session import DRAWN, GONE, PROMPT, chain, draft, make, proposals


def drawing(policy: GrowthPolicy | None = None, **config: Any) -> EdgeSession:
    """Started, its first effects not taken."""
    session = make(policy or chain(), **(DRAWN | config))
    session.start(0.0)
    return session


def test_a_rule_that_draws_asks_the_drafter_for_plain_candidates_and_the_verifier_for_the_rule() -> None:
    drafter, _, opening, _ = drawing(draft_top=7).effects()
    assert isinstance(drafter, StartDrafter)
    assert drafter.plain == 7
    assert isinstance(opening, Send)
    assert isinstance(opening.message, Open)
    assert opening.message.acceptance == make_acceptance("specinfer")


@pytest.mark.parametrize("config", [{"acceptance": COUPLED}, {"sampling": SamplingParams(max_tokens=20)}])
def test_without_chance_or_such_a_rule_nothing_is_drawn(config: dict[str, Any]) -> None:
    session = drawing(None, **config)
    assert session.effects()[0] == StartDrafter(PROMPT, 1, session.config.sampling, 0)
    (message,) = proposals(draft(session, (5, 6), 0.1))
    assert (message.tokens, message.drafts) == ((5,), ())


def test_drawn_drafts_travel_with_what_they_were_drawn_from() -> None:
    session = drawing(TreePolicy(width=1, max_children=2, cut=1e-5))
    session.effects()
    (message,) = proposals(draft(session, (5, 6, 4), 0.1))
    told = quantised((5, 6, 4), (0.0, -1.0, -2.0))
    assert message.drafts == (told, None)
    assert message.tokens == draw(told, 1, 2, SeededChances(0))
    assert len(set(message.logprobs)) == 2, "promises, first and second"


def test_live_drafts_are_sent_again_on_a_new_stream_as_they_were_drawn() -> None:
    session = drawing(TreePolicy(width=1, max_children=2, cut=1e-5))
    session.effects()
    (first,) = proposals(draft(session, (5, 6, 4), 0.1))
    session.on_stream_lost(GONE, 0.2)
    session.on_timer(session.next_timer_at or 0.0)
    again = proposals(session.effects())[0]
    assert (again.tokens[:2], again.drafts[:2]) == (first.tokens, first.drafts)


HALVES, CERTAIN = Draft((1, 4), (128, 128)), Draft((2,), (256,))


def drawn_tree() -> tuple[SpeculationTree, list[Node], dict[int, Expansion], Untold]:
    """Two children of the tip, drawn in the order 4, 1, and one below the first."""
    tree = SpeculationTree(PROMPT)
    first, second = (tree.grow(tree.tip, token, -0.5) for token in (4, 1))
    below = tree.grow(first, 2, -0.5)
    drawn = {
        tree.tip.id: Expansion(tree.tip.id, (4, 1), (-0.5, -0.5), HALVES),
        first.id: Expansion(first.id, (2,), (-0.5,), CERTAIN),
    }
    return tree, [first, second, below], drawn, partial(untold, tree, drawn)


def test_a_distribution_travels_once_with_the_first_child_drawn_from_it() -> None:
    tree, (first, second, below), _, told = drawn_tree()
    outgoing = Outgoing()
    assert outgoing.propose(tree, [first, below], 0.0, told).drafts == (HALVES, CERTAIN)
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
