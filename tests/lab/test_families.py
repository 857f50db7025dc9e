"""Every family of lab/docs/families.md is what the page says of it, by the probe."""

import re

import pytest

from cloud_verifier.engine.conformance_probe import LESS_EXACT
from tests.cloud_verifier.engine.conformance import (
    DOCUMENT,
    NUM_FIXED,
    examine,
    random_target,
    row_of,
    rows_of,
)
from tests.cloud_verifier.engine.families import REFUSED_FAMILIES, SERVED_FAMILIES

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

FAMILIES = {family.name: family for family in (*SERVED_FAMILIES, *REFUSED_FAMILIES)}
DOCUMENTED = {row[0]: row for row in rows_of(DOCUMENT.read_text(encoding="utf-8"))}

HALF = {"Llama 3", "Gemma 2", "gpt-oss", "DeepSeek V2", "Qwen 3.5"}
"""Probed in half precision, too; `conformance` probes all so."""


def without_numbers(cells: tuple[str, ...]) -> tuple[str, ...]:
    """DiffLlama's reason holds what was measured."""
    return tuple(re.sub(r"\d[\d.e-]*", "#", cell) for cell in cells)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_what_the_page_says(name: str) -> None:
    precisions = ["float32", *(["bfloat16", "float16"] if name in HALF else [])]
    finding = examine(FAMILIES[name], precisions)
    if not finding.served:
        assert without_numbers(row_of(finding)) == without_numbers(DOCUMENTED[name])
        return
    assert row_of(finding)[:NUM_FIXED] == DOCUMENTED[name][:NUM_FIXED]
    for precision, report in finding.reports.items():
        assert report.num_rows > 60
        assert report.worst < 1e-4
        assert report.attention < 1.0
        assert (report.exactness is None) == (precision == "float32")
        assert report.exactness is None or 1 / LESS_EXACT < report.exactness < LESS_EXACT


def test_the_share_of_experts_is_known_where_there_are_experts() -> None:
    for family in SERVED_FAMILIES:
        share = random_target(family.name, family.model_type, family.settings, dtype="float32").expert_share
        assert (0.0 < share < 1.0) == ("experts" in family.trait), family.name


def test_the_page_lists_every_family_and_no_other() -> None:
    assert [*DOCUMENTED] == [*FAMILIES]
