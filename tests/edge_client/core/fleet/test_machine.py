"""The machine: what arrives never raises, what it answers was signed, and what it wants comes in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edge_client.core.fleet.effects import Changed, Effect, Offered, Publish, Run, Save
from edge_client.core.fleet.machine import LOOK_AGAIN_TIME, FleetMachine, Trust
from edge_client.core.fleet.memory import Memory
from edge_client.core.fleet.names import DeviceTopics
from edge_client.core.fleet.orders import Reason
from edge_client.core.fleet.payloads import (
    Ack,
    CommandName,
    ConfigFault,
    EventKind,
    Fault,
    Kill,
    Outcome,
    Presence,
    Reported,
    State,
)
from edge_client.core.fleet.presence import AGAIN_TIME, About
from edge_client.core.fleet.record import decode, encode
from edge_client.core.fleet.standing import FleetOrders, Stream
from tests.edge_client.core.fleet.signed import DAY, NOW, command, config, kill, verify
from tests.edge_client.core.fleet.test_discovery import signed, status

TOPICS = DeviceTopics("acme", "pi-1")


class World:
    """A machine, its clock and what it asked for."""

    def __init__(self, memory: Memory | None = None, connected: bool = True) -> None:
        self.applied = list[Mapping[str, Any]]()
        trust = Trust(verify(), verify(b"fleet", b"verifiers"), frozenset({"draft.depth", "draft.width"}))
        self.machine = FleetMachine(TOPICS, trust, self.apply)
        self.now, self.wall = 10.0, NOW
        self.memory = memory or Memory()
        self.machine.on_start(self.memory, self.wall)
        if connected:
            self.connect()

    def apply(self, values: Mapping[str, Any]) -> list[str]:
        if values.get("draft.depth") == 13:
            return ["draft.depth is 13, and the secret of /home/ann is sk-1"]
        self.applied.append(values)
        return []

    def connect(self) -> Presence:
        will = self.machine.connecting(self.wall)
        self.machine.on_connected(self.now, self.wall)
        return will

    def hears(self, topic: str, payload: bytes) -> list[Effect]:
        self.drain()
        self.machine.on_message(topic, payload, self.now, self.wall)
        return self.drain()

    def passes(self, seconds: float) -> list[Effect]:
        self.now, self.wall = self.now + seconds, self.wall + seconds
        self.machine.on_timer(self.now, self.wall)
        return self.drain()

    def drain(self) -> list[Effect]:
        found = self.machine.drain()
        for effect in found:
            if isinstance(effect, Save):
                self.memory = Memory.from_bytes(effect.memory.to_bytes())
        return found

    def kinds(self) -> list[EventKind]:
        """Of the events that wait, all of them."""
        found = []
        while (event := self.machine.events.take(self.now)) is not None:
            found.append(event[0].kind)
            self.machine.events.on_told(event[0].dropped)
        return found


def reported(effects: list[Effect]) -> Reported:
    (found,) = [one for one in effects if isinstance(one, Publish) and one.topic == TOPICS.reported]
    assert found.retain
    return decode(Reported, found.payload)


def test_a_connection_begins_with_a_birth_and_a_report_under_a_new_epoch() -> None:
    world = World(connected=False)
    wills = [world.connect().epoch, world.connect().epoch]
    assert wills[1] == wills[0] + 1
    first, second = [one for one in world.drain() if isinstance(one, Publish)][-2:]
    assert (first.topic, first.retain) == (TOPICS.status, True)
    assert decode(Presence, first.payload).epoch == wills[1]
    assert (second.topic, second.retain) == (TOPICS.reported, True)


def test_an_epoch_grows_over_restarts_also_if_the_clock_runs_backwards() -> None:
    world = World()
    world.drain()
    again = World(world.memory, connected=False)
    again.wall = 0.0
    assert again.connect().epoch == world.machine.epoch + 1


def test_a_good_order_is_saved_then_told_then_reported() -> None:
    effects = World().hears(TOPICS.desired, config(3))
    assert [type(one) for one in effects] == [Save, Changed, Publish]
    assert effects[1] == Changed(FleetOrders(Kill.NONE, {"draft.depth": 4}))
    found = reported(effects)
    assert (found.rev, found.ok, found.errors) == (3, True, ())


def test_a_bad_order_is_reported_with_its_keys_and_the_last_good_one_stands() -> None:
    world = World()
    world.hears(TOPICS.desired, config(1))
    found = reported(world.hears(TOPICS.desired, config(2, values={"draft.depth": 1, "draft.deep": 1})))
    assert (found.rev, found.ok, found.refused_rev) == (1, False, 2)
    assert found.errors == (ConfigFault(fault=Fault.UNKNOWN_KEY, key="draft.deep"),)
    assert world.machine.orders.values == {"draft.depth": 4}
    assert world.hears(TOPICS.desired, config(2, values={"draft.depth": 1, "draft.deep": 1})) == []


def test_what_apply_says_stays_on_the_device() -> None:
    world = World()
    effects = world.hears(TOPICS.desired, config(1, values={"draft.depth": 13}))
    assert reported(effects).errors == (ConfigFault(fault=Fault.BAD_VALUE, key="draft.depth"),)
    assert all(b"ann" not in one.payload for one in effects if isinstance(one, Publish))
    assert "/home/ann" in world.machine.last_refusal


def test_what_nobody_signed_is_counted_and_not_answered() -> None:
    world = World()
    for payload in (config(1, key=b"thief"), config(1, device="pi-2"), b"{}", b"\xff", b"[" * 8000):
        assert world.hears(TOPICS.desired, payload) == []
    refused = world.machine.refused
    assert (refused[Reason.UNSIGNED], refused[Reason.ELSEWHERE], refused[Reason.MALFORMED]) == (1, 1, 3)
    assert world.kinds() == [EventKind.ORDER_REFUSED]


def test_the_kill_switch_works_without_a_broker_until_its_end_and_over_a_restart() -> None:
    world = World()
    assert Changed(FleetOrders(Kill.HALT)) in world.hears(TOPICS.shared.kill, kill(1, Kill.HALT))
    world.machine.on_lost()
    again = World(world.memory, connected=False)
    assert Changed(FleetOrders(Kill.HALT)) in again.drain()
    assert again.passes(DAY + 299.0) == []
    effects = again.passes(2.0)
    assert Changed(FleetOrders()) in effects
    assert not [one for one in effects if isinstance(one, Publish)]
    assert EventKind.ORDER_EXPIRED in again.kinds()


def test_the_end_of_an_order_is_when_the_timer_is_due() -> None:
    world = World()
    world.hears(TOPICS.shared.kill, kill(1, Kill.HALT, not_after=NOW + 100))
    assert world.machine.next_at(world.now, world.wall) == world.now + 401.0
    assert Changed(FleetOrders()) in world.passes(401.0)


def test_an_order_that_the_clock_does_not_allow_yet_is_looked_at_again() -> None:
    world = World()
    world.wall = NOW - 30 * DAY
    found = reported(world.hears(TOPICS.desired, config(1)))
    assert (found.ok, found.errors) == (False, (ConfigFault(fault=Fault.CLOCK),))
    assert world.machine.next_at(world.now, world.wall) == world.now + LOOK_AGAIN_TIME
    world.wall = NOW  # NTP has answered
    assert Changed(FleetOrders(Kill.NONE, {"draft.depth": 4})) in world.passes(LOOK_AGAIN_TIME)


def test_a_command_is_remembered_before_it_runs_and_answered_after() -> None:
    world = World()
    effects = world.hears(TOPICS.command("a1"), command("a1", "load_draft"))
    assert [type(one) for one in effects] == [Save, Run]
    assert effects[1] == Run("a1", CommandName.LOAD_DRAFT)
    world.machine.on_ran("a1", Outcome.DONE, world.wall)
    _, ack = world.drain()
    assert isinstance(ack, Publish)
    assert (ack.topic, ack.retain, decode(Ack, ack.payload).outcome) == (
        TOPICS.ack("a1"),
        False,
        Outcome.DONE,
    )
    (again,) = world.hears(TOPICS.command("a1"), command("a1", "load_draft"))
    assert isinstance(again, Publish)
    assert decode(Ack, again.payload).outcome is Outcome.DONE


def test_an_unknown_command_is_refused_with_an_answer() -> None:
    (ack,) = World().hears(TOPICS.command("a1"), command("a1", "shell"))
    assert isinstance(ack, Publish)
    assert decode(Ack, ack.payload).outcome is Outcome.UNKNOWN


def test_a_late_will_is_overwritten_by_the_birth() -> None:
    world = World()
    world.passes(AGAIN_TIME + 1)
    late = Presence(state=State.OFFLINE, epoch=world.machine.epoch - 1, at=0.0)
    (again,) = world.hears(TOPICS.status, encode(late))
    assert isinstance(again, Publish)
    assert decode(Presence, again.payload).state is State.ONLINE
    assert world.hears(TOPICS.status, encode(late)) == []  # too soon
    (again,) = world.passes(AGAIN_TIME)
    assert isinstance(again, Publish)


def test_another_process_under_our_name_is_told() -> None:
    world = World()
    other = Presence(state=State.ONLINE, epoch=world.machine.epoch + 1, at=0.0)
    world.hears(TOPICS.status, encode(other))
    assert EventKind.TAKEN_OVER in world.kinds()


def test_what_the_birth_tells_is_told_anew_when_it_changes() -> None:
    world = World()
    world.drain()
    world.machine.on_about(About(draft="other"), world.now, world.wall)
    assert world.drain() == []
    (again,) = world.passes(AGAIN_TIME)
    assert isinstance(again, Publish)
    assert decode(Presence, again.payload).draft == "other"


def test_offers_reach_the_daemon_and_run_out() -> None:
    world = World()
    (offered,) = world.hears(TOPICS.shared.verifier("v1"), signed(status(), key=b"verifiers"))
    assert isinstance(offered, Offered)
    assert [offer.endpoint for offer in offered.offers] == ["gpu.acme.example:443"]
    assert world.passes(DAY + 301.0) == [Offered(())]


def test_a_verifiers_key_gives_no_orders() -> None:
    world = World()
    assert world.hears(TOPICS.shared.kill, kill(1, Kill.HALT, key=b"verifiers")) == []
    assert world.machine.orders == FleetOrders()


@given(
    topic=st.sampled_from(
        [TOPICS.desired, TOPICS.status, TOPICS.command("a1"), TOPICS.shared.kill, TOPICS.shared.verifier("v")]
    ),
    payloads=st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.sampled_from(
                [config(1), config(2), kill(1, Kill.HALT), command("a1"), signed(status()), b"{}", b""]
            ),
        ),
        max_size=8,
    ),
    wall=st.floats(-1e10, 1e13),
)
def test_no_message_at_no_time_raises(topic: str, payloads: list[bytes], wall: float) -> None:
    world = World()
    world.wall = wall
    for payload in payloads:
        world.hears(topic, payload)
        world.passes(1.0)
        at = world.machine.next_at(world.now, world.wall)
        assert at is None or at >= world.now - AGAIN_TIME
    assert set(world.machine.revs) == set(Stream)
