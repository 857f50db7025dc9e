"""What stands in two places is the same in both, and every query names a metric that exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cloud_verifier import settings as verifier
from cloud_verifier.telemetry.metrics import METRICS
from edge_client import settings as edge
from lab.tools import generate
from lab.tools.generate import ROOT, known_metrics

DASHBOARDS = ROOT / "deploy" / "kubernetes" / "components" / "monitoring" / "dashboards"


@pytest.mark.parametrize("path", generate.files(), ids=lambda path: path.name)
def test_a_generated_file_is_fresh(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == generate.files()[path], "stale: run `make generate`"


def test_the_tables_have_every_metric_and_every_setting() -> None:
    operations = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert all(f"\n| `{metric.exposed}" in operations for metric in METRICS)
    for page, schema in (("edge_config.md", edge.SCHEMA), ("serving.md", verifier.SCHEMA)):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert all(f"\n| `{entry.key}` |" in text for entry in schema.entries)


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


def test_every_query_of_the_page_asks_for_metrics_that_are_there() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    engine = {
        "forerun_engine",
        *(f"forerun_engine_{name}_total" for name in ("graph_steps", "eager_steps", "eager_reasons")),
    }
    named = set(re.findall(r"(?:forerun|vllm)[_:][a-z_]+[a-z]", text))
    assert named <= known_metrics() | engine
