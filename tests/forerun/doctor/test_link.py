"""A link's checks against real listeners: nobody, a stranger, a verifier, TLS right and wrong."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edge_client.network.client_tls import TlsSettings
from edge_client.settings import VerifierSection
from forerun.doctor.device import Finding, Level
from forerun.doctor.link import LinkFound, _certificate, check_link, tls_for

if TYPE_CHECKING:
    import trustme

pytestmark = pytest.mark.grpc


async def link(address: str, tls: TlsSettings | None = None) -> LinkFound:
    """In a thread: the checks have event loops of their own."""
    return await asyncio.to_thread(check_link, address, tls, 5)


def level(found: LinkFound, what: str) -> Level:
    return next(each.level for each in found.findings if each.name == f"{found.address} {what}")


async def test_a_verifier_is_measured() -> None:
    from tests.support.tiny import running

    async with running() as system:
        found = await link(system.address)
    assert [each.level for each in found.findings if each.level is Level.FAIL] == []
    assert level(found, "RTT") is Level.OK
    assert level(found, "load") is Level.OK
    assert level(found, "TLS") is Level.SKIP
    assert (found.rtt or 0.0) > 0


async def test_fewer_slots_than_positions_are_told() -> None:
    from tests.support.tiny import running

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


@contextlib.asynccontextmanager
async def tls_server(authority: trustme.CA, name: str, until: datetime | None = None) -> AsyncIterator[str]:
    """Speaks TLS as a gRPC server does, and nothing behind it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name, not_after=until).configure_cert(context)
    context.set_alpn_protocols(["h2"])

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hold, "127.0.0.1", 0, ssl=context) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def certificate(address: str, tls: TlsSettings | None) -> Finding:
    host, _, port = address.rpartition(":")
    return await asyncio.to_thread(_certificate, address, host, int(port), tls)


async def test_a_certificate_is_trusted_named_and_in_time(tmp_path: Path) -> None:
    import trustme

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


def test_tls_as_the_daemon_speaks_it() -> None:
    assert tls_for(VerifierSection(), "127.0.0.1:1") is None
    assert tls_for(VerifierSection(insecure=True), "far.example:1") is None
    assert tls_for(VerifierSection(), "far.example:1") == TlsSettings()
    section = VerifierSection(tls_ca="/ca.pem", tls_server_name="n")
    assert tls_for(section, "127.0.0.1:1") == TlsSettings(ca=Path("/ca.pem"), server_name="n")
