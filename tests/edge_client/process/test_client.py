"""The client of the local API: JSON, events, and what each failure is in words."""

import json
import queue
import socket
import ssl
from pathlib import Path

import pytest

from common.errors import (
    CapacityError,
    Code,
    ForerunError,
    LocalError,
    PeerError,
    UnavailableError,
    UserError,
)
from edge_client.process import run_file as daemon_file
from edge_client.process.client import LocalClient, ServerEvent, client_of, connect
from edge_client.process.paths import ensure_token
from edge_client.process.run_file import this_process
from tests import wording
from tests.support.ports import refusing
from tests.support.small_server import Handler, serving


def echo(request: Handler) -> None:
    """What was asked, as JSON."""
    told = {
        "method": request.command,
        "path": request.path,
        "body": json.loads(request.body or b"null"),
        "token": request.headers.get("Authorization"),
        "host": request.headers.get("Host"),
    }
    request.reply(200, json.dumps(told).encode(), Content_Type="application/json")


def test_json_is_asked_and_answered() -> None:
    with serving(echo) as address:
        client = LocalClient(address, "secret-token")
        told = client.post("/v1/x?y=1", {"a": [1]})
        assert (told["method"], told["path"], told["body"]) == ("POST", "/v1/x?y=1", {"a": [1]})
        assert told["token"] == "Bearer secret-token"
        assert told["host"] == address
        assert client.get("/v1/status")["body"] is None
        assert client.delete("/v1/x")["method"] == "DELETE"
        assert LocalClient(address).get("/")["token"] is None


@pytest.mark.parametrize("unix", [False, True])
def test_events_come_one_by_one(unix: bool, tmp_path: Path) -> None:
    stream = (
        ": waiting\n\n"
        "id: 7\nevent: text\ndata: {\"a\":\ndata: 1}\n\n"
        "data:two\r\n\r\n"
        "retry: 10\n\n"
        "id\ndata\n\n"
        "data: [DONE]\n\n"
        "data: never whole"
    )  # fmt: skip

    def answer(request: Handler) -> None:
        assert json.loads(request.body) == {"stream": True}
        request.begin(200, Content_Type="text/event-stream; charset=utf-8")
        request.wfile.write(stream.encode())

    with serving(answer, unix=tmp_path / "s" if unix else None) as address:
        found = list(LocalClient(address).events("/v1/c", {"stream": True}))
    assert found == [
        ServerEvent('{"a":\n1}', "text", "7"),
        ServerEvent("two", "message", "7"),
        ServerEvent("", "message", ""),
        ServerEvent("[DONE]", "message", ""),
    ]
    assert found[0].json() == {"a": 1}
    with wording.raises(PeerError):
        found[1].json()


def test_chunked_streams_are_read_and_a_broken_one_is_told() -> None:
    def answer(request: Handler) -> None:
        request.begin(200, Content_Type="text/event-stream", Transfer_Encoding="chunked")
        request.wfile.write(b"7\r\ndata: a\r\n2\r\n\n\n\r\n")
        if request.path == "/whole":
            request.wfile.write(b"0\r\n\r\n")

    with serving(answer) as address:
        assert [each.data for each in LocalClient(address).events("/whole")] == ["a"]
        broken = LocalClient(address).events("/broken")
        assert next(broken).data == "a"
        with wording.raises(UnavailableError):
            next(broken)


def test_closing_the_iterator_hangs_up() -> None:
    hung_up = queue.SimpleQueue[bytes]()

    def answer(request: Handler) -> None:
        request.begin(200, Content_Type="text/event-stream")
        request.wfile.write(b"data: 1\n\n")
        request.wfile.flush()
        hung_up.put(request.rfile.read(1))  # until the other side closes

    with serving(answer) as address:
        events = LocalClient(address).events("/")
        assert next(events).data == "1"
        events.close()  # type: ignore[attr-defined]  # it is a generator
        assert hung_up.get(timeout=30) == b""


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, UserError, Code.INVALID_ARGUMENT),
        (401, UserError, Code.FAILED_PRECONDITION),
        (404, UserError, Code.NOT_FOUND),
        (429, CapacityError, Code.RESOURCE_EXHAUSTED),
        (500, LocalError, Code.INTERNAL),
        (503, UnavailableError, Code.UNAVAILABLE),
    ],
)
def test_a_refusal_is_an_error_with_the_daemons_words(
    status: int, kind: type[ForerunError], code: Code
) -> None:
    body = json.dumps({"error": {"message": "the model 'x' is unknown", "type": "t"}}).encode()
    with serving(lambda request: request.reply(status, body, Retry_After="3")) as address:
        with wording.raises(kind) as caught:
            LocalClient(address).get("/")
        with pytest.raises(kind):
            next(iter(LocalClient(address).events("/")))
    assert caught.value.code is code
    if isinstance(caught.value, CapacityError):
        assert caught.value.retry_after == 3.0


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": "x"}', b'{"error": {"message": 1}}'])
def test_a_refusal_without_words_is_told_by_its_status(body: bytes) -> None:
    with serving(lambda request: request.reply(400, body)) as address, wording.raises(UserError):
        LocalClient(address).get("/")


def test_what_is_no_answer_is_told(tmp_path: Path) -> None:
    with serving(lambda request: request.reply(200, b"{", Content_Type="application/json")) as address:
        with wording.raises(PeerError):
            LocalClient(address).get("/")
        with wording.raises(PeerError):
            next(iter(LocalClient(address).events("/")))
    with (
        serving(lambda request: request.reply(200, b"short", Content_Length="9")) as address,
        wording.raises(UnavailableError),
    ):
        LocalClient(address).get("/")
    with refusing() as gone, wording.raises(UnavailableError):
        LocalClient(gone).get("/")
    with wording.raises(UnavailableError):
        LocalClient(f"unix:{tmp_path}/none").get("/")
    with wording.raises(UserError):
        LocalClient("nowhere").get("/")


def test_a_silent_daemon_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = LocalClient(f"127.0.0.1:{silent.getsockname()[1]}", timeout=0.05)
        with wording.raises(UnavailableError) as caught:
            client.get("/")
    assert caught.value.code is Code.DEADLINE_EXCEEDED


def test_the_daemon_is_found_by_its_file(tmp_path: Path) -> None:
    token = ensure_token(tmp_path / "token")
    with serving(echo) as address:
        record = this_process(started_at=0.0, listen=address, version="1", token_file=str(tmp_path / "token"))
        daemon_file.write(tmp_path / "edge.pid", record)
        assert connect(tmp_path / "edge.pid").get("/")["token"] == f"Bearer {token}"
        port = address.rpartition(":")[2]
        everywhere = this_process(started_at=0.0, listen=f"0.0.0.0:{port}", version="1")
        assert client_of(everywhere).get("/")["token"] is None
    with wording.raises(UnavailableError):
        connect(tmp_path / "none")


@pytest.mark.api
def test_tls_trusts_the_daemons_own_certificate_only(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    leaf, other = authority.issue_cert("daemon.example"), authority.issue_cert("daemon.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)
    for name, cert in (("leaf", leaf), ("other", other)):
        cert.cert_chain_pems[0].write_to_path(str(tmp_path / name))
    with serving(echo, tls=context) as address:
        assert LocalClient(address, tls_cert=str(tmp_path / "leaf")).get("/")["path"] == "/"
        with wording.raises(UnavailableError):
            LocalClient(address, tls_cert=str(tmp_path / "other")).get("/")
    with wording.raises(UserError):
        LocalClient(address, tls_cert=str(tmp_path / "none"))
