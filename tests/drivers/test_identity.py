"""Laws of identity by certificate: whose a call is, is what TLS has shown, and nothing that an edge says of
itself; and what one tenant sends never reaches another's session."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cloud_verifier.identity import CertificateIdentity
from common.errors import Code, UserError
from edge_client.channel import VerifierChannel
from edge_client.core.policies import make_policy
from forerun.dev_certs import spiffe_id
from forerun.logs import writing
from tests.drivers.tiny import EOS, generation, running
from tests.drivers.town import (
    DOMAIN,
    TEXT,
    Town,
    answers,
    opening,
    refusal,
    stub_of,
    text_of,
    write_text,
)
from tests.worlds.models import target_alone

pytestmark = pytest.mark.grpc


@pytest.fixture
def town(tmp_path: Path) -> Town:
    return Town(tmp_path)


# Certificates -----------------------------------------------------------------------------------------


async def test_the_tenant_is_the_certificates(town: Town) -> None:
    async with town.by_certificate(DOMAIN, step_time=0.002) as system:
        assert await write_text(system, town.of("acme")) == target_alone((1, 2, 3), TEXT, EOS)
        async with stub_of(system, town.of("globex")) as begin:
            call = await begin(opening(fill=False))
            await call.read()
            assert [each.tenant for each in system.worker.snapshot().sessions] == ["globex"]
            call.cancel()


async def test_what_an_edge_says_of_itself_counts_for_nothing(town: Town) -> None:
    claims = (
        ("x-tenant", "globex"),
        ("tenant", "globex"),
        ("x-forwarded-client-cert", "URI=spiffe://x/tenant/globex"),
    )
    more = (("authorization", f"Bearer {town.token('globex')}"), ("x-llm-d-tenant", "globex"))
    async with (
        town.by_certificate() as system,
        stub_of(system, town.of("acme"), *claims, *more) as begin,
    ):
        call = await begin(opening("globex", fill=False))
        await call.read()
        assert [each.tenant for each in system.worker.snapshot().sessions] == ["acme"]
        call.cancel()


@pytest.mark.parametrize(
    ("uris", "code", "words"),
    [
        ((), Code.UNAUTHENTICATED, "names no tenant"),
        (("https://example.org/tenant/acme",), Code.UNAUTHENTICATED, "names no tenant"),
        (("spiffe://example.org/ns/acme/sa/x",), Code.PERMISSION_DENIED, "not of the form"),
        (("spiffe://example.org/tenant",), Code.PERMISSION_DENIED, "not of the form"),
        (("spiffe://example.org/tenant/-acme",), Code.PERMISSION_DENIED, "not of the form"),
        ((f"spiffe://example.org/tenant/{'a' * 65}",), Code.PERMISSION_DENIED, "not of the form"),
        (
            ("spiffe://other.org/tenant/acme",),
            Code.PERMISSION_DENIED,
            "another trust domain than example.org",
        ),
        (
            ("spiffe://example.org/tenant/acme", "spiffe://example.org/tenant/globex"),
            Code.UNAUTHENTICATED,
            "names no tenant",
        ),
    ],
)
async def test_a_certificate_that_names_no_tenant_is_refused(
    uris: tuple[str, ...], code: Code, words: str, town: Town
) -> None:
    async with town.by_certificate(DOMAIN) as system:
        error = await refusal(system, town.device(*uris))
        assert words in str(error)
        assert error.code is code
        assert system.worker.scheduler.counters.num_refused == {code.value: 1}


async def test_a_dns_name_that_looks_like_a_uri_is_none(town: Town) -> None:
    """A CA that checks host names only may sign one."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    name: list[x509.GeneralName] = [x509.DNSName(spiffe_id(DOMAIN, "acme", "d1"))]
    pair = town.authority._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, None)
    tls = replace(town.of("x"), cert=town.put("dns.crt", pair.cert), key=town.put("dns.key", pair.key))
    async with town.by_certificate() as system:
        assert "names no tenant" in str(await refusal(system, tls))


async def test_a_connection_is_worth_no_more_than_its_certificate(town: Town) -> None:
    """A new stream on an old connection is refused when the certificate has ended; one that is open goes
    on."""
    offset = [0.0]
    identity = CertificateIdentity(wall=lambda: time.time() + offset[0])
    tls = town.server_tls(clients=True)
    async with (
        running(identity=identity, tls=tls, step_time=0.002) as system,
        VerifierChannel(system.address, tls=town.of("acme")) as channel,
    ):
        run = generation(channel, None, TEXT, make_policy("off"))
        pieces = aiter(run)
        await anext(pieces)
        offset[0] = 86_400.0 * 2
        with pytest.raises(UserError, match="has expired meanwhile; connect with a new one"):
            await channel.describe()
        async for _ in pieces:
            pass
    assert run.session.text == target_alone((1, 2, 3), TEXT, EOS)


# Theft and replay ---------------------------------------------------------------------------------------


async def test_another_tenants_session_cannot_be_taken_over(town: Town) -> None:
    """All that there is of a session is its Open. Who has stolen one gets a session of its own: nothing of
    the prefix cache, and the other's stream does not hear of it."""
    whole = target_alone((1, 2, 3), TEXT, EOS)
    async with (
        town.by_certificate(step_time=0.002) as system,
        stub_of(system, town.of("acme")) as acme,
        stub_of(system, town.of("globex")) as globex,
    ):
        first = await acme(opening())
        assert text_of(await answers(first)) == whole
        live = await acme(opening(fill=False))
        await live.read()
        stolen = [await globex(opening(committed=whole[:count])) for count in (0, 4, 8)]
        for count, call in zip((0, 4, 8), stolen, strict=True):
            assert text_of(await answers(call)) == whole[count:]
        seen = system.worker.snapshot()
        (own,) = seen.sessions
        assert (own.tenant, own.session_id) == ("acme", "job-7")
        live.cancel()
        await live.code()
        again = await acme(opening(committed=whole[:8]))
        assert text_of(await answers(again)) == whole[8:]


async def test_the_cache_tells_one_tenant_nothing_of_another(town: Town) -> None:
    log = io.StringIO()
    with writing("info", "json", log):
        async with town.by_certificate() as system:
            for tenant in ("acme", "globex", "globex", "acme"):
                async with stub_of(system, town.of(tenant)) as begin:
                    assert await answers(await begin(opening()))
                await system.worker.wait_until_gone()
    opened = [json.loads(line) for line in log.getvalue().splitlines() if "session opened" in line]
    assert [(each["tenant"], each["cached_tokens"]) for each in opened] == [
        ("acme", 0),
        ("globex", 0),
        ("globex", 2),
        ("acme", 2),
    ]
