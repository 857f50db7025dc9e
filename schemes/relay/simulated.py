"""Simulates a relay near the edge: the real `RelaySession`, between a simulated device and the verifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from common.errors import LocalError
from common.messages import Close, Open, Propose
from edge_client.core.policies import make_policy
from schemes.relay.session import RelaySession, config_of
from schemes.relay.tier import beyond, both_knowledges, tier_of
from simulator.drafts import HONEST
from simulator.events import EventHeap
from simulator.knowledge import Knowledge
from simulator.link_spec import LinkSpec
from simulator.schemes import ColocatedDraft
from simulator.system import (
    FINGERPRINT,
    PolicyMaker,
    Receiver,
    SimulatedDevice,
    SimulatedVerifier,
    ToEdge,
)
from simulator.world import World


class NearDraft(ColocatedDraft):
    """Drafts with the middle model at the near edge. The device only shows the text."""

    def _place(self, world: World) -> tuple[World, LinkSpec]:
        return beyond(world), LinkSpec(rtt=tier_of(world).rtt)

    def _known(self) -> Knowledge:
        return both_knowledges(self.world, self.key)[1]


class RelayedDevice(SimulatedDevice):
    """Drafts for a relay near the edge, which drafts for the verifier."""

    def __init__(
        self, events: EventHeap, verifier: SimulatedVerifier, world: World, key: int, make: PolicyMaker
    ) -> None:
        relay = SimulatedRelay(events, verifier, world, key, super().to_edge)
        near = LinkSpec(rtt=tier_of(world).rtt)
        super().__init__(events, relay, replace(world, link=near), key, make)
        self._relay = relay

    def to_edge(self, message: ToEdge) -> None:
        """What the verifier sends goes to the relay."""
        self._relay.to_edge(message)


class SimulatedRelay(SimulatedDevice):
    """Drives a `RelaySession`. To the verifier it is a device whose draft model is the middle one."""

    def __init__(
        self,
        events: EventHeap,
        verifier: Receiver,
        world: World,
        key: int,
        answer: Callable[[ToEdge], None],
    ) -> None:
        super().__init__(events, verifier, beyond(world), key, lambda _: make_policy("adaptive"))
        self._answer = answer
        self._relayed: RelaySession | None = None

    def _known(self) -> Knowledge:
        return both_knowledges(self.world, self.key)[1]

    def receive(self, device: SimulatedDevice, message: Open | Propose | Close) -> None:
        """Take a message of the device."""
        now = self._events.now
        match message:
            case Open():
                config = config_of(message, FINGERPRINT, prior=HONEST, asks_when_silent=False)
                config = replace(config, num_read=len(message.prompt))
                pace = self.world.device.pace()
                self._relayed = RelaySession(message, config, make_policy("adaptive"), pace)
                self.session = self._relayed.edge
                self._start_session()
            case Propose():
                self._open_session().on_propose(message, now)
                self._carry_out()
            case Close():
                self._open_session().on_close(now)
                self._carry_out()

    def _take(self, message: ToEdge) -> None:
        self._open_session().on_message(message, self._events.now, plan=False)

    def _send(self, message: Open | Propose | Close) -> None:
        self._open_session().sent(message)
        super()._send(message)

    def _carry_out(self) -> None:
        super()._carry_out()
        for answer in self._open_session().answers():
            self._answer(answer)

    def _open_session(self) -> RelaySession:
        if self._relayed is None:
            raise LocalError("a relay got a message before the Open")
        return self._relayed
