"""Tables of a fleet line up, and say so when they are empty."""

from __future__ import annotations

from edge_client.core.fleet.payloads import Mode, Presence, State, VerifierStatus
from forerun.fleet_table import age, device_table, offer_table


def test_devices_line_up_with_what_they_told() -> None:
    devices = [
        ("pi-1", Presence(state=State.ONLINE, epoch=1, at=100.0, draft="demo", mode=Mode.AHEAD)),
        ("pi-22", Presence(state=State.OFFLINE, epoch=1, at=40.0)),
    ]
    assert device_table(devices, now=220.0) == [
        "DEVICE  STATE    MODE   DRAFT  VERIFIER  VERSION  SINCE",
        "pi-1    online   ahead  demo   -         -        2m",
        "pi-22   offline  -      -      -         -        3m",
    ]


def test_offers_tell_whether_they_are_signed() -> None:
    status = VerifierStatus(state=State.ONLINE, epoch=1, at=0.0, endpoint="gpu:1", load=0.25)
    assert offer_table({"v1": (status, True)}, now=5.0)[1].split() == [
        *("v1", "online", "gpu:1", "-", "-", "25%", "yes", "5s")
    ]


def test_empty_tables_say_what_to_look_at() -> None:
    assert "is the tenant right" in device_table([], 0.0)[0]
    assert "announce" in offer_table({}, 0.0)[0]


def test_ages_have_one_unit_and_a_clock_that_runs_ahead_makes_none_negative() -> None:
    assert [age(seconds) for seconds in (-5, 59, 60, 7200, 200_000)] == ["0s", "59s", "1m", "2h", "2d"]
