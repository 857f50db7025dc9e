"""Nobody asks the daemon who should not: tokens, Host and Origin, sizes."""

from __future__ import annotations

import pytest

from edge_client.api.security import Gate

OWN = {"host": "127.0.0.1:8080"}
TOKEN = Gate(token="secret")


def status(gate: Gate, path: str = "/v1/models", **headers: str) -> int:
    """200, or that of the refusal."""
    refusal = gate.refusal(path, {**OWN, **headers})
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"authorization": "Bearer secret"}, 200),
        ({"authorization": "bearer secret"}, 200),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Basic secret"}, 401),
        ({"authorization": "Bearer sécret"}, 401),
        ({"x-api-key": "secret"}, 200),  # as Anthropic's clients send it
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": "sécret"}, 401),
        ({"x-api-key": "wrong", "authorization": "Bearer secret"}, 200),
        ({"x-api-key": "secret", "authorization": "Bearer wrong"}, 200),
    ],
    ids=str,
)
def test_a_token_must_be_the_daemons(headers: dict[str, str], expected: int) -> None:
    assert status(TOKEN, **headers) == expected


def test_without_a_token_only_open_paths_answer() -> None:
    assert status(Gate(token="secret", is_socket=True), host="anything") == 200, "its file's rights count"
    assert status(TOKEN) == 401
    assert [status(TOKEN, path) for path in ("/", "/healthz", "/readyz")] == [200, 200, 200]
    assert [status(TOKEN, path) for path in ("/v1/status", "/metrics", "/healthz/", "/v1/sessions")] == [
        401
    ] * 4


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost:8080", 200),
        ("[::1]:8080", 200),
        ("laptop.lan:8080", 200),
        ("evil.example:8080", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_the_host_must_be_a_name_of_this_daemon(host: str, expected: int) -> None:
    """Against DNS rebinding: a page whose name suddenly means this machine still sends its own name."""
    assert status(Gate(hosts=("laptop.lan",)), host=host) == expected


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://127.0.0.1:8080", 200),
        ("http://127.0.0.1:9999", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("https://ui.example", 200),
    ],
)
def test_a_browsers_page_must_be_the_daemons_own_or_allowed(origin: str, expected: int) -> None:
    assert status(Gate(origins=("https://ui.example",)), origin=origin) == expected
