"""Laws of the list of denied callers over the real wire: who is on it gets nothing more, from the next look
on, and nobody else notices."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import grpc
import pytest

from cloud_verifier.denied import live_denied
from cloud_verifier.telemetry.trust import DENIED, TOKEN_KEYS
from common.errors import Code, UserError
from edge_client.channel import VerifierChannel
from edge_client.core.policies import make_policy
from forerun.dev_certs import spiffe_id
from forerun.logs import writing
from tests.drivers.tiny import EOS, generation, running
from tests.drivers.town import DOMAIN, TEXT, Town, opening, refusal, stub_of, write_text
from tests.worlds.models import target_alone

pytestmark = pytest.mark.grpc

WHOLE = target_alone((1, 2, 3), TEXT, EOS)
WORDS = "lets this certificate, token or tenant in no more"


@pytest.fixture
def town(tmp_path: Path) -> Town:
    found = Town(tmp_path)
    found.put("denied", b"# nobody\n")
    return found


def denying(town: Town) -> dict[str, Any]:
    return {DENIED: live_denied(town.folder / "denied")}


def serial_of(path: Path | None) -> str:
    from cryptography import x509

    assert path is not None
    return f"{x509.load_pem_x509_certificate(path.read_bytes()).serial_number:X}"


async def test_a_device_a_certificate_or_a_tenant_is_denied_and_the_others_are_not(town: Town) -> None:
    stolen, own = town.of("acme"), town.device(spiffe_id(DOMAIN, "acme", "d2"))
    lines = (
        f"serial {serial_of(stolen.cert)}\n",
        f"uri {spiffe_id(DOMAIN, 'acme', 'd1')}\n",
    )
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


async def test_a_token_is_denied_by_its_id(town: Town) -> None:
    identity = town.token_identity()
    files = {TOKEN_KEYS: identity.keys, **denying(town)}
    stolen, own = town.bearer(town.token(jti="t-1")), town.bearer(town.token(jti="t-2"))
    async with running(identity=identity, files=files, tls=town.server_tls(clients=False)) as system:
        assert await write_text(system, stolen) == WHOLE
        town.put("denied", b"token t-1\n")
        assert WORDS in str(await refusal(system, stolen)), "although it is remembered as good"
        assert await write_text(system, own) == WHOLE


async def test_streams_of_who_is_denied_end_with_the_sentence_and_others_go_on(town: Town) -> None:
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
            system.server.upkeep.look()
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


async def test_an_edge_shows_the_sentence_and_does_not_come_again(town: Town) -> None:
    tls = town.of("acme")
    async with (
        town.by_certificate(DOMAIN, files=denying(town), step_time=0.005) as system,
        VerifierChannel(system.address, tls=tls) as channel,
    ):
        run = generation(channel, None, TEXT, make_policy("off"))
        pieces = aiter(run)
        await anext(pieces)
        town.put("denied", f"serial {serial_of(tls.cert)}\n".encode())
        system.server.upkeep.look()
        with pytest.raises(UserError, match=WORDS):
            async for _ in pieces:
                pass
        assert run.session.text == WHOLE[: len(run.session.text)]
        assert system.worker.scheduler.counters.num_refused == {}
