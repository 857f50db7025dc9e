"""Compares schemes in a world: growth policies by name, and the bound that none of them may beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from common.errors import UserError
from common.messages import Open
from common.offers import offered
from common.tree import Node
from common.wire.codec import encode_request, encode_response
from edge_client.core.effects import Emit, SessionStats
from edge_client.core.policies import GrowthPolicy, GrowthView, TokenCandidate, make_policy
from edge_client.core.policies.base import expandable, unsent
from simulator.events import Draws, EventHeap
from simulator.figures import SessionResult
from simulator.knowledge import BEST, Knowledge
from simulator.link_spec import LinkSpec
from simulator.system import (
    FRAME,
    PolicyMaker,
    SimulatedDevice,
    SimulatedVerifier,
    ToEdge,
    dealt_back,
    simulate_replica,
    target_text,
)
from simulator.virtual_lane import DOWN, UP, VirtualLane
from simulator.world import World, dealt

# The device without a server: its own text, which is not the target's.


def draft_alone(world: World) -> list[SessionResult]:
    """Write every session's text by the draft alone: its best token at each place, one draft step a token."""
    return [_write(world.own(session), key) for key, session in enumerate(world.sessions())]


def _write(world: World, key: int) -> SessionResult:
    knowledge = world.draft.session(Draws(world.seed, key), world.session_place(key), world.prompt_tokens)
    step, prompt = world.device.draft_step_time(1), world.device.prompt_time
    stats = SessionStats(
        committed=world.tokens,
        accepted=world.tokens,
        draft_steps=world.tokens,
        drafted=world.tokens,
        draft_time=prompt + step * world.tokens,
    )
    arrivals = tuple(prompt + step * count for count in range(1, world.tokens + 1))
    return SessionResult((BEST,) * world.tokens, target_text(knowledge, world), arrivals, stats, 0, 0)


# The draft beside the target: no network between them, the user's network behind both.

BESIDE = LinkSpec(rtt=0.0)
"""Between draft and target in one machine."""


class ColocatedDraft(SimulatedDevice):
    """Drafts elsewhere than on the user's device: here at the server. The user's request and text cross the
    world's link.

    The draft has a processor of its own, at the pace of `VerifierSpec.draft` (by default the device's), has
    no power budget, and does not wait for other sessions' drafts. That favours this scheme.
    """

    def __init__(
        self, events: EventHeap, verifier: SimulatedVerifier, world: World, key: int, make: PolicyMaker
    ) -> None:
        there, link = self._place(world)
        super().__init__(events, verifier, there, key, make)
        draws = Draws(world.seed, key)
        self._from_user = VirtualLane(events, link, UP, draws)
        self._to_user = VirtualLane(events, link, DOWN, draws)
        self._emitted: list[Emit] = []  # by the message that is being taken in

    def _place(self, world: World) -> tuple[World, LinkSpec]:
        """Return the world of the place where the draft runs, and the link from the user to it."""
        beside = world.verifier.draft or replace(world.device, max_draft_steps_per_second=0.0)
        return replace(world, link=BESIDE, device=beside), world.link

    def start(self) -> None:
        self.began_at = self._events.now
        config = self.session.config
        request = Open(config.prompt, config.sampling, config.fingerprint)
        self._from_user.carry(encode_request(request).ByteSize() + FRAME, self._start_session)

    @property
    def num_bytes(self) -> tuple[int, int]:
        return self._from_user.num_bytes, self._to_user.num_bytes

    def _receive(self, message: ToEdge) -> None:
        """What the verifier sends goes on to the user as it is, as a streaming server would send it."""
        super()._receive(message)
        emitted, self._emitted = self._emitted, []
        self._to_user.carry(encode_response(message).ByteSize() + FRAME, partial(self._deliver, emitted))

    def _emit(self, effect: Emit) -> None:
        self._emitted.append(effect)

    def _deliver(self, emitted: list[Emit]) -> None:
        for effect in emitted:
            super()._emit(effect)


SERVER_STREAMING, SYNC_BEST, FORERUN, CLAIRVOYANT = "server_streaming", "sync_best", "forerun", "clairvoyant"
COLOCATED, DEVICE_ONLY = "colocated", "device_only"
BLOCKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Lengths searched for `sync_best`, and for `colocated` without a policy of its own."""

SEARCHED = {SYNC_BEST: "sync", COLOCATED: f"{COLOCATED}:sync"}

NAMED = {SERVER_STREAMING: "off", FORERUN: "adaptive"}

PLACES = "forerun.places"
"""Entry points of a `SimulatedDevice` whose draft does not run on the device alone, besides `colocated`. A
scheme is PLACE or PLACE:POLICY; without a policy it is `adaptive`."""


class ClairvoyantPolicy(GrowthPolicy):
    """Knows which of the draft's candidates is right, and proposes nothing else: the bound.

    The policy cannot propose what the draft does not offer, and its draft steps take the usual time.
    """

    name = CLAIRVOYANT
    fill = True

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge

    def branch(
        self, view: GrowthView, node: Node, candidates: Sequence[TokenCandidate]
    ) -> Sequence[TokenCandidate]:
        right = self._knowledge.truth(node.position + 1)
        return [candidate for candidate in candidates if candidate.token == right]

    def expand(self, view: GrowthView) -> Sequence[Node]:
        if view.tree.num_speculative >= view.credit:
            return ()
        return expandable(view)[:1]

    def send(self, view: GrowthView) -> Sequence[Node]:
        return unsent(view)[: view.credit_left]


def variants(scheme: str) -> list[str]:
    """List the policies that run for a scheme; the best counts."""
    return [f"{SEARCHED[scheme]}:{block}" for block in BLOCKS] if scheme in SEARCHED else [scheme]


def is_bounded(scheme: str) -> bool:
    """Return whether the clairvoyant bound bounds the scheme."""
    return scheme != DEVICE_ONLY and _device_of(scheme) is SimulatedDevice


def check_scheme(scheme: str) -> None:
    """Raise `UserError` for an unknown scheme."""
    if scheme != DEVICE_ONLY:
        policy_maker(_policy(variants(scheme)[0]))


def run_scheme(scheme: str, world: World) -> list[SessionResult]:
    """Run one of the `variants` in one world. Raises `UserError`."""
    return dealt_back(world, [run_replica(scheme, world, each) for each in range(world.num_verifiers)])


def run_replica(scheme: str, world: World, replica: int) -> list[SessionResult]:
    """Run the part of `run_scheme` that one of the verifiers serves. Raises `UserError`."""
    if scheme == DEVICE_ONLY:
        texts = draft_alone(world)
        return [texts[key] for key in dealt(world)[replica]]
    return simulate_replica(world, policy_maker(_policy(scheme)), _device_of(scheme), replica)


def policy_maker(scheme: str) -> PolicyMaker:
    """Make policies from a scheme's name or a growth policy for `make_policy`. Raises `UserError`."""
    if scheme == CLAIRVOYANT:
        return ClairvoyantPolicy
    if scheme in SEARCHED:
        raise UserError(f"{scheme} is a search over {BLOCKS}; a single run needs {SEARCHED[scheme]}:K")
    if scheme == DEVICE_ONLY:
        raise UserError(f"{DEVICE_ONLY} has no growth policy: it sends nothing")
    policy = NAMED.get(scheme, scheme)
    make_policy(policy)  # a name that is wrong is refused now

    def make(_: Knowledge) -> GrowthPolicy:
        return make_policy(policy)

    return make


def _device_of(scheme: str) -> type[SimulatedDevice]:
    """Return the kind of device that runs the scheme."""
    place = scheme.partition(":")[0]
    if place == COLOCATED:
        return ColocatedDraft
    elsewhere = offered(PLACES).get(place)
    return SimulatedDevice if elsewhere is None else elsewhere.load()


def _policy(scheme: str) -> str:
    place, _, policy = scheme.partition(":")
    if place == COLOCATED:
        return policy or scheme
    return (policy or NAMED[FORERUN]) if place in offered(PLACES) else scheme
