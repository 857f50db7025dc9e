"""Drafting never lowers the rate of a session that does not draft."""

from collections.abc import Sequence

import pytest

from common.tree import Node
from edge_client.core.policies import GrowthPolicy, GrowthView, TokenCandidate, make_policy
from schemes.policies.tree import TreePolicy
from simulator.drafts import BetaDraft
from simulator.figures import SessionResult
from simulator.knowledge import Knowledge
from simulator.link_spec import LinkSpec
from simulator.system import simulate
from simulator.world import VerifierSpec, World

STREAMING, LIAR = "off", "liar"
ALLOWED = 0.02


class LiarPolicy(TreePolicy):
    """Sends the worst candidates of each place, and calls all of them certain."""

    def branch(
        self, view: GrowthView, node: Node, candidates: Sequence[TokenCandidate]
    ) -> Sequence[TokenCandidate]:
        return [TokenCandidate(candidate.token, 0.0) for candidate in candidates[-4:]]


def run(world: World, policy: str, every: int) -> tuple[list[str], list[SessionResult]]:
    """Return the policies and the results of a crowd in which every `every`-th device drafts."""
    given = list[str]()

    def make(_: Knowledge) -> GrowthPolicy:
        given.append(policy if every and len(given) % every == 0 else STREAMING)
        return LiarPolicy() if given[-1] == LIAR else make_policy(given[-1])

    return given, simulate(world, make)


@pytest.mark.parametrize("policy", ["adaptive", "chain", LIAR])
@pytest.mark.parametrize("per_row", [0.0003, 0.003])
@pytest.mark.parametrize(("clients", "every"), [(3, 2), (6, 3), (5, 1)])
def test_no_session_that_streams_is_slower_than_it_allows(
    policy: str, per_row: float, clients: int, every: int
) -> None:
    verifier = VerifierSpec(step_time_per_node=per_row, max_nodes_per_session=16, max_slowdown=ALLOWED)
    world = World(
        LinkSpec(rtt=0.03), verifier=verifier, draft=BetaDraft(mean=0.8), tokens=60, clients=clients, seed=3
    )
    (_, alone), (given, together) = run(world, policy, 0), run(world, policy, every)
    lent = 2 * verifier.time(clients, 0)  # a token to begin with, and one that is on its way
    for own, before, after in zip(given, alone, together, strict=True):
        late = [b - a for a, b in zip(before.arrivals, after.arrivals, strict=True)]
        if own == STREAMING:
            assert max(b - a * ALLOWED for a, b in zip(before.arrivals, late, strict=True)) < lent
        elif own != LIAR:
            assert late[-1] < 0
