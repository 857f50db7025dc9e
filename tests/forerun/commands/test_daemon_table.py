"""The table of live texts: paces, and a daemon of another version."""

from __future__ import annotations

from typing import Any

from common.errors import PeerError
from edge_client.process.client import LocalClient
from forerun.commands.daemon_table import DaemonLook, as_json, look, paces
from tests import wording
from tests.support.small_server import Handler, serving


def text(name: str, tokens: int, elapsed_ms: float = 1000.0, **more: Any) -> dict[str, Any]:
    return {"id": name, "prompt": 3, "mode": "ahead", "tokens": tokens, "elapsed_ms": elapsed_ms, **more}


def at(now: float, *texts: dict[str, Any]) -> DaemonLook:
    return DaemonLook(now, {"mode": "ahead"}, texts, 0)


def test_paces_are_of_the_time_between_two_looks() -> None:
    before, now = at(10.0, text("a", 10)), at(12.0, text("a", 50, 5000.0), text("b", 9, 3000.0))
    assert paces(now, before) == {"a": 20.0, "b": 3.0}
    assert paces(now, None) == {"a": 10.0, "b": 3.0}
    assert [each["tokens_per_s"] for each in as_json(now, before)["texts"]] == [20.0, 3.0]


def test_another_version_is_named() -> None:
    def answer(request: Handler) -> None:
        request.reply(200, b'{"else": 1}', Content_Type="application/json")

    with serving(answer) as address, wording.raises(PeerError):
        look(LocalClient(address), 0.0)
