"""Laws of certificates that are renewed while verifier and edge run: nobody is restarted, no text is lost."""

import asyncio
import contextlib
import datetime
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.identity.server_tls import ServerTls
from common.errors import ForerunError, UnavailableError
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from edge_client.network.channel import OWN_CONNECTION, VerifierChannel
from edge_client.network.client_tls import TlsSettings, explain
from edge_client.network.generation import Generation
from tests import wording
from tests.support.papers import Papers, put
from tests.support.tiny import EOS, System, generation, running
from tests.worlds.models import target_alone

pytestmark = pytest.mark.grpc

TEXT = SamplingParams(max_tokens=60, ignore_eos=True)
LATER = datetime.datetime(2041, 1, 1, tzinfo=datetime.UTC)
HOST = "127.0.0.1"
EXPIRED = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@dataclass
class Site:
    """A verifier with mTLS and an edge, and the files of both."""

    folder: Path
    first: Papers

    def __post_init__(self) -> None:
        for side in ("server", "edge"):
            (self.folder / side).mkdir()
            self.first.issue(HOST, pair=self.pair(side))
            put(self.ca(side), self.first.pem)

    def pair(self, side: str) -> tuple[Path, Path]:
        return self.folder / side / "tls.crt", self.folder / side / "tls.key"

    def ca(self, side: str) -> Path:
        """Whom this side trusts."""
        return self.folder / side / "ca.crt"

    @property
    def server_tls(self) -> ServerTls:
        return ServerTls(*self.pair("server"), self.ca("server"))

    @property
    def edge_tls(self) -> TlsSettings:
        return TlsSettings(self.ca("edge"), *self.pair("edge"))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[System, VerifierChannel]]:
        async with (
            asyncio.timeout(60),
            running(step_time=0.002, tls=self.server_tls) as system,
            VerifierChannel(system.address, tls=self.edge_tls) as channel,
        ):
            yield system, channel


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, Papers(tmp_path))


async def begun(channel: VerifierChannel) -> tuple[Generation, Any]:
    """A text whose first token has come, and the rest of it."""
    run = generation(channel, None, TEXT, make_policy("off"))
    pieces = aiter(run)
    await anext(pieces)
    return run, pieces


async def ended_well(system: System, run: Generation, pieces: Any) -> None:
    """On the stream that it began on."""
    async for _ in pieces:
        pass
    assert run.session.text == target_alone((1, 2, 3), TEXT, EOS)
    assert system.worker.scheduler.counters.num_resumed == 0


async def asked_anew(system: System, tls: TlsSettings) -> str:
    """The model that a new edge is told."""
    async with VerifierChannel(system.address, OWN_CONNECTION, tls) as channel:
        return (await channel.describe()).model


async def test_the_verifiers_certificate_and_its_ca_are_renewed_under_a_text(site: Site) -> None:
    second = Papers(site.folder / "second")
    async with site.running() as (system, channel):
        run, pieces = await begun(channel)
        second.issue(HOST, pair=site.pair("server"))
        with pytest.raises(UnavailableError):  # it trusts the first CA alone
            await asked_anew(system, site.edge_tls)
        own = TlsSettings(second.ca_file, *site.pair("edge"))
        assert await asked_anew(system, own) == "tiny"
        put(site.ca("edge"), site.first.pem + second.pem)
        assert (await channel.describe()).model == "tiny", "over a new connection, which trusts both"
        await ended_well(system, run, pieces)
        assert system.worker.snapshot().trust.reloads == {"certificate": 1}


async def test_an_edges_certificate_is_renewed_under_a_text(site: Site) -> None:
    """The CA of clients is another from now on: who shows a certificate of the one before is not let in."""
    second = Papers(site.folder / "second")
    async with site.running() as (system, channel):
        run, pieces = await begun(channel)
        put(site.ca("server"), second.pem)
        with pytest.raises(ForerunError):
            await asked_anew(system, site.edge_tls)
        second.issue(HOST, pair=site.pair("edge"))
        assert (await channel.describe()).model == "tiny"
        assert await asked_anew(system, site.edge_tls) == "tiny"
        await ended_well(system, run, pieces)
        run, pieces = await begun(channel)
        await ended_well(system, run, pieces)


async def test_files_that_cannot_be_used_change_nothing_and_are_told(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = site.pair("server")
    canary = b"-----BEGIN CERTIFICATE-----\ncanary\n"
    async with site.running() as (system, channel):
        old = system.worker.snapshot().trust.expires_at
        put(cert, canary)
        assert await asked_anew(system, site.edge_tls) == "tiny"
        system.server.lifecycle.look()
        assert system.worker.snapshot().trust.failures == {"certificate": 1}
        put(site.ca("edge"), canary)
        assert (await channel.describe()).model == "tiny"
        assert system.worker.snapshot().trust.expires_at == old
        words = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        assert len(words) == 2
        wording.keep(words[0])
        wording.keep(words[1])
        assert "canary" not in caplog.text
        put(site.ca("edge"), site.first.pem)
        site.first.issue(HOST, LATER, (cert, key))
        system.server.lifecycle.look()
        assert await asked_anew(system, site.edge_tls) == "tiny"
        assert system.worker.snapshot().trust.expires_at == LATER.timestamp() != old


async def test_an_edge_whose_own_certificate_has_expired_is_told_in_words(site: Site) -> None:
    site.first.issue(HOST, EXPIRED, site.pair("edge"))
    async with site.running() as (system, channel):
        with pytest.raises(UnavailableError):
            await channel.describe()
        words = await explain("127.0.0.1", system.server.port, site.edge_tls)
    assert words is not None
    wording.keep(words)
