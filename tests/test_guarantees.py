"""The page of guarantees: every promise names tests, and they are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guarantees.md"


def promises() -> list[tuple[str, list[str]]]:
    """Each line of the tables: what is promised, and the tests in its last column."""
    rows = [line.strip("|\n").split("|") for line in PAGE.read_text("utf-8").splitlines() if line[:2] == "| "]
    lines = [row for row in rows if row[0].strip() not in ("promised", "") and len(row) == 3]
    return [(row[0].strip(), re.findall(r"`(tests/[^`]+)`", row[2])) for row in lines]


@pytest.mark.parametrize(("promise", "tests"), promises(), ids=lambda value: None)
def test_every_promise_is_shown_by_tests_that_are_there(promise: str, tests: list[str]) -> None:
    assert tests, promise
    for name in tests:
        text = (ROOT / name).read_text("utf-8")
        assert re.search(r"^(async )?def test_", text, re.MULTILINE), name


def test_there_are_promises_and_what_is_not_promised() -> None:
    assert len(promises()) > 20
    assert PAGE.read_text("utf-8").split("## What is not promised")[1].count("\n- ") > 7
