"""Laws of drawing: promises know nothing of the tokens, and follow what came true."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.acceptance import make_acceptance
from common.chances import SeededChances
from common.sampling import SamplingParams
from edge_client.core.effects import Expansion, SessionConfig
from edge_client.core.growth import Growth
from edge_client.core.sent_nodes import Outgoing
from schemes.policies.tree import TreePolicy
from schemes.rules.drafts import quantised
from schemes.rules.drawing import MOST_DRAWN, Drawing

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
