"""`lab.benchmarks.wire_size` prints a row a message."""

from __future__ import annotations

import json

import pytest

from lab.benchmarks.wire_size import main, measure


def test_the_report_has_every_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["message"] for row in rows] == [row.message for row in measure()]
    assert all(row["framed"] == row["bytes"] + 14 for row in rows)


def test_the_table_keeps_the_law_and_counts_the_framing() -> None:
    rows = {row.message: row for row in measure()}
    for length, limit in ((1, 12), (4, 8), (8, 8), (16, 8)):
        row = rows[f"Propose, chain of {length}"]
        assert row.tokens == length
        assert row.bytes / length <= limit
        assert row.framed == row.bytes + 14
