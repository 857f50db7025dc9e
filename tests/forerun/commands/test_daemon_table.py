"""The table of live texts: paces, and a daemon of another version."""

import re
from typing import Any

from common.errors import PeerError
from edge_client.process.client import LocalClient
from forerun.commands.daemon_table import DaemonLook, as_json, look, paces, screen, status_lines
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


STATUS: dict[str, Any] = {
    "mode": "ahead",
    "texts": {"running": 9, "waiting": 9, "refused": 0, "ended": {"stop": 2, "length": 1}},
    "totals": {
        "tokens": 58.0,
        "accepted": 29.0,
        "device_tokens": 0.0,
        "proposed": 99.0,
        "target_steps": 31.0,
        "elapsed_ms": 35044.019,
        "bytes_up": 12345.0,
        "bytes_down": 678.9,
        "resumes": 0.0,
    },
    "fleet": {"share_of_time": 0.123456, "age_s": 1234.5678},
}


def test_figures_are_rounded_and_have_units_for_people() -> None:
    lines = screen(DaemonLook(0.0, STATUS, (text("a", 10),), 4))
    (written,) = (line for line in lines if "58 tokens" in line)
    assert "in 35.0 s" in written
    assert "50%" in written
    assert {"12.3", "0.7"} <= set(written.split())
    assert not [line for line in lines if re.search(r"\d\.\d{4}|_", line)]
    (counts,) = (line for line in lines if "under way" in line)
    assert re.findall(r"\d+", counts) == ["1", "4", "3", "2", "1"], "those of this look, and the ended ones"


def test_a_daemon_that_wrote_nothing_divides_nothing() -> None:
    assert len(status_lines({"totals": dict.fromkeys(STATUS["totals"], 0.0)})) == 1


def test_another_version_is_named() -> None:
    def answer(request: Handler) -> None:
        request.reply(200, b'{"else": 1}', Content_Type="application/json")

    with serving(answer) as address, wording.raises(PeerError):
        look(LocalClient(address), 0.0)
