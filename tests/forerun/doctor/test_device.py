"""This device's checks: packages, processor, token, address, and a daemon that is silent."""

import dataclasses
import socket
from pathlib import Path

import pytest

from common.errors import Code, ForerunError
from edge_client.network.channel import MORE
from edge_client.process import run_file as daemon_file
from edge_client.process.paths import EdgePaths
from edge_client.settings import ApiSection
from forerun.doctor.device import Level, check_daemon, check_load, check_processor, check_token, refused
from tests.support.small_server import Handler, serving


@pytest.mark.parametrize(
    ("info", "level", "words"),
    [
        ("CPU : SSE3 = 1 | AVX2 = 1 | AMX_INT8 = 0 | ", Level.OK, "SSE3, AVX2"),
        ("CPU : AVX2 = 1 | AMX_INT8 = 1 | ", Level.WARN, "repacked weights stay off"),
        ("CPU : SSE3 = 1 | ", Level.WARN, "uses SSE3"),
        ("", Level.WARN, "no special instructions"),
    ],
)
def test_a_processor_is_judged_by_what_llama_cpp_uses(info: str, level: Level, words: str) -> None:
    found = check_processor(info)
    assert found.level is level
    assert words in found.words


@pytest.mark.parametrize(("load", "level"), [(0.4, Level.OK), (2.0, Level.OK), (30.0, Level.WARN)])
def test_a_busy_machine_is_a_finding(load: float, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert check_load().level is level


def test_a_system_without_a_load_average_has_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.getloadavg")
    assert check_load().level is Level.SKIP


@pytest.mark.parametrize("code", Code, ids=lambda code: code.value)
def test_every_error_of_a_verifier_has_a_remedy(code: Code) -> None:
    finding = refused("gRPC", ForerunError(f"the token is not for the audience 'forerun'{MORE}", code))
    assert finding.advice
    assert MORE not in finding.words


def places(tmp_path: Path) -> EdgePaths:
    return EdgePaths(*(tmp_path,) * 4)


def test_a_token_is_its_owners_alone(tmp_path: Path) -> None:
    api, paths = ApiSection(), places(tmp_path)
    assert "made at the daemon's first start" in check_token(api, paths).words
    paths.token.write_text("a-token-of-the-tests\n")
    paths.token.chmod(0o600)
    assert check_token(api, paths).level is Level.OK
    paths.token.chmod(0o644)
    found = check_token(api, paths)
    assert found.level is Level.FAIL
    assert "chmod 600" in found.words
    assert check_token(dataclasses.replace(api, auth=False), paths).level is Level.SKIP


def test_an_address_is_free_or_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = check_daemon(ApiSection(listen=address), places(tmp_path))
        assert found.level is Level.FAIL
        assert "cannot listen on" in found.words
    assert check_daemon(ApiSection(listen="127.0.0.1:0"), places(tmp_path)).level is Level.OK
    path = tmp_path / "s"
    listen = f"unix:{path}"
    assert check_daemon(ApiSection(listen=listen), places(tmp_path)).level is Level.OK
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert check_daemon(ApiSection(listen=listen), places(tmp_path)).level is Level.OK, "nobody serves it"
        server.listen()
        assert "another program serves" in check_daemon(ApiSection(listen=listen), places(tmp_path)).words


def answer(request: Handler) -> None:
    request.reply(200, b"{}", Content_Type="application/json")


def test_a_daemon_that_runs_must_answer(tmp_path: Path) -> None:
    paths = places(tmp_path)
    with serving(answer) as address:
        record = daemon_file.this_process(started_at=0.0, listen=address, version="1")
        daemon_file.write(paths.daemon, record)
        found = check_daemon(ApiSection(), paths)
        assert found.level is Level.OK
        assert f"process {record.pid} at {address}" in found.words
    assert check_daemon(ApiSection(), paths).level is Level.FAIL
