"""Laws of encrypted connections: texts cross them, and whatever is wrong with a certificate is a sentence."""

import contextlib
import datetime
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloud_verifier.core.engine_protocol import TargetInfo
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.identity.server_tls import ServerTls
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.worker import Worker
from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from edge_client.network.client_tls import LiveClientTls, TlsSettings
from edge_client.network.member import Health
from edge_client.network.verifiers import Verifiers
from tests import wording
from tests.support.papers import Papers
from tests.support.tiny import EOS, TABLE, VOCABULARY, generation, running
from tests.support.waiting import until
from tests.worlds.models import VOCAB, TinyTarget, target_alone

pytestmark = pytest.mark.grpc

TEXT = SamplingParams(max_tokens=12, ignore_eos=True)
YESTERDAY = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path)


@contextlib.asynccontextmanager
async def serving(cert: Path, key: Path, client_ca: Path | None = None) -> AsyncIterator[str]:
    info = TargetInfo("tiny", VOCAB, 512, 4096, EOS, VOCABULARY.fingerprint)
    worker = Worker(TinyTarget(info), VerifyScheduler(info))
    tls = ServerTls(cert, key, client_ca)
    async with Server(worker, info, TABLE, "localhost:0", tls=tls) as server:
        yield f"localhost:{server.port}"
        await worker.wait_until_gone()


async def refusal(address: str, tls: TlsSettings | None) -> str:
    """What a pool says of a verifier that it cannot use."""
    async with Verifiers([address], tls=tls) as pool:
        await until(lambda: "cannot be used" in pool.snapshot()[0].why, 20.0)
        (status,) = pool.snapshot()
        assert status.health is Health.UNREACHABLE
        assert status.why in str(pool.refusal())
    return status.why


async def test_a_text_crosses_it_with_a_certificate_on_both_sides(papers: Papers) -> None:
    cert, key = papers.issue("localhost")
    own_cert, own_key = papers.issue("edge.device")
    tls = TlsSettings(papers.ca_file, own_cert, own_key)
    async with serving(cert, key, papers.ca_file) as address, Verifiers([address], tls=tls) as pool:
        await pool.heard(10.0)
        run = generation(pool.route("s"), None, TEXT, make_policy("off"))
        async for _ in run:
            pass
    assert run.session.text == target_alone((1, 2, 3), TEXT, EOS)


async def test_a_name_of_its_own_may_be_asked_of_the_certificate(papers: Papers) -> None:
    cert, key = papers.issue("gpu.example")
    async with serving(cert, key) as address:
        tls = TlsSettings(papers.ca_file, server_name="gpu.example")
        async with Verifiers([address], tls=tls) as pool:
            await pool.heard(10.0)
            assert pool.snapshot()[0].health is Health.READY
        wording.keep(await refusal(address, replace(tls, server_name="")))


async def test_a_certificate_that_is_not_trusted_is_told(papers: Papers, tmp_path: Path) -> None:
    other = Papers(tmp_path / "other")
    async with serving(*papers.issue("localhost")) as address:
        wording.keep(await refusal(address, TlsSettings(other.ca_file)))
        wording.keep(await refusal(address, TlsSettings()))
    async with serving(*papers.issue("localhost", expires=YESTERDAY)) as address:
        wording.keep(await refusal(address, TlsSettings(papers.ca_file)))


async def test_a_verifier_that_asks_who_one_is_is_told(papers: Papers, tmp_path: Path) -> None:
    stranger = Papers(tmp_path / "other").issue("edge.device")
    async with serving(*papers.issue("localhost"), papers.ca_file) as address:
        wording.keep(await refusal(address, TlsSettings(papers.ca_file)))
        wording.keep(await refusal(address, TlsSettings(papers.ca_file, *stranger)))


async def test_one_side_alone_with_tls_is_told(papers: Papers) -> None:
    async with running() as system:
        wording.keep(await refusal(system.address, TlsSettings(papers.ca_file)))
    async with serving(*papers.issue("localhost")) as address:
        wording.keep(await refusal(address, None))


def test_files_that_cannot_be_used_are_named(papers: Papers, tmp_path: Path) -> None:
    cert, key = papers.issue("localhost")
    with wording.raises(UserError):
        TlsSettings(cert=cert)
    missing = tmp_path / "missing.pem"
    with wording.raises(UserError):
        Verifiers(["localhost:1"], tls=TlsSettings(missing))
    with wording.raises(UserError):
        TlsSettings(papers.ca_file, papers.ca_file, key).credentials()


@pytest.mark.parametrize("content", [b"", b"two words", b"\xc3\xa4", b"x" * 9000, b"a\nb"])
def test_a_file_that_holds_no_token_is_named_and_not_quoted(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with wording.raises(UserError) as refused:
        LiveClientTls(TlsSettings(token_file=path))
    assert "words" not in str(refused.value)


def test_the_token_is_the_files_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    tls = LiveClientTls(TlsSettings(token_file=path))
    assert tls.metadata() == (("authorization", "Bearer first"),)
    path.write_text("another\n")
    assert tls.metadata() == (("authorization", "Bearer another"),)
    path.unlink()
    assert tls.metadata() == (("authorization", "Bearer another"),)
    assert LiveClientTls(TlsSettings()).metadata() == ()
