"""The dashboards are what their definitions say, and Grafana can lay them out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tools.dashboards import DASHBOARDS, FOLDER
from tools.dashboards.grafana import as_grafana, text_of
from tools.dashboards.model import COLUMNS, Dashboard
from tools.deploy_rules.observing import known_metrics, unknown_metrics


@pytest.mark.parametrize("name", DASHBOARDS)
def test_files_are_fresh(name: str) -> None:
    found = (FOLDER / name).read_text(encoding="utf-8")
    assert found == text_of(DASHBOARDS[name]), "stale: run `python -m tools.dashboards`"


def test_there_are_no_other_files() -> None:
    assert {path.name for path in FOLDER.iterdir()} == DASHBOARDS.keys()


def panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text_of(dashboard))["panels"]
    return found


@pytest.mark.parametrize("name", DASHBOARDS)
def test_no_panel_covers_another(name: str) -> None:
    covered: set[tuple[int, int]] = set()
    for panel in panels(DASHBOARDS[name]):
        place = panel["gridPos"]
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert place["x"] + place["w"] <= COLUMNS
        assert not cells & covered, panel["title"]
        covered |= cells


@pytest.mark.parametrize("name", DASHBOARDS)
def test_ids_are_unique(name: str) -> None:
    ids = [panel["id"] for panel in panels(DASHBOARDS[name])]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_asks_and_says_in_what_unit(name: str) -> None:
    asking = [panel for panel in panels(DASHBOARDS[name]) if panel["type"] != "row"]
    assert len(asking) >= 12
    for panel in asking:
        assert panel["targets"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for target in panel["targets"]:
            told_apart = re.match(r"(1 \+ )?sum by \((?!le)(\w+)\)", target["expr"])
            assert not told_apart or f"{{{{{told_apart[2]}}}}}" == target["legendFormat"], panel["title"]
        assert all(target["expr"].count("(") == target["expr"].count(")") for target in panel["targets"])


@pytest.mark.parametrize("name", DASHBOARDS)
def test_what_can_be_chosen_is_used(name: str) -> None:
    dashboard = DASHBOARDS[name]
    queries = " ".join(target["expr"] for panel in panels(dashboard) for target in panel.get("targets", []))
    for choice in dashboard.choices:
        assert f"${choice}" in queries, choice
    assert as_grafana(dashboard)["templating"]["list"][0]["type"] == "datasource"


def test_a_metric_that_nobody_has_is_noticed() -> None:
    assert unknown_metrics("rate(forerun_queue_length[5m])") == ["forerun_queue_length"]
    assert unknown_metrics('rate(forerun_steps_total{pod="forerun-verifier-1"}[5m])') == []


def test_the_names_of_edges_are_found() -> None:
    """They are read from the source of their page; a change of its form would find none."""
    assert {"forerun_edge_tokens_total", "forerun_edge_texts_running"} <= known_metrics()
    assert sum(name.startswith("forerun_edge_") for name in known_metrics()) >= 20
