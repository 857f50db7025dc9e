"""A world in which each stream of a device ends at a relay, whose own streams go to the verifiers."""

from collections.abc import Callable
from dataclasses import dataclass

from cloud_verifier.core import effects as server_effects
from common.errors import UnavailableError
from common.messages import Close, Open, Propose, ServerMessage
from common.prompt_lookup import NO_TEXTS
from edge_client.core.policies import GrowthPolicy
from schemes.relay.session import RelaySession, config_of
from tests.worlds.models import FINGERPRINT, TinyDrafter
from tests.worlds.world import Edge, EdgeSpec, World, WorldSpec


@dataclass
class Relay:
    """One text at the relay: its session, driven as an edge's, and the device's stream."""

    edge: Edge
    session: RelaySession
    stream: int


class RelayedWorld(World):
    """Runs a `WorldSpec` with a relay before its verifiers. Devices and relay lose streams alike."""

    def __init__(
        self, spec: WorldSpec, policy: Callable[[], GrowthPolicy], drafter: Callable[[], TinyDrafter]
    ) -> None:
        super().__init__(spec)
        self.relays: list[Relay] = []
        self._policy, self._drafter = policy, drafter

    def _relay_at(self, stream: int) -> Relay | None:
        return next((each for each in self.relays if each.stream == stream), None)

    def _relay_of(self, edge: Edge) -> Relay | None:
        return next((relay for relay in self.relays if relay.edge is edge), None)

    def _up(self, edge: Edge, message: Open | Propose | Close) -> None:
        if (relay := self._relay_of(edge)) is not None:
            relay.session.sent(message)
            super()._up(edge, message)
            return
        stream = edge.stream
        if stream in self.streams:
            self._delayed(stream, "up", lambda: self._relay_receives(stream, message))

    def _relay_receives(self, stream: int, message: Open | Propose | Close) -> None:
        relay = self._relay_at(stream)
        match message:
            case Open():
                self._open(stream, message)
            case Propose() if relay is not None:
                session = relay.session
                self._input(relay.edge, lambda: session.on_propose(message, self.now))
            case Close() if relay is not None:
                self._input(relay.edge, lambda: relay.session.on_close(self.now))

    def _open(self, stream: int, message: Open) -> None:
        begun = message.committed
        spec = EdgeSpec(message.prompt, message.sampling, self._policy, self._drafter, committed=begun)
        edge = Edge(len(self.edges) + len(self.relays), spec, self.spec.memory, NO_TEXTS)
        session = RelaySession(message, config_of(message, FINGERPRINT), self._policy())
        edge.session = session.edge
        self.relays.append(Relay(edge, session, stream))
        self._input(edge, lambda: session.edge.start(self.now))

    def _take(self, edge: Edge, message: ServerMessage, plan: bool) -> None:
        relay = self._relay_of(edge)
        machine = edge.session if relay is None else relay.session
        machine.on_message(message, self.now, plan=plan)

    def _input(self, edge: Edge, call: Callable[[], None]) -> None:
        super()._input(edge, call)
        relay = self._relay_of(edge)
        if relay is None:
            return
        for answer in relay.session.answers():
            self.down(relay.stream, answer)
        if edge.end is not None and relay.stream >= 0:
            self.down(relay.stream, server_effects.End(relay.stream, edge.end.error))
            relay.stream = -1

    def _break(self, stream: int, tell_edge: bool) -> None:
        relay = self._relay_at(stream)
        if relay is None:
            super()._break(stream, tell_edge)
            return
        edge = self.streams.pop(stream)

        def relay_learns() -> None:
            relay.stream = -1
            if relay.edge.end is None:
                self._input(relay.edge, lambda: relay.edge.session.close(self.now))

        def edge_learns() -> None:
            if edge.stream == stream and edge.is_waiting:
                self._lose(edge, UnavailableError("the link broke"))

        self.at(self.now + self.random.uniform(0.0, 0.3), relay_learns)
        if tell_edge:
            self.at(self.now + self.random.uniform(0.0, 0.3), edge_learns)
