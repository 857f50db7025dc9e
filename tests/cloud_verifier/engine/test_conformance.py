"""Every family is what lab/docs/families.md says of it, by the probe. Cheap windows are real ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloud_verifier.engine.conformance_probe import LESS_EXACT
from tests.cloud_verifier.engine.conformance import (
    NUM_FIXED,
    examine,
    random_target,
    row_of,
    rows_of,
)
from tests.cloud_verifier.engine.families import REFUSED_FAMILIES, SERVED_FAMILIES, Family

pytestmark = pytest.mark.torch

DOCUMENT = Path(__file__).parents[3] / "lab" / "docs" / "families.md"

DEAR = {"Gemma 2", "OLMo 3", "StarCoder 2", "Cohere Command R7B", "EXAONE 4"}
"""Windows of 4,096 positions, whose plain attention takes seconds; that of Mistral is probed as it is."""

FLOAT16 = {"Llama 3", "Gemma 2", "gpt-oss", "DeepSeek V2"}
"""Probed in float16, too; `conformance` probes all."""


def families() -> list[Family]:
    return [*SERVED_FAMILIES, *REFUSED_FAMILIES]


def names() -> list[str]:
    """By name, so that the file can be collected without torch."""
    return [family.name for family in families()]


def family_named(name: str) -> Family:
    (family,) = (family for family in families() if family.name == name)
    return family


def documented() -> dict[str, tuple[str, ...]]:
    return {row[0]: row for row in rows_of(DOCUMENT.read_text(encoding="utf-8"))}


def without_numbers(cells: tuple[str, ...]) -> tuple[str, ...]:
    """DiffLlama's reason holds what was measured."""
    return tuple(re.sub(r"\d[\d.e-]*", "#", cell) for cell in cells)


@pytest.mark.parametrize("name", names())
def test_a_family_is_what_the_page_says(name: str) -> None:
    precisions = ["float32", "bfloat16", *(["float16"] if name in FLOAT16 else [])]
    finding = examine(family_named(name), precisions, real_windows=name not in DEAR)
    row = documented()[name]
    if not finding.served:
        assert without_numbers(row_of(finding)) == without_numbers(row)
        return
    assert row_of(finding)[:NUM_FIXED] == row[:NUM_FIXED]
    for precision, report in finding.reports.items():
        assert report.num_rows > 60
        assert report.worst < 1e-4
        assert report.attention < 1.0
        if precision != "float32":
            assert report.exactness is not None
            assert 1 / LESS_EXACT < report.exactness < LESS_EXACT


def test_the_share_of_experts_is_found_where_there_are_experts() -> None:
    for family in SERVED_FAMILIES:
        share = random_target(family.name, family.model_type, family.settings, dtype="float32").expert_share
        assert (0.0 < share < 1.0) == ("experts" in family.trait), family.name


def test_the_page_lists_every_family_and_no_other() -> None:
    assert list(documented()) == names()
    assert len(SERVED_FAMILIES) > 20
