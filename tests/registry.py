"""A registry of images on this machine, for tests: manifests by tag, to who has fetched a token before."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"


def index(*platforms: str, **other: Any) -> bytes:
    """The manifest of an image for several platforms, with the attestation that builders put beside each."""
    entries = [
        {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": f"sha256:{hashlib.sha256(each.encode()).hexdigest()}",
            "size": 1234,
            "platform": dict(zip(("os", "architecture"), each.split("/"), strict=True)),
        }
        for each in (*platforms, "unknown/unknown")
    ]
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries, **other}).encode()


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


class FakeRegistry:
    """What it has, how it behaves, and what it was asked."""

    def __init__(self) -> None:
        self.manifests: dict[str, bytes] = {}  # REPOSITORY:TAG -> its bytes
        self.wants_token = True
        self.token_key = "token"  # some say access_token
        self.status = 0  # answers manifests with this instead
        self.called = ""  # a digest that it tells in place of the true one
        self.challenge = ""  # in place of its own
        self.asked: list[tuple[str, str]] = []  # method, path
        self.address = ""
        self._given: set[str] = set()  # tokens, each good for one repository

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        url = urllib.parse.urlsplit(path)
        if url.path == "/token":
            query = dict(urllib.parse.parse_qsl(url.query))
            token = f"of {query['scope']} at {query['service']}"
            self._given.add(token)
            return 200, {}, json.dumps({self.token_key: token}).encode()
        repository, _, tag = url.path.removeprefix("/v2/").rpartition("/manifests/")
        scope = f"repository:{repository}:pull"
        token = f"of {scope} at fake.registry"
        if self.wants_token and (token not in self._given or authorization != f"Bearer {token}"):
            own = f'Bearer realm="{self.address}/token",service="fake.registry",scope="{scope}"'
            return 401, {"WWW-Authenticate": self.challenge or own}, b"{}"
        body = self.manifests.get(f"{repository}:{tag}")
        if self.status or body is None:
            return self.status or 404, {}, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}'
        return 200, {"Content-Type": INDEX, "Docker-Content-Digest": self.called or digest_of(body)}, body


def _handler(registry: FakeRegistry) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(has_body=True)

        def do_HEAD(self) -> None:
            self._answer(has_body=False)

        def _answer(self, *, has_body: bool) -> None:
            registry.asked.append((self.command, self.path))
            status, headers, body = registry.answer(self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if has_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Tests have nobody to tell."""

    return Handler


@contextmanager
def serving() -> Iterator[FakeRegistry]:
    """A registry that answers while the block runs."""
    registry = FakeRegistry()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(registry))
    registry.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
