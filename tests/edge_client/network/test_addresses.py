"""Laws of a verifier's address: what is no address is refused at once, and plain text stays on this
machine."""

import asyncio
import socket

import pytest

from common.errors import UnavailableError, UserError
from edge_client.network.addresses import VerifierAddress, parse_address, resolve
from tests import wording


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:50051", "127.0.0.1", 50051),
        ("dns:///localhost:1", "localhost", 1),
        ("[::1]:65535", "[::1]", 65535),
        ("127.9.9.9:1", "127.9.9.9", 1),
    ],
)
def test_host_and_port_are_taken_plain_or_as_grpc_writes_names(text: str, host: str, port: int) -> None:
    """This machine needs no allowance for plain text."""
    assert parse_address(text) == VerifierAddress(host, port)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "",
        "127.0.0.1:",
        "127.0.0.1:http",
        "127.0.0.1:70000",
        "127.0.0.1:0",
        "::1:50051",
        "https://gpu:50051",
        "xds:///gpu:50051",
        "a b:1",
        "a\0.gpu.example:1",  # gRPC would read it up to there
        "localhost:1/path",
    ],
)
def test_what_is_no_address_is_refused_with_a_sentence(text: str) -> None:
    with wording.raises(UserError):
        parse_address(text)


@pytest.mark.parametrize("text", ["10.0.0.7:50051", "gpu.example:50051", "[2001:db8::1]:50051"])
def test_plain_text_to_another_machine_must_be_allowed(text: str) -> None:
    with wording.raises(UserError):
        parse_address(text)
    assert parse_address(text, insecure=True) == parse_address(text, encrypted=True)


Found = list[tuple[object, ...]]


@pytest.mark.parametrize(
    ("found", "machines"),
    [
        (["10.0.0.1"], ["pods.svc:7"]),
        (["10.0.0.1", "fd00::1"], ["pods.svc:7"]),  # two families, one machine
        (["10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"], ["10.0.0.1:7", "10.0.0.2:7"]),
        (["fd00::2", "fd00::1"], ["[fd00::1]:7", "[fd00::2]:7"]),
    ],
)
async def test_a_name_is_one_machine_or_several(
    monkeypatch: pytest.MonkeyPatch, found: list[str], machines: list[str]
) -> None:
    async def look_up(host: str, port: int, **_: object) -> Found:
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in each], 0, 0, "", (each, port)) for each in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    assert [str(each) for each in await resolve(VerifierAddress("pods.svc", 7))] == machines


async def test_an_address_needs_no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", None)
    address = VerifierAddress("[::1]", 7)
    assert await resolve(address) == (address,)


async def test_a_name_that_is_not_known_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look_up(*_: object, **__: object) -> Found:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    with wording.raises(UnavailableError):
        await resolve(VerifierAddress("pods.svc", 7))
