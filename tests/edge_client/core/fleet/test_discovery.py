"""An offer counts if a trusted key signed it or the owner wrote its endpoint down."""

from __future__ import annotations

from typing import Any

import pytest

from edge_client.core.fleet.discovery import MAX_VERIFIERS, Discovery
from edge_client.core.fleet.orders import Clock, OrderKind, OrderRefused, Reason
from edge_client.core.fleet.payloads import State, VerifierStatus
from edge_client.core.fleet.record import encode
from tests.edge_client.core.fleet.signed import NOW, config, verify

CLOCK = Clock(NOW)


def status(epoch: int = 1, endpoint: str | None = "gpu.acme.example:443", **more: Any) -> VerifierStatus:
    fields: dict[str, Any] = {"state": State.ONLINE, "epoch": epoch, "at": NOW, "endpoint": endpoint}
    return VerifierStatus(**(fields | more))


def signed(found: VerifierStatus, name: str = "v1", **more: Any) -> bytes:
    return config(1, "*", kind=OrderKind.VERIFIER, values=None, id=name, status=(found,), **more)


def discovery(*allowed: str) -> Discovery:
    return Discovery("acme", verify(b"fleet", b"verifiers"), allowed)


@pytest.mark.parametrize("key", [b"fleet", b"verifiers"])
def test_a_signed_offer_counts(key: bytes) -> None:
    it = discovery()
    assert it.on_payload("v1", signed(status(), key=key), CLOCK)
    assert [(offer.name, offer.endpoint, offer.signed) for offer in it.offers] == [
        ("v1", "gpu.acme.example:443", True)
    ]
    assert not it.on_payload("v1", signed(status(), key=key), CLOCK)  # no news


def test_an_unsigned_offer_counts_where_the_owner_allows_it_only() -> None:
    for patterns, counts in (
        (("*.acme.example:443",), True),
        (("*.acme.example:50051",), False),
        ((), False),
    ):
        it = discovery(*patterns)
        if counts:
            assert it.on_payload("v1", encode(status()), CLOCK)
        else:
            with pytest.raises(OrderRefused) as found:
                it.on_payload("v1", encode(status()), CLOCK)
            assert found.value.reason is Reason.UNSIGNED
        assert bool(it.offers) is counts


@pytest.mark.parametrize(
    "payload",
    [
        signed(status(), key=b"thief"),
        signed(status(), name="v2"),
        signed(status(), tenant="other"),
        signed(status(endpoint=None)),
        encode(status(endpoint="evil.example:443")),
        b'{"state":"online","epoch":1,"at":0,"endpoint":"evil.example/gpu.acme.example:443"}',
        b"[]",
    ],
    ids=["another key", "another verifier", "tenant", "no endpoint", "not allowed", "no host", "none"],
)  # fmt: skip
def test_a_hostile_broker_cannot_offer_its_own(payload: bytes) -> None:
    it = discovery("*gpu.acme.example:443")
    with pytest.raises(OrderRefused):
        it.on_payload("v1", payload, CLOCK)
    assert it.offers == ()


def test_a_late_will_of_an_older_epoch_ends_no_offer_and_that_of_this_one_does() -> None:
    it = discovery()
    it.on_payload("v1", signed(status(epoch=5)), CLOCK)
    assert not it.on_payload("v1", signed(status(epoch=4, state=State.OFFLINE)), CLOCK)
    assert it.on_payload("v1", signed(status(epoch=5, state=State.OFFLINE)), CLOCK)
    assert it.offers == ()


def test_an_old_offer_played_again_is_not_taken() -> None:
    it = discovery()
    it.on_payload("v1", signed(status(epoch=5, endpoint="new.example:1")), CLOCK)
    assert not it.on_payload("v1", signed(status(epoch=4, endpoint="old.example:1")), CLOCK)
    assert it.offers[0].endpoint == "new.example:1"


def test_an_unsigned_offer_does_not_replace_a_signed_one() -> None:
    it = discovery("*")
    it.on_payload("v1", signed(status()), CLOCK)
    assert not it.on_payload("v1", encode(status(epoch=99, endpoint="evil.example:1")), CLOCK)
    assert it.offers[0].endpoint == "gpu.acme.example:443"


def test_an_offer_runs_out() -> None:
    it = discovery()
    it.on_payload("v1", signed(status(), not_after=NOW + 100), CLOCK)
    assert not it.expire(Clock(NOW + 400))
    assert it.expire(Clock(NOW + 401))
    assert it.offers == ()
    with pytest.raises(OrderRefused, match="expired"):
        it.on_payload("v1", signed(status(), not_after=NOW + 100), Clock(NOW + 401))


def test_a_broker_cannot_make_a_device_remember_without_end() -> None:
    it = discovery("*")
    for number in range(MAX_VERIFIERS):
        it.on_payload(f"v{number}", encode(status()), CLOCK)
        it.on_payload(f"v{number}", b"", CLOCK)
    with pytest.raises(OrderRefused, match="offered already"):
        it.on_payload("more", encode(status()), CLOCK)
