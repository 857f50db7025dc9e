"""A link's checks against real listeners: nobody, a stranger, a verifier, TLS right and wrong."""

import asyncio
import contextlib
import dataclasses
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
import trustme

from edge_client.network.client_tls import TlsSettings
from edge_client.settings import VerifierSection
from forerun.doctor.device import Finding, Level
from forerun.doctor.link import LinkFound, _certificate, check_link, tls_for
from tests import wording
from tests.support.listener import listening
from tests.support.tiny import running

pytestmark = pytest.mark.grpc


async def link(address: str, tls: TlsSettings | None = None) -> LinkFound:
    """In a thread: the checks have event loops of their own."""
    return await asyncio.to_thread(check_link, address, tls, 5)


def level(found: LinkFound, what: str) -> Level:
    return next(each.level for each in found.findings if each.name == f"{found.address} {what}")


async def test_a_verifier_is_measured() -> None:
    async with running() as system:
        found = await link(system.address)
    assert [each.level for each in found.findings if each.level is Level.FAIL] == []
    assert level(found, "RTT") is Level.OK
    assert level(found, "load") is Level.OK
    assert level(found, "TLS") is Level.SKIP
    assert (found.rtt or 0.0) > 0


async def test_fewer_slots_than_positions_are_told() -> None:
    async with running(num_slots=100) as system:
        found = await link(system.address)
    assert level(found, "length") is Level.WARN


async def test_nobody_and_nowhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    nobody = await link(f"127.0.0.1:{port}")
    assert level(nobody, "connection") is Level.FAIL
    assert nobody.rtt is None
    nowhere = await link("no-such-host.invalid:1")
    assert level(nowhere, "connection") is Level.FAIL
    assert len(nowhere.findings) == 1
    assert (await link("what")).findings[0].level is Level.FAIL


HTTP_1 = b"HTTP/1.1 302 Found\r\nLocation: https://login.example/\r\nContent-Length: 0\r\n\r\n"
SETTINGS, HEADERS_404 = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), bytes((0, 0, 1, 1, 5, 0, 0, 0, 1, 0x8D))
"""Frames of HTTP/2 (RFC 9113, RFC 7541): no settings, and a whole answer that is `:status: 404`."""


@contextlib.asynccontextmanager
async def stranger(banner: bytes, reply: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Greets every connection, and answers what comes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(banner)
            while await reader.read(1 << 16) and reply:
                writer.write(reply)
                if not banner:
                    break

    async with listening(answer, tls) as address:
        yield address


@pytest.mark.parametrize("name", ["HTTP/1.1", "HTTP/1.1 over TLS", "HTTP/2", "SSH"])
async def test_what_answers_in_place_of_a_verifier_is_named(name: str, tmp_path: Path) -> None:
    """As the login page of a hotel does, a web server at a wrong port, or any other program."""
    tls, context = None, None
    if "TLS" in name:
        authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        tls = TlsSettings(ca=tmp_path / "ca.pem")
    banner = {"HTTP/2": SETTINGS, "SSH": b"SSH-2.0-OpenSSH_9.9\r\n"}.get(name, b"")
    reply = {"HTTP/2": HEADERS_404, "SSH": b""}.get(name, HTTP_1)
    async with stranger(banner, reply, context) as address:
        found = await link(address, tls)
    asked = found.findings[-1]
    assert (asked.name, asked.level) == (f"{address} gRPC", Level.FAIL)
    wording.keep(asked.line)


async def test_another_grpc_server_is_no_verifier() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    found = await link(f"127.0.0.1:{port}")
    await server.stop(0)
    wording.keep(found.findings[-1].line)


async def test_doctor_does_not_name_itself() -> None:
    async with stranger(b"", b"") as address:
        found = await link(address)
    assert found.findings[-1].level is Level.FAIL
    assert "forerun doctor" not in found.findings[-1].line


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "https://gpu.example:443/v1", "gpu:1/v1", "gpu"])
def test_what_is_no_address_is_a_finding(address: str) -> None:
    (finding,) = check_link(address, None).findings
    assert finding.level is Level.FAIL
    wording.keep(finding.line)


@contextlib.asynccontextmanager
async def tls_server(
    authority: trustme.CA, name: str, until: datetime | None = None, since: datetime | None = None
) -> AsyncIterator[str]:
    """Speaks TLS as a gRPC server does, and nothing behind it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name, not_before=since, not_after=until).configure_cert(context)
    context.set_alpn_protocols(["h2"])

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        await reader.read()

    async with listening(hold, context) as address:
        yield address


async def certificate(address: str, tls: TlsSettings | None) -> Finding:
    host, _, port = address.rpartition(":")
    return await asyncio.to_thread(_certificate, address, host, int(port), tls)


async def test_a_certificate_is_trusted_named_and_in_time(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = TlsSettings(ca=tmp_path / "ca.pem", server_name="verifier.example")
    async with tls_server(authority, "verifier.example") as address:
        good = await certificate(address, tls)
        assert good.level is Level.OK, good
        assert "is good for" in good.words
        assert "not signed by a trusted CA" in (await certificate(address, TlsSettings())).words
        assert "it speaks TLS" in (await certificate(address, None)).words
        other = await certificate(address, dataclasses.replace(tls, server_name="other.example"))
        assert other.level is Level.FAIL
        assert "not for 'other.example'" in other.words
    soon = datetime.now(UTC) + timedelta(days=5)
    async with tls_server(authority, "verifier.example", soon) as address:
        assert (await certificate(address, tls)).level is Level.WARN


@pytest.mark.parametrize(("age", "level"), [(0, Level.OK), (4, Level.OK), (5, Level.WARN)])
async def test_a_short_certificate_is_renewed_in_its_last_third(
    age: int, level: Level, tmp_path: Path
) -> None:
    """Those of `forerun certs dev` live for seven days."""
    authority, made = trustme.CA(), datetime.now(UTC) - timedelta(days=age)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = TlsSettings(ca=tmp_path / "ca.pem", server_name="verifier.example")
    async with tls_server(authority, "verifier.example", made + timedelta(days=7), made) as address:
        assert (await certificate(address, tls)).level is level


def test_tls_as_the_daemon_speaks_it() -> None:
    assert tls_for(VerifierSection(), "127.0.0.1:1") is None
    assert tls_for(VerifierSection(insecure=True), "far.example:1") is None
    assert tls_for(VerifierSection(), "far.example:1") == TlsSettings()
    section = VerifierSection(tls_ca="/ca.pem", tls_server_name="n")
    assert tls_for(section, "127.0.0.1:1") == TlsSettings(ca=Path("/ca.pem"), server_name="n")
