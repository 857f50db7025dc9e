"""A dashboard as Grafana imports it."""

from __future__ import annotations

import json
from typing import Any

from tools.dashboards.model import COLUMNS, Dashboard, Panel

HEIGHT = 8  # of a panel, in the grid's rows
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def as_grafana(dashboard: Dashboard) -> dict[str, Any]:
    """What Grafana imports."""
    panels: list[dict[str, Any]] = []
    top = 0
    for heading, row in dashboard.rows.items():
        panels.append(_heading(heading, len(panels) + 1, top))
        placed, top = _placed(row, len(panels) + 1, top + 1)
        panels += placed
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["forerun"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), *(_choice(*each) for each in dashboard.choices.items())]},
        "panels": panels,
    }


def _placed(row: tuple[Panel, ...], first: int, top: int) -> tuple[list[dict[str, Any]], int]:
    """A row's panels, and where the next row begins."""
    found, left = [], 0
    for number, panel in enumerate(row, first):
        if left + panel.width > COLUMNS:
            left, top = 0, top + _height(panel)
        found.append(_panel(panel, number, left, top))
        left += panel.width
    return found, top + _height(row[-1])


def _height(panel: Panel) -> int:
    """One number needs less room than lines."""
    return HEIGHT // 2 if _is_number(panel) else HEIGHT


def _is_number(panel: Panel) -> bool:
    return panel.width < 8


def _panel(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    kind = "stat" if _is_number(panel) else "timeseries"
    return {
        "id": number,
        "type": kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": _height(panel)},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": legend or panel.title,
            }
            for index, (legend, query) in enumerate(panel.lines.items())
        ],
    }


def _heading(title: str, number: int, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _choice(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # whenever the time range changes: pods come and go
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def text_of(dashboard: Dashboard) -> str:
    """The file as it should be."""
    return json.dumps(as_grafana(dashboard), indent=1) + "\n"
