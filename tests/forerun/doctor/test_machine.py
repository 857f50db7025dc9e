"""This machine's checks: packages, room, and a processor as llama.cpp describes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.doctor.finding import Finding, Level
from forerun.doctor.machine import check_disk, check_processor, check_python


@pytest.mark.llama
@pytest.mark.api
def test_this_interpreter_will_do() -> None:
    found = check_python()
    assert found.level is Level.OK
    assert "llama-cpp-python" in found.words


def test_room_is_measured_where_the_folder_will_be(tmp_path: Path) -> None:
    found = check_disk(tmp_path / "not" / "there" / "yet")
    assert f"GiB free at {tmp_path}" in found.words
    assert found.level in (Level.OK, Level.WARN)


@pytest.mark.parametrize(
    ("info", "level", "words"),
    [
        ("CPU : SSE3 = 1 | AVX2 = 1 | AMX_INT8 = 0 | ", Level.OK, "SSE3, AVX2"),
        ("CPU : AVX2 = 1 | AMX_INT8 = 1 | ", Level.WARN, "repacked weights stay off"),
        ("CPU : SSE3 = 1 | ", Level.WARN, "uses SSE3"),
        ("", Level.WARN, "no special instructions"),
    ],
)
def test_a_processor_is_judged_by_what_llama_cpp_uses(info: str, level: Level, words: str) -> None:
    found = check_processor(info)
    assert found.level is level
    assert words in found.words


def test_a_finding_is_a_line() -> None:
    assert Finding("a", Level.WARN, "b", "c").line == "warn  a: b -> c"
    assert Finding("a", Level.OK, "b").line == "ok    a: b"
