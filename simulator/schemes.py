"""What is compared in a world: growth policies by name, and the bound that none of them may beat."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import UserError
from common.tree import Node
from edge_client.core.policies import Candidate, GrowthPolicy, GrowthView, make_policy
from edge_client.core.policies.base import expandable, unsent
from simulator.alone import draft_alone
from simulator.colocated import ColocatedDraft
from simulator.historical import HISTORICAL
from simulator.knowledge import Knowledge
from simulator.results import SessionResult
from simulator.system import PolicyMaker, SimulatedDevice, dealt_back, simulate_replica
from simulator.world import World

SERVER_STREAMING, SYNC_BEST, FORERUN, CLAIRVOYANT = "server_streaming", "sync_best", "forerun", "clairvoyant"
COLOCATED, DEVICE_ONLY = "colocated", "device_only"
BLOCKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Lengths searched for `sync_best`, and for `colocated` without a policy of its own."""

SEARCHED = {SYNC_BEST: "sync", COLOCATED: f"{COLOCATED}:sync"}

NAMED = {SERVER_STREAMING: "off", FORERUN: "adaptive"}


class ClairvoyantPolicy:
    """Knows which of the draft's candidates is right, and proposes nothing else: the bound.

    It cannot propose what the draft does not offer, and its draft steps take the same time as anybody's.
    """

    name = CLAIRVOYANT
    fill = True

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge

    def branch(self, view: GrowthView, node: Node, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        right = self._knowledge.truth(node.position + 1)
        return [candidate for candidate in candidates if candidate.token == right]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if view.tree.num_speculative >= view.credit:
            return ()
        return expandable(view)[:1]

    def send(self, view: GrowthView) -> Sequence[Node]:
        return unsent(view)[: view.credit_left]


def variants(scheme: str) -> list[str]:
    """What is run for it; the best counts."""
    return [f"{SEARCHED[scheme]}:{block}" for block in BLOCKS] if scheme in SEARCHED else [scheme]


def is_bounded(scheme: str) -> bool:
    """Whether the clairvoyant bound is one for it."""
    return scheme not in (COLOCATED, DEVICE_ONLY) and not _is_colocated(scheme)


def check_scheme(scheme: str) -> None:
    """Raises `UserError` for one that is none."""
    if scheme != DEVICE_ONLY:
        policy_maker(_policy(variants(scheme)[0]))


def run_scheme(scheme: str, world: World) -> list[SessionResult]:
    """One of the `variants`, in one world. Raises `UserError`."""
    return dealt_back([run_replica(scheme, world, each) for each in range(world.verifier.replicas)])


def run_replica(scheme: str, world: World, replica: int) -> list[SessionResult]:
    """Of `run_scheme` the sessions that one of the verifier's replicas serves. Raises `UserError`."""
    if scheme == DEVICE_ONLY:
        return draft_alone(world)[replica :: world.verifier.replicas]
    device = ColocatedDraft if _is_colocated(scheme) else SimulatedDevice
    return simulate_replica(world, policy_maker(_policy(scheme)), device, replica)


def policy_maker(scheme: str) -> PolicyMaker:
    """From a scheme's name or a growth policy as `make_policy` reads it. Raises `UserError`."""
    if scheme == CLAIRVOYANT:
        return ClairvoyantPolicy
    if scheme in SEARCHED:
        raise UserError(f"{scheme} is a search over {BLOCKS}; a single run needs {SEARCHED[scheme]}:K")
    if scheme == DEVICE_ONLY:
        raise UserError(f"{DEVICE_ONLY} has no growth policy: nothing is sent anywhere")
    historical = HISTORICAL.get(scheme)
    if historical is not None:
        return lambda _: historical()
    policy = NAMED.get(scheme, scheme)
    make_policy(policy)  # a name that is wrong is refused now

    def make(_: Knowledge) -> GrowthPolicy:
        return make_policy(policy)

    return make


def _is_colocated(scheme: str) -> bool:
    return scheme.startswith(f"{COLOCATED}:")


def _policy(scheme: str) -> str:
    return scheme.removeprefix(f"{COLOCATED}:")
