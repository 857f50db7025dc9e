"""Laws of a verifier's address: what is no address is refused at once, and plain text stays on this
machine."""

from __future__ import annotations

import asyncio
import socket

import pytest

from common.errors import UnavailableError, UserError
from edge_client.verifiers.addresses import VerifierAddress, parse_address, resolve


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:50051", "127.0.0.1", 50051),
        ("dns:///localhost:1", "localhost", 1),
        ("[::1]:65535", "[::1]", 65535),
    ],
)
def test_host_and_port_are_taken_plain_or_as_grpc_writes_names(text: str, host: str, port: int) -> None:
    assert parse_address(text) == VerifierAddress(host, port)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("127.0.0.1", "is no HOST:PORT"),
        ("", "is no HOST:PORT"),
        ("127.0.0.1:", "is no HOST:PORT"),
        ("127.0.0.1:http", "is no HOST:PORT"),
        ("127.0.0.1:70000", "with a port from 1 to 65535"),
        ("127.0.0.1:0", "has port 0"),
        ("::1:50051", "an IPv6 address without brackets"),
        ("https://gpu:50051", "names the scheme 'https'"),
        ("xds:///gpu:50051", "names the scheme 'xds'"),
        ("a b:1", "is no HOST:PORT"),
        ("a\0.gpu.example:1", "is no HOST:PORT"),  # gRPC would read it up to there
        ("localhost:1/path", "is no HOST:PORT"),
    ],
)
def test_what_is_no_address_is_refused_with_a_sentence(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_address(text)


@pytest.mark.parametrize("text", ["10.0.0.7:50051", "gpu.example:50051", "[2001:db8::1]:50051"])
def test_plain_text_to_another_machine_must_be_allowed(text: str) -> None:
    with pytest.raises(UserError, match="without TLS everybody on the way can read"):
        parse_address(text)
    assert parse_address(text, insecure=True) == parse_address(text, encrypted=True)


@pytest.mark.parametrize("text", ["localhost:1", "127.9.9.9:1", "[::1]:1"])
def test_this_machine_needs_no_allowance(text: str) -> None:
    assert parse_address(text).is_loopback


Found = list[tuple[object, ...]]


async def resolved(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Of a name that the name server has these addresses for."""

    async def look_up(host: str, port: int, **_: object) -> Found:
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in each], 0, 0, "", (each, port)) for each in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    return [str(each) for each in await resolve(VerifierAddress("pods.svc", 7))]


async def test_a_name_of_one_machine_stays_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await resolved(monkeypatch, "10.0.0.1") == ["pods.svc:7"]
    assert await resolved(monkeypatch, "10.0.0.1", "fd00::1") == ["pods.svc:7"], "two families, one machine"


async def test_a_name_of_several_machines_is_several(monkeypatch: pytest.MonkeyPatch) -> None:
    several = await resolved(monkeypatch, "10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2")
    assert several == ["10.0.0.1:7", "10.0.0.2:7"]
    assert await resolved(monkeypatch, "fd00::2", "fd00::1") == ["[fd00::1]:7", "[fd00::2]:7"]


async def test_an_address_needs_no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", None)
    address = VerifierAddress("[::1]", 7)
    assert await resolve(address) == (address,)


async def test_a_name_that_is_not_known_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look_up(*_: object, **__: object) -> Found:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    with pytest.raises(
        UnavailableError, match=r"the name pods\.svc is not known \(Name or service not known\)"
    ):
        await resolve(VerifierAddress("pods.svc", 7))
