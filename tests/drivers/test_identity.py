"""Laws of identity by certificate: whose a call is, is what TLS has shown, and nothing that an edge says of
itself; and what one tenant sends never reaches another's session."""

import io
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from cloud_verifier.identity.caller_files import live_denied
from cloud_verifier.identity.identity import CertificateIdentity
from cloud_verifier.telemetry.monitor import DENIED
from common.errors import Code, UserError
from edge_client.core.policies import make_policy
from edge_client.network.channel import VerifierChannel
from forerun.commands.dev_certs import spiffe_id
from forerun.log_format import writing
from tests.support.tiny import EOS, generation, running
from tests.support.town import DOMAIN, TEXT, Town, answers, opening, refusal, stub_of, text_of, write_text
from tests.worlds.models import target_alone

pytestmark = pytest.mark.grpc


@pytest.fixture
def town(tmp_path: Path) -> Town:
    made = Town(tmp_path)
    made.put("denied", b"# nobody\n")
    return made


async def test_an_edge_cannot_name_its_own_tenant(town: Town) -> None:
    claims = (
        ("x-tenant", "globex"),
        ("tenant", "globex"),
        ("x-forwarded-client-cert", "URI=spiffe://x/tenant/globex"),
    )
    more = (("authorization", f"Bearer {town.token('globex')}"), ("x-llm-d-tenant", "globex"))
    async with town.by_certificate() as system, stub_of(system, town.of("acme"), *claims, *more) as begin:
        call = await begin(opening("globex", fill=False))
        await call.read()
        assert [each["tenant"] for each in system.worker.snapshot().sessions] == ["acme"]
        call.cancel()


FORM, NONE = "not of the form", "names no tenant"
NAMELESS: tuple[tuple[tuple[str, ...], Code, str], ...] = (
    ((), Code.UNAUTHENTICATED, NONE),
    (("https://example.org/tenant/acme",), Code.UNAUTHENTICATED, NONE),
    (("spiffe://example.org/ns/acme/sa/x",), Code.PERMISSION_DENIED, FORM),
    (("spiffe://example.org/tenant",), Code.PERMISSION_DENIED, FORM),
    (("spiffe://example.org/tenant/-acme",), Code.PERMISSION_DENIED, FORM),
    ((f"spiffe://example.org/tenant/{'a' * 65}",), Code.PERMISSION_DENIED, FORM),
    (("spiffe://other.org/tenant/acme",), Code.PERMISSION_DENIED, "another trust domain than example.org"),
    (("spiffe://example.org/tenant/acme", "spiffe://example.org/tenant/globex"), Code.UNAUTHENTICATED, NONE),
)


async def test_a_certificate_that_names_no_tenant_is_refused(town: Town) -> None:
    async with town.by_certificate(DOMAIN) as system:
        texts, streams = Counter[str](), Counter[str]()
        for uris, code, words in NAMELESS:
            used: list[int] = []
            error = await refusal(system, town.device(*uris), used)
            assert (words in str(error), error.code) == (True, code), uris
            texts[code.value] += 1
            streams[code.value] += sum(used)
        refused = Counter(system.worker.scheduler.counters.num_refused)
        assert texts <= refused <= streams


async def test_a_dns_name_that_looks_like_a_uri_names_no_tenant(town: Town) -> None:
    """A CA that checks host names only may sign one."""
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
        assert (own["tenant"], own["session_id"]) == ("acme", "job-7")
        live.cancel()
        await live.code()
        again = await acme(opening(committed=whole[:8]))
        assert text_of(await answers(again)) == whole[8:]


WHOLE = target_alone((1, 2, 3), TEXT, EOS)
WORDS = "lets this certificate, token or tenant in no more"


def denying(town: Town) -> dict[str, Any]:
    return {DENIED: live_denied(town.folder / "denied")}


def serial_of(path: Path | None) -> str:
    assert path is not None
    return f"{x509.load_pem_x509_certificate(path.read_bytes()).serial_number:X}"


async def test_a_device_a_certificate_or_a_tenant_is_denied_and_the_others_are_not(town: Town) -> None:
    stolen, own = town.of("acme"), town.device(spiffe_id(DOMAIN, "acme", "d2"))
    lines = (f"serial {serial_of(stolen.cert)}\n", f"uri {spiffe_id(DOMAIN, 'acme', 'd1')}\n")
    async with town.by_certificate(DOMAIN, files=denying(town)) as system:
        assert await write_text(system, stolen) == WHOLE
        for line in lines:
            town.put("denied", line.encode())
            error = await refusal(system, stolen)
            assert (WORDS in str(error), error.code) == (True, Code.PERMISSION_DENIED)
            assert await write_text(system, own) == WHOLE
        town.put("denied", b"tenant acme\n")
        assert WORDS in str(await refusal(system, own))
        assert await write_text(system, town.of("globex")) == WHOLE
        town.put("denied", b"")
        assert await write_text(system, stolen) == WHOLE, "who is let in again needs no restart"


async def test_streams_of_a_denied_tenant_end_with_the_reason_and_others_continue(town: Town) -> None:
    log = io.StringIO()
    with writing("info", "text", log):
        async with (
            town.by_certificate(DOMAIN, files=denying(town), step_time=0.002) as system,
            stub_of(system, town.of("acme")) as acme,
            VerifierChannel(system.address, tls=town.of("globex")) as channel,
        ):
            live = await acme(opening(fill=False))
            await live.read()
            run = generation(channel, None, TEXT, make_policy("off"))
            pieces = aiter(run)
            await anext(pieces)
            town.put("denied", b"tenant acme\n")
            system.server.lifecycle.look()
            assert await live.code() is grpc.StatusCode.PERMISSION_DENIED
            assert WORDS in await live.details()
            async for _ in pieces:
                pass
            assert run.session.text == WHOLE
            assert system.worker.snapshot().trust.reloads[DENIED] == 1
    assert "PERMISSION_DENIED" in log.getvalue()
    assert "spiffe" not in log.getvalue()


async def test_a_call_that_sees_the_new_list_first_ends_the_streams_too(town: Town) -> None:
    """The file is looked at with each call; the look every few seconds then finds nothing new."""
    async with (
        town.by_certificate(DOMAIN, files=denying(town)) as system,
        stub_of(system, town.of("acme")) as acme,
    ):
        live = await acme(opening(fill=False))
        await live.read()
        town.put("denied", b"tenant acme\n")
        assert await write_text(system, town.of("globex")) == WHOLE
        assert await live.code() is grpc.StatusCode.PERMISSION_DENIED
