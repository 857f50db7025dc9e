"""A command is carried out once, by the device it was signed for, while it holds."""

from __future__ import annotations

import pytest

from edge_client.core.fleet.commands import MAX_REMEMBERED, Call, Commands
from edge_client.core.fleet.orders import Clock, OrderRefused
from edge_client.core.fleet.payloads import CommandName, Outcome
from tests.edge_client.core.fleet.signed import NOW, command, verify

CLOCK = Clock(NOW)


def commands() -> Commands:
    return Commands("acme", "pi-1", verify())


def test_a_command_runs_once_and_its_answer_is_remembered() -> None:
    it = commands()
    assert it.on_payload("a1", command("a1"), CLOCK) == Call(CommandName.PING)
    assert it.on_payload("a1", command("a1"), CLOCK) == Call()  # under way: the answer will come
    it.on_done("a1", Outcome.FAILED)
    assert it.on_payload("a1", command("a1"), CLOCK) == Call(outcome=Outcome.FAILED)


def test_a_command_that_was_under_way_when_the_daemon_died_has_failed() -> None:
    it, again = commands(), commands()
    it.on_payload("a1", command("a1"), CLOCK)
    again.restore(it.remembered)
    assert again.on_payload("a1", command("a1"), CLOCK) == Call(outcome=Outcome.FAILED)


def test_an_unknown_name_is_answered_and_never_run() -> None:
    it = commands()
    for _ in range(2):
        assert it.on_payload("a1", command("a1", "rm_rf"), CLOCK) == Call(outcome=Outcome.UNKNOWN)


def test_an_expired_command_is_answered_and_a_long_lived_one_is_none() -> None:
    assert commands().on_payload("a", command("a"), Clock(NOW + 901)) == Call(outcome=Outcome.EXPIRED)
    assert commands().on_payload("a", command("a", not_after=NOW + 3601), CLOCK) == Call(
        outcome=Outcome.MALFORMED
    )


@pytest.mark.parametrize(
    "payload",
    [
        command("a2"),
        command("a1", device="pi-2"),
        command("a1", device="*"),
        command("a1", key=b"thief"),
        b"{}",
    ],
    ids=["another id", "another device", "all devices", "another key", "no order"],
)
def test_what_was_signed_for_elsewhere_gets_no_answer(payload: bytes) -> None:
    with pytest.raises(OrderRefused):
        commands().on_payload("a1", payload, CLOCK)


def test_ids_are_forgotten_when_they_have_expired_and_not_before() -> None:
    it = commands()
    for number in range(MAX_REMEMBERED):
        it.on_payload(f"c{number}", command(f"c{number}"), CLOCK)
        it.on_done(f"c{number}", Outcome.DONE)
    assert it.on_payload("more", command("more"), CLOCK) == Call(outcome=Outcome.BUSY)
    assert it.on_payload("c0", command("c0"), CLOCK) == Call(outcome=Outcome.DONE)
    later = command("later", at=NOW + 901, not_after=NOW + 1000)
    assert it.on_payload("later", later, Clock(NOW + 901)) == Call(CommandName.PING)
    assert list(it.remembered) == ["later"]
    assert it.on_payload("c0", command("c0"), Clock(NOW + 901)) == Call(outcome=Outcome.EXPIRED)
