"""The table of live texts: paces, shares, and what is not known."""

from __future__ import annotations

from typing import Any

from common.errors import PeerError
from edge_client.process.client import LocalClient
from forerun.commands.daemon_table import DaemonLook, as_json, look, paces, screen
from tests import wording
from tests.support.small_server import Handler, serving

STATUS: dict[str, Any] = {
    "mode": "ahead",
    "verifiers": [
        {
            "address": "a:1",
            "health": "ready",
            "for_s": 65.0,
            "smoothed_rtt_ms": 4.5,
            "why": "it serves tiny",
            "model": "tiny",
            "sessions": 2,
            "max_sessions": 64,
        },
        {"address": "b:1", "health": "unreachable", "why": "nobody listens", "smoothed_rtt_ms": None},
    ],
    "draft": {"model": "tiny", "seats": 8},
}


def text(name: str, tokens: int, elapsed_ms: float = 1000.0, **more: Any) -> dict[str, Any]:
    return {"id": name, "prompt": 3, "mode": "ahead", "tokens": tokens, "elapsed_ms": elapsed_ms, **more}


def at(now: float, *texts: dict[str, Any], waiting: int = 0) -> DaemonLook:
    return DaemonLook(now, STATUS, texts, waiting)


def test_paces_are_of_the_time_between_two_looks() -> None:
    before, now = at(10.0, text("a", 10)), at(12.0, text("a", 50, 5000.0), text("b", 9, 3000.0))
    assert paces(now, before) == {"a": 20.0, "b": 3.0}
    assert paces(now, None) == {"a": 10.0, "b": 3.0}
    assert [each["tokens_per_s"] for each in as_json(now, before)["texts"]] == [20.0, 3.0]


def test_a_line_a_text_the_fastest_first() -> None:
    one = text("slow", 10, client="chat-1", accepted=5, proposed=20, acceptance_length=2.5, rtt_p50_ms=43.21)
    titles, first, second = screen(at(0.0, one, text("fast", 70)))[-3:]
    assert titles.split()[:5] == ["ID", "CLIENT", "MODE", "AGE", "PROMPT"]
    assert first.split() == ["fast", "-", "ahead", "1s", "3", "70", "70.0", "-", "0%", "-", "-", "-"]
    assert second.split() == [
        "slow", "chat-1", "ahead", "1s", "3", "10", "10.0", "2.50", "50%", "25%", "43.2", "-",
    ]  # fmt: skip


def test_the_head_has_a_line_for_each_thing() -> None:
    mode, near, far, draft, texts, *_ = screen(at(0.0, waiting=2))
    assert mode == "mode: ahead"
    assert near == "verifier a:1: ready for 1m05s, tiny, RTT 4.5 ms, 2 of 64 sessions taken"
    assert far == "verifier b:1: unreachable, nobody listens"
    assert draft == "draft: tiny, 0 of 8 seats taken"
    assert texts == "texts: 0 under way, 2 waiting"


def test_what_is_over_or_for_programs_is_not_said() -> None:
    near = {**STATUS["verifiers"][0], "last_error": "cannot be reached"}
    lines = screen(
        DaemonLook(0.0, {"started_at": 1795400992.9, "verifiers": [near], "else": {"a": 1, "b": None}}, (), 0)
    )
    assert "1795400992" not in "".join(lines)
    assert "cannot be reached" not in "".join(lines)
    assert "else: a 1" in lines


def test_another_version_is_named() -> None:
    def answer(request: Handler) -> None:
        request.reply(200, b'{"else": 1}', Content_Type="application/json")

    with serving(answer) as address, wording.raises(PeerError):
        look(LocalClient(address), 0.0)
