"""`serve --pair` and `forerun pair`: the line lets its own device in, over TLS, and nobody else."""

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud_verifier.server.serving import identity_of, tls_of
from cloud_verifier.settings import VerifierConfig
from common.errors import Code, UserError
from edge_client.network.client_tls import TlsSettings
from edge_client.process.paths import EdgePaths, find_paths
from edge_client.settings import EdgeConfig, load_config
from forerun.cli import build_parser, main
from forerun.commands import verify
from forerun.commands.pair import NAME, Pairing
from lab.rig import own_places
from tests.support.tiny import System, running
from tests.support.town import refusal, write_text

pytestmark = pytest.mark.grpc


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EdgePaths:
    pytest.importorskip("jwt")
    for name, value in own_places(tmp_path).items():
        monkeypatch.setenv(name, value)
    return find_paths(os.environ)


def served(*words: str) -> VerifierConfig:
    return verify.config_of(build_parser("verify").parse_args(["serve", "model", "--pair", *words]))


@contextlib.asynccontextmanager
async def verifier() -> AsyncIterator[System]:
    config = served()
    identity, files = identity_of(config.identity)
    async with running(identity=identity, tls=tls_of(config.server), files=files) as system:
        yield system


def line(paths: EdgePaths, system: System) -> list[str]:
    return Pairing.of(paths).words(system.address).split()


def configured(paths: EdgePaths) -> EdgeConfig:
    return load_config({}, {}, paths.files_read(None)).config


def tls(config: EdgeConfig) -> TlsSettings:
    own = config.verifier
    return TlsSettings(Path(own.tls_ca), token_file=Path(own.token_file), server_name=own.tls_server_name)


async def test_a_paired_device_is_let_in_and_others_are_not(paths: EdgePaths) -> None:
    async with verifier() as system:
        assert await asyncio.to_thread(main, ["pair", *line(paths, system)]) == 0
        config = configured(paths)
        assert config.verifier.addresses == (system.address,)
        assert not config.verifier.is_plain(system.address)
        assert len(await write_text(system, tls(config))) == 16
        await asyncio.to_thread(Path(config.verifier.token_file).write_text, "another" * 8)
        assert (await refusal(system, tls(config))).code is Code.UNAUTHENTICATED
        nothing = TlsSettings(Path(config.verifier.tls_ca), server_name=NAME)
        assert (await refusal(system, nothing)).code is Code.UNAUTHENTICATED


async def test_another_certificate_than_the_lines_is_refused_and_nothing_is_kept(paths: EdgePaths) -> None:
    async with verifier() as system:
        address, key = line(paths, system)
        mark, _, secret = key.partition(".")
        wrong = [
            "A" * len(mark) + "." + secret,
            mark,
            "",
            f"{mark}.abc",
            f"{mark}.{secret[:-1]}é",
            f"é.{secret}",
        ]
        for each in wrong:
            assert await asyncio.to_thread(main, ["pair", address, each]) == 2
    assert not list(paths.config.glob("pair*"))
    assert await asyncio.to_thread(main, ["pair", address, key]) == 1  # nobody listens


@pytest.mark.parametrize("before", ["  forerun pair ", "$ .venv/bin/forerun pair ", ""])
async def test_the_daemon_takes_the_line_unseen(
    before: str, paths: EdgePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ["edge", "--pair", "--draft", "nothing.gguf"]
    async with verifier() as system:
        address, key = line(paths, system)
        for given in ("", address, f"{address} {key[:-1]}", f"{address} {key} more"):
            monkeypatch.setattr("sys.stdin", io.StringIO(f"{before}{given}\n"))
            assert await asyncio.to_thread(main, start) == 2
        for elsewhere in (["--system"], ["--config", str(paths.config / "own.toml")]):
            monkeypatch.setattr("sys.stdin", io.StringIO(f"{before}{address} {key}\n"))
            assert await asyncio.to_thread(main, [*start, *elsewhere]) == 2
        assert not list(paths.config.glob("pair*"))
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{before}{address} {key}\n"))
        assert await asyncio.to_thread(main, start) == 2  # there is no such draft
    assert configured(paths).verifier.addresses == (system.address,)


async def test_a_paired_devices_doctor_finds_the_link_whole(paths: EdgePaths) -> None:
    async with verifier() as system:
        assert await asyncio.to_thread(main, ["pair", *line(paths, system)]) == 0
        context = tls(configured(paths)).context()
        host, _, port = system.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=NAME)
        writer.close()


def test_a_configured_address_stays_and_ipv6_is_told_as_it_is_taken(
    paths: EdgePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_VERIFY_LISTEN", "[::1]:6001")
    config = served()
    assert config.server.listen == "[::1]:6001"
    assert Pairing.of(paths).words(config.server.listen).startswith("[::1]:6001 ")
    assert main(["pair", *Pairing.of(paths).words("[::1]:9").split()]) == 1  # understood, and nobody listens


def test_an_interrupted_start_is_made_good(paths: EdgePaths) -> None:
    served()
    Pairing.of(paths).secret.unlink()
    served()
    assert Pairing.of(paths).secret.exists()


@pytest.mark.parametrize(("setting", "status"), [("insecure = true", 2), ('tls_server_name = "x"', 0)])
async def test_settings_that_defeat_a_pairing_are_named(
    setting: str, status: int, paths: EdgePaths, capsys: pytest.CaptureFixture[str]
) -> None:
    paths.config.mkdir(parents=True, exist_ok=True)
    (paths.config / "edge.toml").write_text(f"[verifier]\n{setting}\n")
    async with verifier() as system:
        assert await asyncio.to_thread(main, ["pair", *line(paths, system)]) == status
    assert setting.split(maxsplit=1)[0] in capsys.readouterr().err
    assert (paths.config / "pair.toml").exists() is (status == 0)


def test_the_pairing_is_made_once_for_its_owner_alone(paths: EdgePaths) -> None:
    first = served("--port", "7")
    pairing = Pairing.of(paths)
    assert first.server.listen == "0.0.0.0:7"
    assert pairing.secret.stat().st_mode & 0o077 == 0
    assert pairing.key.stat().st_mode & 0o077 == 0
    kept = pairing.secret.read_bytes(), pairing.cert.read_bytes()
    assert served() == served("--listen", "0.0.0.0:50051")
    assert (pairing.secret.read_bytes(), pairing.cert.read_bytes()) == kept


@pytest.mark.parametrize(
    "words", [["--tls-cert", "c", "--tls-key", "k"], ["--secret-file", "s"], ["--tenant-header", "x-t"]]
)
def test_a_pairing_stands_for_itself(words: list[str], paths: EdgePaths) -> None:
    with pytest.raises(UserError):
        served(*words)


@pytest.mark.parametrize("content", ["", "short\n", "x" * 40 + "\nshort\n"])
def test_secrets_that_could_be_guessed_are_refused(content: str, paths: EdgePaths) -> None:
    config = served()
    Pairing.of(paths).secret.write_text(content)
    with pytest.raises(UserError):
        identity_of(config.identity)
