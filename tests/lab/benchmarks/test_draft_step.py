"""`lab.benchmarks.draft_step` times every shape, width and sampling."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.llama


def test_every_shape_is_timed_beside_its_decode(capsys: pytest.CaptureFixture[str]) -> None:
    from lab.benchmarks.draft_step import SHAPES, WIDTHS, main
    from lab.benchmarks.plans import SAMPLINGS

    assert main(["--context", "16", "--steps", "1", "--threads", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["shape"], row["width"]) for row in rows} == {(s, w) for s in SHAPES for w in WIDTHS}
    assert {row["sampling"] for row in rows} == set(SAMPLINGS)
    assert all(row["ratio_inside"] > 0 < row["ratio_bare"] for row in rows)
