"""The benchmark of being seen measures what it says, and prints it."""

from __future__ import annotations

import json

import pytest

from benchmarks.telemetry import main, measure


def test_every_cost_is_measured() -> None:
    cost = measure(num_sessions=2, repeats=3)
    assert cost.sessions == 2
    assert min(cost.step, cost.seen, cost.look, cost.page) > 0
    assert cost.share == cost.seen / cost.step


def test_a_table_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sessions", "1", "3", "--repeats", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["1", "3"]
    assert main(["--sessions", "1", "3", "--repeats", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["sessions"] for row in rows] == [1, 3]
    assert set(rows[0]) == {"sessions", "step", "seen", "share", "look", "page"}
