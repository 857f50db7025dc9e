"""The tables of docs/models.md: what is replaced, what stays, what a row says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from common.errors import UserError

if TYPE_CHECKING:
    from cloud_verifier.engine.conformance import Finding

pytestmark = pytest.mark.torch


def findings() -> list[Finding]:
    import torch

    from cloud_verifier.engine.attention import AttentionTerms
    from cloud_verifier.engine.attention_check import LayerShape
    from cloud_verifier.engine.conformance import Finding
    from cloud_verifier.engine.families import Family
    from cloud_verifier.engine.probe import ProbeReport

    def shape(window: int | None) -> LayerShape:
        return LayerShape(torch.float32, 4, 2, 8, 8, AttentionTerms(1.0, window, 30.0))

    shapes = (shape(4096), shape(None))
    reports = {
        "float32": ProbeReport(77, 1.26e-6, 1e-3, 0.001, None, shapes, 256, 0.1),
        "bfloat16": ProbeReport(77, 9e-7, 1e-3, 0.4, 1.023, shapes, 128, 0.1),
    }
    served = Finding(Family("Big", "big", "it slides"), reports)
    refused = Finding(Family("Odd", "odd", "no attention"), {}, "it has layers of kind odd")
    return [served, refused]


def test_a_row_tells_the_verdict_and_what_was_measured() -> None:
    from forerun.models_table import refused_row, served_row

    served, refused = findings()
    kinds = "full, softcap; window 4,096, softcap"
    assert served_row(served) == ("Big", "`big`", "it slides", kinds, "1e-06", "1.02", "")
    assert refused_row(refused) == ("Odd", "`odd`", "no attention", "it has layers of kind odd")


def test_what_is_written_is_read_again() -> None:
    from forerun.models_table import refused_row, rows_of, served_row, tables

    served, refused = findings()
    text = tables([served, refused])
    assert rows_of(text) == [served_row(served), refused_row(refused)]
    assert "Served, 1 families:" in text
    assert "|---|---|---|---|" in text


def test_only_what_stands_between_the_marks_is_replaced(tmp_path: Path) -> None:
    from forerun.models_table import BEGIN, END, tables, write_tables

    page = tmp_path / "models.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    for _ in range(2):
        write_tables(page, findings())
        assert page.read_text(encoding="utf-8") == f"before\n{tables(findings())}\nafter\n"


def test_a_page_without_marks_or_that_is_not_there_is_told(tmp_path: Path) -> None:
    from forerun.models_table import write_tables

    page = tmp_path / "models.md"
    with pytest.raises(UserError, match="cannot be written"):
        write_tables(page, findings())
    page.write_text("no marks\n", encoding="utf-8")
    with pytest.raises(UserError, match="between which the tables could stand"):
        write_tables(page, findings())
    assert page.read_text(encoding="utf-8") == "no marks\n"
