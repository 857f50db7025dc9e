"""What stands: the newest good order of each line, until its end; the device's own over the fleet's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from edge_client.core.fleet.orders import OrderRefused, Reason
from edge_client.core.fleet.payloads import ConfigFault, Fault, Kill
from edge_client.core.fleet.standing import FleetOrders, Standing, Stream
from tests.edge_client.core.fleet.signed import DAY, NOW, config, kill, verify


class Daemon:
    """Takes every setting but a depth above 9."""

    def __init__(self) -> None:
        self.applied = list[Mapping[str, Any]]()

    def apply(self, values: Mapping[str, Any]) -> list[str]:
        if values.get("draft.depth", 0) > 9:
            return ["draft.depth is above 9; /home/ann says so"]
        self.applied.append(values)
        return []


def standing(daemon: Daemon | None = None, **options: Any) -> Standing:
    return Standing("acme", "pi-1", verify(), (daemon or Daemon()).apply, **options)


def take(it: Standing, stream: Stream, payload: bytes, wall: float = NOW) -> bool:
    """Whether it was new. Raises `OrderRefused`."""
    order = it.judge(stream, payload, wall)
    if order is not None:
        it.hold(stream, order, payload)
    return order is not None


def test_the_devices_own_settings_beat_the_fleets_and_kill_stands_beside() -> None:
    it = standing()
    take(it, Stream.FLEET, config(1, "*", values={"draft.depth": 2, "draft.width": 3}))
    take(it, Stream.DEVICE, config(1, values={"draft.depth": 4}))
    take(it, Stream.KILL, kill(1, Kill.DRAFT_OFF))
    assert it.orders == FleetOrders(Kill.DRAFT_OFF, {"draft.depth": 4, "draft.width": 3})


def test_a_retained_order_that_comes_again_is_no_news() -> None:
    daemon = Daemon()
    it = standing(daemon)
    assert take(it, Stream.DEVICE, config(5))
    assert not take(it, Stream.DEVICE, config(5))
    assert len(daemon.applied) == 1


@pytest.mark.parametrize("rev", [1, 4, 5])
def test_a_revision_that_is_not_newer_is_a_replay(rev: int) -> None:
    it = standing()
    take(it, Stream.DEVICE, config(5))
    with pytest.raises(OrderRefused, match="is not newer than 5") as found:
        take(it, Stream.DEVICE, config(rev, values={"draft.depth": 1}))
    assert found.value.reason is Reason.REPLAYED


def test_replays_are_refused_after_the_order_has_ended_and_after_a_restart() -> None:
    it = standing()
    old = config(4)
    take(it, Stream.DEVICE, config(5, not_after=NOW + 100))
    assert it.expire(NOW + 401) == [Stream.DEVICE]
    assert it.orders == FleetOrders()
    again = standing()
    again.restore(it.payloads, it.revs, it.signed_at)
    with pytest.raises(OrderRefused):
        take(again, Stream.DEVICE, old, NOW + 401)


def test_what_stood_before_a_restart_stands_after_it_if_its_key_is_still_trusted() -> None:
    it = standing()
    take(it, Stream.KILL, kill(3, Kill.HALT))
    again = standing()
    again.restore(it.payloads, it.revs, it.signed_at)
    assert again.orders.kill is Kill.HALT
    rotated = Standing("acme", "pi-1", verify(b"new"), Daemon().apply)
    rotated.restore(it.payloads, it.revs, it.signed_at)
    assert rotated.orders.kill is Kill.NONE


def test_a_bad_revision_changes_nothing_and_names_the_key_but_quotes_nothing() -> None:
    it = standing()
    take(it, Stream.DEVICE, config(1))
    with pytest.raises(OrderRefused) as found:
        take(it, Stream.DEVICE, config(2, values={"draft.depth": 10}))
    assert found.value.faults == (ConfigFault(fault=Fault.BAD_VALUE, key="draft.depth"),)
    assert it.orders.values == {"draft.depth": 4}
    assert it.revs[Stream.DEVICE] == 1
    assert take(it, Stream.DEVICE, config(2, values={"draft.depth": 5}))  # the same revision, mended


def test_one_wrong_key_refuses_the_whole_order() -> None:
    it = standing(allowed=frozenset({"draft.depth"}))
    with pytest.raises(
        OrderRefused, match=r"api\.key \(forbidden key\), draft\.deep \(unknown key\)"
    ) as found:
        take(it, Stream.DEVICE, config(1, values={"draft.depth": 1, "api.key": "x", "draft.deep": 1}))
    assert {one.key for one in found.value.faults} == {"api.key", "draft.deep"}
    assert it.orders == FleetOrders()


def test_a_cleared_topic_ends_nothing() -> None:
    it = standing()
    take(it, Stream.KILL, kill(1, Kill.HALT))
    assert not take(it, Stream.KILL, b"")
    assert it.orders.kill is Kill.HALT


def test_an_order_without_its_content_is_malformed() -> None:
    with pytest.raises(OrderRefused, match="what is wanted"):
        take(standing(), Stream.DEVICE, config(1, values=None))


def test_the_next_end_is_known() -> None:
    it = standing()
    assert it.expires_at is None
    take(it, Stream.DEVICE, config(1, not_after=NOW + 2 * DAY))
    take(it, Stream.KILL, kill(1, Kill.HALT, not_after=NOW + DAY))
    assert it.expires_at == NOW + DAY + 300
