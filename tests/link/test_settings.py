"""Laws of addresses and settings."""

import pytest

from link import Address, LinkSettings, SettingsError


@pytest.mark.parametrize("text", ["127.0.0.1:80", "localhost:0", "[::1]:50051"])
def test_an_address_reads_as_it_writes(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "80", ":80", "host", "host:", "host:http", "host:-1", "host:65536", "::1:80"]
)
def test_an_address_that_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"address"):
        Address.parse(text)


def test_settings_out_of_range_are_refused_by_name() -> None:
    server = Address("127.0.0.1", 1)
    with pytest.raises(SettingsError, match="upstream"):
        LinkSettings(Address("127.0.0.1", 0))
    with pytest.raises(SettingsError, match="connect_time"):
        LinkSettings(server, connect_time=0)
    with pytest.raises(SettingsError, match="max_flying"):
        LinkSettings(server, max_flying=0)
