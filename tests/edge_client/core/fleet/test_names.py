"""Topics go where docs/fleet.md says, and no name can be a wildcard or somebody else's level."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from edge_client.core.fleet.names import DeviceTopics, TenantTopics, check_name

TOPICS = DeviceTopics("acme", "pi-1")


def test_every_topic_is_where_the_page_says() -> None:
    assert TOPICS.status == "forerun/v1/acme/pi-1/status"
    assert TOPICS.telemetry("link") == "forerun/v1/acme/pi-1/telemetry/link"
    assert TOPICS.event == "forerun/v1/acme/pi-1/event"
    assert TOPICS.desired == "forerun/v1/acme/pi-1/config/desired"
    assert TOPICS.reported == "forerun/v1/acme/pi-1/config/reported"
    assert TOPICS.command("a1") == "forerun/v1/acme/pi-1/cmd/a1"
    assert TOPICS.ack("a1") == "forerun/v1/acme/pi-1/cmd/a1/ack"
    assert TOPICS.shared.fleet_config == "forerun/v1/acme/fleet/config"
    assert TOPICS.shared.kill == "forerun/v1/acme/fleet/kill"
    assert TOPICS.shared.verifier("v1") == "forerun/v1/acme/verifier/v1/status"


@pytest.mark.parametrize("name", ["", "+", "#", "a/b", "$SYS", "a b", "é", "-a", "x" * 65, "a\0", "a\n"])
def test_what_mqtt_reads_otherwise_is_no_name(name: str) -> None:
    with pytest.raises(UserError, match="it must be 1 to 64"):
        check_name("the device", name)


@pytest.mark.parametrize("name", ["fleet", "verifier"])
def test_a_device_has_no_name_that_is_a_level_of_the_tree(name: str) -> None:
    with pytest.raises(UserError, match="whole fleet"):
        DeviceTopics("acme", name)


@given(st.text(max_size=20))
def test_only_whole_names_are_read_from_topics(text: str) -> None:
    shared = TenantTopics("acme")
    for found in (
        shared.device_of(f"forerun/v1/acme/{text}/status"),
        shared.verifier_of(f"forerun/v1/acme/verifier/{text}/status"),
        TOPICS.command_of(f"forerun/v1/acme/pi-1/cmd/{text}"),
    ):
        assert found is None or check_name("it", found) == text


def test_an_ack_is_no_command_and_a_verifier_no_device() -> None:
    assert TOPICS.command_of(TOPICS.ack("a1")) is None
    assert TOPICS.shared.device_of("forerun/v1/acme/verifier/status") is None
    assert TOPICS.shared.device_of("forerun/v1/other/pi-1/status") is None
    assert TOPICS.shared.device_of("forerun/v1/acme/verifier/v1/status") is None
