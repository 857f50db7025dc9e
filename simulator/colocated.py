"""The draft beside the target: no network between them, the user's network behind both."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from common.messages import Open
from common.rpc.size import request_size, response_size
from edge_client.core.effects import Emit
from simulator.draws import Draws
from simulator.events import Events
from simulator.lane import DOWN, UP, Lane
from simulator.link import LinkSpec
from simulator.system import FRAME, PolicyMaker, SimulatedDevice, SimulatedVerifier, ToEdge
from simulator.world import World

BESIDE = LinkSpec(rtt=0.0)
"""Between draft and target in one machine."""


class ColocatedDraft(SimulatedDevice):
    """A session whose draft runs at the server. The user's request and text cross the world's link.

    The draft has a processor of its own, at the pace of `VerifierSpec.draft` (the device's, where that is
    not given), no power budget, and does not wait for other sessions' drafts. That favours this scheme.
    """

    def __init__(
        self, events: Events, verifier: SimulatedVerifier, world: World, key: int, make: PolicyMaker
    ) -> None:
        beside = world.verifier.draft or replace(world.device, max_draft_steps_per_second=0.0)
        super().__init__(events, verifier, replace(world, link=BESIDE, device=beside), key, make)
        draws = Draws(world.seed, key)
        self._from_user = Lane(events, world.link, UP, draws)
        self._to_user = Lane(events, world.link, DOWN, draws)
        self._emitted: list[Emit] = []  # by the message that is being taken in

    def start(self) -> None:
        self.began_at = self._events.now
        config = self.session.config
        request = Open(config.prompt, config.sampling, config.fingerprint)
        self._from_user.carry(request_size(request) + FRAME, self._start_session)

    @property
    def num_bytes(self) -> tuple[int, int]:
        return self._from_user.num_bytes, self._to_user.num_bytes

    def _receive(self, message: ToEdge) -> None:
        """What the verifier sends goes on to the user as it is, as a streaming server would send it."""
        super()._receive(message)
        emitted, self._emitted = self._emitted, []
        self._to_user.carry(response_size(message) + FRAME, partial(self._deliver, emitted))

    def _emit(self, effect: Emit) -> None:
        self._emitted.append(effect)

    def _deliver(self, emitted: list[Emit]) -> None:
        for effect in emitted:
            super()._emit(effect)
