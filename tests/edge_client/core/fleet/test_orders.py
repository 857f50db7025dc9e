"""An order is believed from who signed it, for whom and for how long, and for nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from edge_client.core.fleet.orders import (
    ALL,
    MAX_LIFETIME,
    Addressee,
    Clock,
    OrderKind,
    OrderRefused,
    Reason,
    check_lifetime,
    hash_of,
    unseal,
    wrong_keys,
)
from edge_client.core.fleet.payloads import Fault
from tests.edge_client.core.fleet.signed import DAY, NOW, config, verify


def refusal(payload: bytes, *keys: bytes) -> OrderRefused:
    with pytest.raises(OrderRefused) as found:
        unseal(payload, verify(*keys))
    return found.value


def test_what_was_signed_is_what_is_read() -> None:
    order = unseal(config(7, values={"draft.depth": 4, "draft.name": "demo", "x.y": True}), verify())
    assert (order.rev, order.values) == (7, {"draft.depth": 4, "draft.name": "demo", "x.y": True})


def test_another_key_is_nobody() -> None:
    found = refusal(config(1, key=b"thief"))
    assert found.reason is Reason.UNSIGNED
    assert found.order is None  # no answer is due


@given(st.data())
def test_a_changed_order_is_refused(data: st.DataObject) -> None:
    payload = bytearray(config(1))
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 6))
    with pytest.raises(OrderRefused):
        unseal(bytes(payload), verify())


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"[" * 5000, b'{"order":"{}","signature":"00"}', b"x" * 9000]
)
def test_what_is_no_envelope_is_malformed(payload: bytes) -> None:
    assert refusal(payload).reason is Reason.MALFORMED


def test_an_order_for_elsewhere_is_refused_though_its_signature_is_good() -> None:
    order = unseal(config(1, device="pi-2"), verify())
    for whom in (
        Addressee(OrderKind.CONFIG, "acme", "pi-1"),
        Addressee(OrderKind.CONFIG, "acme", ALL),
        Addressee(OrderKind.CONFIG, "other", "pi-2"),
        Addressee(OrderKind.KILL, "acme", "pi-2"),
    ):
        with pytest.raises(OrderRefused, match="somebody moved it"):
            whom.check(order)
    Addressee(OrderKind.CONFIG, "acme", "pi-2").check(order)


def test_an_order_ends_with_a_tolerance_of_five_minutes() -> None:
    order = unseal(config(1, not_after=NOW + 100), verify())
    Clock(NOW + 400).check(order)
    with pytest.raises(OrderRefused, match=r"expired 5 minutes ago .* set the clock if it runs ahead"):
        Clock(NOW + 401).check(order)


def test_an_order_must_end() -> None:
    for not_after in (NOW, NOW - 1, NOW + MAX_LIFETIME + 1):
        with pytest.raises(OrderRefused, match="does not say an end"):
            Clock(NOW).check(unseal(config(1, not_after=not_after), verify()))


def test_an_order_from_the_future_waits_for_a_right_clock() -> None:
    order = unseal(config(1, at=NOW, not_after=NOW + 10 * DAY), verify())
    with pytest.raises(OrderRefused, match="signed 3 days ahead of this device's clock") as found:
        Clock(NOW - 3 * DAY).check(order)
    assert found.value.reason is Reason.CLOCK
    Clock(NOW - 0.9 * DAY).check(order)  # a wrong time zone


def test_a_clock_that_was_never_set_is_not_believed_but_signed_times_are() -> None:
    old, new = (unseal(config(1, at=at, not_after=at + DAY), verify()) for at in (NOW, NOW + 5 * DAY))
    Clock(wall=0.0).check(new)
    with pytest.raises(OrderRefused, match="expired 4 days ago"):
        Clock(wall=0.0, signed_at=NOW + 5 * DAY).check(old)


def test_time_does_not_run_backwards() -> None:
    assert Clock(NOW, signed_at=NOW + 50).now == NOW + 50
    assert Clock(NOW, signed_at=NOW - 50).now == NOW


@pytest.mark.parametrize(
    "key",
    ["fleet.keys", "api.key", "api.api_key", "daemon.listen", "verifier.address", "tls.ca", "draft.path",
            "state_dir", "log.file", "x.password"],
)  # fmt: skip
def test_what_is_the_owners_alone_no_fleet_may_set(key: str) -> None:
    assert wrong_keys([key], None) == {key: Fault.FORBIDDEN_KEY}
    assert wrong_keys([key], frozenset({key})) == {key: Fault.FORBIDDEN_KEY}


def test_keys_that_the_daemon_does_not_have_are_named() -> None:
    assert wrong_keys(["draft.depth", "draft.deep"], frozenset({"draft.depth"})) == {
        "draft.deep": Fault.UNKNOWN_KEY
    }
    assert wrong_keys(["draft.deep"], None) == {}


def test_the_hash_is_of_the_values_and_not_of_their_order() -> None:
    assert hash_of({"a": 1, "b": 2}) == hash_of({"b": 2, "a": 1}) != hash_of({"a": 2, "b": 2})


def test_an_operator_hears_of_a_lifetime_that_no_device_takes() -> None:
    with pytest.raises(UserError, match="within 400 days"):
        check_lifetime(500 * DAY)


def test_settings_are_scalars() -> None:
    inner = json.loads(json.loads(config(1))["order"])
    assert inner["values"] == {"draft.depth": 4}
    for values in ({"a": [1]}, {"a": None}, {"A": 1}, {"a": "x" * 257}, {f"k{n}": 1 for n in range(65)}):
        with pytest.raises(Exception, match="settings by name"):
            config(1, values=values)
