"""Generated files are fresh, and dashboards can be laid out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.tools import generate
from lab.tools.generate import ROOT, known_metrics

DASHBOARDS = ROOT / "deploy" / "kubernetes" / "components" / "monitoring" / "dashboards"


@pytest.mark.parametrize("path", generate.files(), ids=lambda path: path.name)
def test_a_generated_file_is_fresh(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == generate.files()[path], "stale: run `make generate`"


@pytest.mark.parametrize("path", sorted(DASHBOARDS.iterdir()), ids=lambda path: path.name)
def test_a_dashboard_can_be_laid_out(path: Path) -> None:
    panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    covered = set[tuple[int, int]]()
    for place in (panel["gridPos"] for panel in panels):
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24, "the width of Grafana's grid"
        assert not cells & covered
        covered |= cells


def test_the_names_of_edges_metrics_are_found() -> None:
    """They are read from the source of their page; a change of its form would find none."""
    assert {"forerun_edge_tokens_total", "forerun_edge_texts_running"} <= known_metrics()
