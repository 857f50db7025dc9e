"""A link's checks against real listeners: nobody, a stranger, a verifier, TLS right and wrong."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from edge_client.config.sections import VerifierSection
from edge_client.tls import TlsSettings
from forerun.doctor.finding import Level
from forerun.doctor.link import LinkFound, check_link, round_trips, tls_for

pytestmark = pytest.mark.grpc


async def link(address: str, tls: TlsSettings | None = None) -> LinkFound:
    """In a thread: the checks have event loops of their own."""
    return await asyncio.to_thread(check_link, address, tls, 5)


def level(found: LinkFound, what: str) -> Level:
    return next(each.level for each in found.findings if each.name == f"{found.address} {what}")


async def test_a_verifier_is_measured() -> None:
    from tests.drivers.tiny import running

    async with running() as system:
        found = await link(system.address)
    assert found.answers
    assert [each.level for each in found.findings if each.level is Level.FAIL] == []
    assert level(found, "RTT") is Level.OK
    assert level(found, "load") is Level.OK
    assert level(found, "TLS") is Level.SKIP
    assert level(found, "clock") is Level.SKIP
    assert (found.rtt or 0.0) > 0


async def test_nobody_and_nowhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    nobody = await link(f"127.0.0.1:{port}")
    assert level(nobody, "connection") is Level.FAIL
    assert not nobody.answers
    nowhere = await link("no-such-host.invalid:1")
    assert level(nowhere, "name") is Level.FAIL
    assert len(nowhere.findings) == 1
    assert (await link("what")).findings[0].level is Level.FAIL


def test_round_trips_in_words() -> None:
    found = round_trips("a:1", [0.010, 0.020, 0.010], 0)
    assert found.level is Level.OK
    assert found.words == (
        "10.0 ms at least, 10.0 usually, 19.0 at p95; jitter 10.0 ms; none of 3 probes was lost"
    )
    assert round_trips("a:1", [0.010], 2).level is Level.WARN
    assert "2 of 3 probes got no answer" in round_trips("a:1", [0.010], 2).words
    assert round_trips("a:1", [], 6).level is Level.FAIL


def test_tls_as_the_daemon_speaks_it() -> None:
    assert tls_for(VerifierSection(), "127.0.0.1:1") is None
    assert tls_for(VerifierSection(insecure=True), "far.example:1") is None
    assert tls_for(VerifierSection(), "far.example:1") == TlsSettings()
    section = VerifierSection(tls_ca="/ca.pem", tls_server_name="n")
    assert tls_for(section, "127.0.0.1:1") == TlsSettings(ca=Path("/ca.pem"), server_name="n")
