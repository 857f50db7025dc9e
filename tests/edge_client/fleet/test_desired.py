"""A document holds in full, old ones never come back, and no message raises."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.fleet.desired import DesiredState
from edge_client.fleet.document import Document, Kill, PayloadError, seal
from tests.edge_client.fleet.signed import DAY, NOW, document, sign, verify

TREE, CHAIN = {"draft.policy": "tree"}, {"draft.policy": "chain"}


Holds = tuple[Kill, Mapping[str, Any], int | None, int | None]


class DeviceState:
    """A device's documents, its clock, its state file and the daemon behind it, which refuses one policy."""

    def __init__(
        self, memory: bytes = b"", key: bytes = b"fleet", wall: float = NOW, bad: str = "bad"
    ) -> None:
        self.settings: Mapping[str, Any] = {}
        self.kills = list[Kill]()
        self.bad, self.wall = bad, wall
        self.desired = DesiredState("acme", key.decode(), verify(key), self.apply, self.kills.append)
        self.memory = memory or self.desired.dump()
        self.desired.load(self.memory)
        self.desired.settle(wall)

    def apply(self, settings: Mapping[str, Any]) -> str:
        if settings.get("draft.policy") == self.bad:
            return "draft.policy is bad"
        self.settings = settings
        return ""

    def hears(self, *payloads: bytes) -> None:
        for payload in payloads:
            if self.desired.take(payload):
                self.memory = self.desired.dump()
            self.desired.settle(self.wall)

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.desired.settle(self.wall)

    def holds(self) -> Holds:
        """The kill switch, the settings, and the versions that are applied and refused."""
        return self.desired.kill, self.settings, self.desired.applied, self.desired.refused


NOTHING: Holds = (Kill.NONE, {}, None, None)


def test_a_newer_document_replaces_all_of_the_older_one() -> None:
    world = DeviceState()
    world.hears(document(1, kill=Kill.HALT))
    assert world.holds() == (Kill.HALT, TREE, 1, None)
    world.hears(document(2, settings={"draft.recall": False}))
    assert world.holds() == (Kill.NONE, {"draft.recall": False}, 2, None)
    assert world.kills == [Kill.HALT, Kill.NONE]


@pytest.mark.parametrize("version", [1, 4, 5])
def test_a_version_that_is_not_newer_is_rejected_also_after_a_restart(version: int) -> None:
    world = DeviceState()
    world.hears(document(5))
    for each in (world, DeviceState(world.memory)):
        each.hears(document(version, settings=CHAIN, kill=Kill.HALT))
        assert (each.holds(), each.desired.rejected) == ((Kill.NONE, TREE, 5, None), 1)


def test_a_retained_document_that_comes_again_is_no_news() -> None:
    world = DeviceState()
    world.hears(document(5), document(5), b"")  # an empty payload clears the topic and ends nothing
    assert (world.holds(), world.desired.rejected) == ((Kill.NONE, TREE, 5, None), 0)


STRANGE = (
    document(1, key=b"thief", kill=Kill.HALT),
    document(1, tenant="other", kill=Kill.HALT),
    document(1, kill=Kill.HALT) + b" " * 8192,
    *(b"{}", b"\xff", b"[" * 8000),
)


@pytest.mark.parametrize("payload", STRANGE, ids=["key", "tenant", "size", "keys", "utf-8", "nesting"])
def test_what_no_trusted_key_signed_for_this_tenant_changes_nothing(payload: bytes) -> None:
    world = DeviceState()
    world.hears(payload)
    assert (world.holds(), world.desired.rejected) == (NOTHING, 1)


def test_settings_that_cannot_be_applied_leave_those_in_force_and_the_kill_switch_acts() -> None:
    """Those in force end at their own end, and with a restart."""
    world = DeviceState()
    soon = NOW + DAY / 2
    bad = document(2, settings={"draft.policy": "bad"}, kill=Kill.REMOTE_OFF)
    world.hears(document(1, expires_at=soon), bad)
    assert world.holds() == (Kill.REMOTE_OFF, TREE, 1, 2)
    again = DeviceState(world.memory)
    world.passes(0.6 * DAY)
    for each in (world, again):
        assert each.holds() == (Kill.REMOTE_OFF, {}, None, 2)
        each.hears(document(3, settings=CHAIN))
        assert each.holds() == (Kill.NONE, CHAIN, 3, None)


def test_a_document_holds_until_its_end_and_over_a_restart() -> None:
    world = DeviceState()
    world.hears(document(1, kill=Kill.HALT))
    again = DeviceState(world.memory)
    for seconds in (0.0, DAY + 300.0):
        again.passes(seconds)
        assert again.holds() == (Kill.HALT, TREE, 1, None)
    again.passes(1.0)
    assert again.holds() == (Kill.NONE, {}, None, 1)


def test_no_older_document_comes_back_at_the_end_of_a_newer_one() -> None:
    world = DeviceState()
    world.hears(document(1, expires_at=NOW + 9 * DAY, kill=Kill.HALT), document(2, settings=CHAIN))
    world.passes(2 * DAY)
    assert world.holds() == (Kill.NONE, {}, None, 2)
    assert DeviceState(world.memory, wall=world.wall).holds() == (Kill.NONE, {}, None, 2)


def test_a_clock_that_is_set_later_decides_then() -> None:
    world = DeviceState(wall=NOW + 30 * DAY)
    world.hears(document(1, kill=Kill.HALT))
    assert world.holds() == (Kill.NONE, {}, None, 1)
    world.passes(-30 * DAY)
    assert world.holds() == (Kill.HALT, TREE, 1, None)


def test_a_new_key_ends_what_a_stolen_one_has_signed() -> None:
    """However large its version is; and the old key's versions are still known when it is trusted again."""
    world = DeviceState()
    world.hears(document(2**53 - 1, kill=Kill.HALT), document(7))
    rotated = DeviceState(world.memory, key=b"new")
    assert rotated.holds() == NOTHING
    rotated.hears(document(8, key=b"new", settings=CHAIN))
    assert rotated.holds() == (Kill.NONE, CHAIN, 8, None)
    back = DeviceState(rotated.memory)
    back.hears(document(9))
    assert (back.holds(), back.desired.rejected) == (NOTHING, 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"forerun fleet state", b"something else"),
        (b'"version": 2', b'"version": 3'),
        (b'"fleet": 3', b'"fleet": "3"'),
        (b'"newest"', b'"newish"'),
        (b"{", b"["),
    ],
)
def test_a_damaged_state_is_refused(old: bytes, new: bytes) -> None:
    world = DeviceState()
    world.hears(document(2), document(3))
    assert old in world.memory
    with pytest.raises(PayloadError):
        DeviceState(world.memory.replace(old, new))


@given(
    payloads=st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.sampled_from([document(1), document(2), document(3, kill=Kill.HALT), b"{}", b""]),
            st.builds(
                lambda version, ends: seal(Document(tenant="acme", version=version, expires_at=ends), sign()),
                st.integers(0, 9),
                st.floats(0, 1e12),
            ),
        ),
        max_size=8,
    ),
    wall=st.floats(-1e10, 1e13),
)
def test_no_message_at_no_time_raises_and_versions_only_grow(payloads: list[bytes], wall: float) -> None:
    world, newest = DeviceState(wall=wall), 0
    for payload in payloads:
        world.hears(payload)
        applied = world.desired.applied or 0
        assert applied == 0 or applied >= newest
        newest = max(newest, applied)


def test_the_signature_covers_the_domain() -> None:
    """A signature of the bare text, as another program would make it, is not believed."""
    payload = document(1, kill=Kill.HALT)
    sealed = json.loads(payload)
    bare = json.dumps(sealed | {"signature": sign()(sealed["document"].encode()).hex()}).encode()
    world = DeviceState()
    world.hears(bare)
    assert world.holds() == NOTHING
    world.hears(payload)
    assert world.desired.kill is Kill.HALT
