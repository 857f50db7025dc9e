"""The operator's port: what each path answers, who sees live sessions, and that no client holds a place."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from http.client import HTTPConnection
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.telemetry import http_server
from cloud_verifier.telemetry.http_server import HttpServer
from cloud_verifier.telemetry.snapshot import Snapshot
from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from edge_client.network.channel import VerifierChannel
from tests import wording
from tests.cloud_verifier.telemetry.desk import INFO, ask, begin, make, running, whole
from tests.support.tiny import generation
from tests.support.tiny import running as served
from tests.support.waiting import until

HOST = "127.0.0.1"


class Answer(NamedTuple):
    status: int
    kind: str
    body: str


def request(port: int, path: str, method: str = "GET", **headers: str) -> Answer:
    """One request, blocking."""
    with contextlib.closing(HTTPConnection(HOST, port, timeout=20)) as connection:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers.get("Content-Type", ""), response.read().decode())


async def get(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> Answer:
    return await asyncio.to_thread(request, port, path, method, **headers)


def always_ready() -> str:
    return ""


@contextlib.asynccontextmanager
async def serving(
    take: Callable[[], Snapshot] | None = None,
    why_not_ready: Callable[[], str] = always_ready,
    host: str = HOST,
    port: int = 0,
) -> AsyncIterator[HttpServer]:
    """With a session, unless `take` is given."""
    worker = make()
    begin(worker, ask(session_id="one"), "acme")
    async with HttpServer(take or worker.snapshot, why_not_ready, host, port) as server:
        yield server


async def test_prometheus_finds_the_page_in_the_form_that_it_asks_for() -> None:
    async with serving() as server:
        plain = await get(server.port, "/metrics?x=1")
        newer = await get(server.port, Accept="application/openmetrics-text;version=1.0.0")
    assert plain.status == newer.status == 200
    assert plain.kind.startswith("text/plain; version=")
    assert newer.kind.startswith("application/openmetrics-text;")
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(plain.body)
        for sample in family.samples
    }
    assert values["forerun_sessions_opened_total"] == 1.0
    async with serving(port=server.port):
        pass  # the port is free again


async def test_nothing_else_is_there_and_nothing_can_be_changed() -> None:
    async with serving() as server:
        for path in ("/", "/metrics/", "/metrics/x", "/favicon.ico"):
            assert (await get(server.port, path)).status == 404
        for method in ("POST", "PUT", "DELETE", "PRI"):
            assert (await get(server.port, "/sessions", method)).status == 405
        assert await get(server.port, "/livez", "HEAD") == (200, "text/plain; charset=utf-8", "")


@pytest.mark.parametrize("host", ["taken", "256.0.0.1"])
async def test_an_address_that_cannot_be_had_is_a_sentence(host: str) -> None:
    async with serving() as server:
        taken = host == "taken"
        with wording.raises(UserError):
            async with serving(host=HOST if taken else host, port=server.port if taken else 1):
                pass


async def test_a_defect_is_answered_without_its_insides(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Snapshot:
        raise KeyError("an inside")

    async with serving(fail) as server:
        answer = await get(server.port, "/sessions")
        assert (await get(server.port, "/livez")).status == 200
    assert answer.status == 500
    assert "inside" not in answer.body
    assert "an inside" in caplog.text


async def probes(server: HttpServer) -> tuple[int, int]:
    """The status of /livez and of /readyz."""
    return (await get(server.port, "/livez")).status, (await get(server.port, "/readyz")).status


@pytest.mark.grpc
async def test_a_verifier_that_is_full_or_drains_is_alive_and_not_ready(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with (
        served(SchedulerConfig(max_sessions=1), step_time=0.01) as system,
        serving(why_not_ready=system.worker.scheduler.why_not_ready) as server,
        VerifierChannel(system.address) as channel,
    ):
        assert await probes(server) == (200, 200)
        text = generation(channel, None, SamplingParams(max_tokens=200, ignore_eos=True), make_policy("off"))
        shown = text.shown()
        await anext(shown)
        assert await probes(server) == (200, 503)
        await shown.aclose()
        await system.worker.wait_until_gone()
        assert await probes(server) == (200, 200)
        system.worker.drain(5.0)
        assert await probes(server) == (200, 503)
        assert "draining" in (await get(server.port, "/readyz")).body
    marks = [line[0] for line in caplog.messages if "ready" in line]
    assert marks == ["!", ">", "!"], "one line a change"


@pytest.mark.grpc
async def test_liveness_answers_while_the_engine_is_in_a_step() -> None:
    async with (
        served(step_time=1.0) as system,
        serving() as server,
        VerifierChannel(system.address) as channel,
    ):
        text = generation(channel, None, SamplingParams(max_tokens=3, ignore_eos=True), make_policy("off"))
        writing = asyncio.ensure_future(anext(text.shown()))
        await until(lambda: system.worker.scheduler.counters.num_opened)
        steps = system.worker.scheduler.counters.num_steps
        assert (await get(server.port, "/livez")).status == 200
        assert system.worker.scheduler.counters.num_steps == steps
        await writing


async def test_live_sessions_tell_what_every_session_did() -> None:
    async with running(make()) as worker:
        await whole(worker, ask(max_tokens=6), "a")
        begin(worker, ask(max_tokens=400, session_id="one"), "b")
        begin(worker, ask((1, 2), max_tokens=400, fill=False, committed=(5,)), "c")
        snapshot = worker.snapshot()
    async with serving(lambda: snapshot) as server:
        answer = await get(server.port, "/sessions")
    assert (answer.status, answer.kind) == (200, "application/json")
    told = json.loads(answer.body)
    first, second = told["sessions"]
    assert (told["model"], told["max_sessions"], told["draining"]) == ("tiny", 64, False)
    assert (first["session_id"], first["tenant"], first["prompt_tokens"], first["max_tokens"]) == (
        "one", "b", 3, 400,
    )  # fmt: skip
    assert first["mode"] == "prefill"
    assert (second["tenant"], second["resumed_tokens"], second["committed"]) == ("c", 1, 0)
    assert second["silent_us"] is None
    totals, slots = told["totals"], told["slots"]
    assert totals["committed"] == snapshot.counters.num_committed >= 6
    assert totals["opened"] == 3
    assert totals["steps"] == snapshot.counters.num_steps
    assert totals["rows"] == totals["tips"] + totals["drafts"] + snapshot.counters.num_prefilled
    assert slots["free"] + slots["cached"] + slots["shared"] + slots["owned"] == INFO.num_slots


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((name, 200) for name in ("127.0.0.1:9464", "LOCALHOST", "[::1]:9464")),
        *((name, 403) for name in ("localhost.evil.example:9464", "10.0.0.1", "")),
    ],
)
async def test_live_sessions_are_not_for_pages_of_other_sites(host: str, status: int) -> None:
    """DNS rebinding lets a page in this machine's browser send requests here under its own site's name."""
    async with serving() as server:
        assert (await get(server.port, "/sessions", Host=host)).status == status
        assert (await get(server.port, "/metrics", Host=host)).status == 200


async def test_live_sessions_are_not_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has no second address that a test could rely on, so another is made of the first."""
    environ = http_server._Handler.get_environ
    monkeypatch.setattr(
        http_server._Handler, "get_environ", lambda handler: {**environ(handler), "REMOTE_ADDR": "10.0.0.1"}
    )
    async with serving() as server:
        answer = await get(server.port, "/sessions", Host="localhost")
        assert (await get(server.port, "/readyz")).status == 200
    assert answer.status == 403
    assert "acme" not in answer.body


@pytest.mark.parametrize("sent", [b"GET /", b"\x16\x03\x01\r\n\r\n", b"\xff" * 70_000])
async def test_clients_that_send_no_request_are_cut_and_delay_nobody(
    sent: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http_server._Handler, "timeout", 0.2)
    async with serving() as server:
        clients = [await asyncio.open_connection(HOST, server.port) for _ in range(20)]
        for _, writer in clients:
            writer.write(sent)
        assert (await get(server.port, "/livez")).status == 200
        async with asyncio.timeout(20):
            for reader, writer in clients:
                with contextlib.suppress(ConnectionError):  # what the server had not read
                    await reader.read()
                writer.close()
    assert "Traceback" not in capfd.readouterr().err
