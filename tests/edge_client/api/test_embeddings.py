"""Requests for embeddings are passed on to the server of the settings, and its failures are told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from edge_client.api.embeddings import MOST_BYTES, Embedder
from edge_client.api.security import Gate
from edge_client.settings import ApiSection
from tests.edge_client.api.served import TOKEN
from tests.edge_client.api.world import world

pytestmark = [pytest.mark.api, pytest.mark.grpc]

VECTORS = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]}
ASKED = {"model": "small", "input": ["a", "é"], "dimensions": 2}


@dataclass
class Server:
    """A server of embeddings that answers as told, and what it was asked."""

    url: str
    status: int = 200
    body: bytes = json.dumps(VECTORS).encode()
    headers: dict[str, str] = field(default_factory=dict)
    pause: float = 0.0  # seconds between single bytes of the body
    seen: list[tuple[dict[str, str], Any]] = field(default_factory=list)


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["content-length"]))
            found.seen.append(({k.lower(): v for k, v in self.headers.items()}, json.loads(asked)))
            self.send_response(found.status)
            for name, value in {"content-type": "application/json", **found.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            pieces = [found.body] if not found.pause else [bytes([each]) for each in found.body]
            with contextlib.suppress(OSError):  # the daemon left
                for piece in pieces:
                    self.wfile.write(piece)
                    time.sleep(found.pause)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Server(f"http://127.0.0.1:{server.server_port}/v1/embeddings")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_the_answer_is_the_servers_and_the_daemons_token_stays_here(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of-the-embeddings-server-and-long\n")
    file.chmod(0o600)
    own = {"authorization": f"Bearer {TOKEN}"}
    with serving() as server:
        for token_file, sent in ((None, None), (file, "Bearer of-the-embeddings-server-and-long")):
            embedder = Embedder(server.url, token_file)
            async with world(Gate(token=TOKEN), headers=own, embedder=embedder) as found:
                answer = await found.client.post("/v1/embeddings", json=ASKED)
            assert answer.status_code == 200, answer.text
            assert answer.json() == VECTORS
            headers, asked = server.seen[-1]
            assert asked == ASKED
            assert headers.get("authorization") == sent


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, b'{"error": {"message": "too many inputs"}}', 400),
        (404, b'{"error": "no such model"}', 404),
        (404, b"[]", 404),
        (429, b"later", 429),
        (401, b"{}", 502),
        (500, b"{}", 502),
        (302, b"", 502),
        (200, b"no JSON", 502),
        (200, b"[]", 502),
        (200, b"[" * 100_000, 502),
        (200, b"", 502),
        (200, b" " * (MOST_BYTES + 1), 502),
    ],
)
async def test_failures_are_told(status: int, body: bytes, expected: int) -> None:
    with serving() as server:
        server.status, server.body = status, body
        server.headers = {"location": "http://127.0.0.1:1/"} if status == 302 else {}
        async with world(embedder=Embedder(server.url)) as found:
            answer = await found.client.post("/v1/embeddings", json=ASKED)
    assert answer.status_code == expected
    message = answer.json()["error"]["message"]
    for words in ("too many inputs", "no such model"):
        assert (words in message) == (words.encode() in body)


@pytest.mark.parametrize("pause", [0.04, 30.0])
async def test_a_slow_server_takes_no_longer_than_the_limit(pause: float) -> None:
    with serving() as server:
        server.pause = pause
        async with world(embedder=Embedder(server.url, timeout=0.3)) as found:
            began = time.monotonic()
            answer = await found.client.post("/v1/embeddings", json=ASKED)
    assert answer.status_code == 504
    assert time.monotonic() - began < 5


ASKING = """\
import asyncio, sys
from edge_client.api.embeddings import Embedder

async def main():
    asking = asyncio.create_task(Embedder(sys.argv[1]).ask({}))
    await asyncio.sleep(0.5)

asyncio.run(main())
"""


async def test_a_process_that_ends_waits_for_no_answer() -> None:
    with serving() as server:
        server.pause = 30.0
        words = (sys.executable, "-c", ASKING, server.url)
        done = await asyncio.to_thread(subprocess.run, words, timeout=20, check=False)
        assert done.returncode == 0
        assert server.seen


async def test_a_server_that_is_not_there_and_a_token_file_that_cannot_be_read_are_told(
    tmp_path: Path,
) -> None:
    with serving() as server:
        url = server.url
    for embedder in (Embedder(url), Embedder(url, tmp_path / "none")):
        async with world(embedder=embedder) as found:
            assert (await found.client.post("/v1/embeddings", json=ASKED)).status_code == 502


async def test_without_a_server_the_setting_is_named() -> None:
    async with world() as found:
        answer = await found.client.post("/v1/embeddings", json=ASKED)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unsupported_endpoint"
    assert "api.embeddings_url" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/",
        "host:1",
        "http://",
        "http://a:b@host/",
        "http://host:99999/",
        "http://a b/",
        "file:///x",
    ],
)
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(UserError):
        ApiSection(embeddings_url=url)


def test_a_token_goes_only_where_no_network_can_read_it() -> None:
    for url in ("https://host/v1/embeddings", "http://127.0.0.1:9/v1/embeddings"):
        ApiSection(embeddings_url=url, embeddings_token_file="/a")
    with pytest.raises(UserError):
        ApiSection(embeddings_url="http://host/v1/embeddings", embeddings_token_file="/a")
