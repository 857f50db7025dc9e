"""Writes the Grafana dashboards of deploy/ from the questions that they answer: `python -m tools.dashboards`.

A test compares the two, and asks of every query whether its metrics exist.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "deploy/kubernetes/components/monitoring/dashboards"
COLUMNS = 24  # of Grafana's grid
HEIGHT = 8  # of a panel, in the grid's rows
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
PODS = '{namespace=~"$namespace",pod=~"$pod"}'
MOST = f"sum by (pod) (forerun_max_sessions{PODS})"
EDGES = '{instance=~"$instance"}'

REACHED = f"max by (instance) (forerun_edge_verifier_reachable{EDGES})"


@dataclass(frozen=True, slots=True)
class Panel:
    """One question, and the lines that answer it: legend -> PromQL."""

    title: str
    unit: str  # as Grafana calls it
    lines: dict[str, str]
    about: str = ""
    width: int = 8  # of `COLUMNS`


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page: rows of panels under headings, and what its top lets choose: name -> query of its values."""

    uid: str
    title: str
    about: str
    choices: dict[str, str]
    rows: dict[str, tuple[Panel, ...]]


def _rate(metric: str, by: str = "pod", more: str = "") -> str:
    where = PODS.replace("}", f",{more}}}") if more else PODS
    return f"sum by ({by}) (rate({metric}{where}[$__rate_interval]))"


def _percentiles(metric: str, where: str = PODS) -> dict[str, str]:
    summed = f"sum by (le) (rate({metric}_bucket{where}[$__rate_interval]))"
    return {f"p{share:g}": f"histogram_quantile({share / 100:g}, {summed})" for share in (50, 95, 99)}


def _edge(metric: str) -> str:
    return f"sum by (instance) (rate({metric}{EDGES}[$__rate_interval]))"


VERIFIER = Dashboard(
    "forerun-verifier",
    "Forerun: verifiers",
    "How the verifiers of a namespace do: who waits, who is turned away, and what steps cost.",
    {
        "namespace": "label_values(forerun_verifier_info, namespace)",
        "pod": 'label_values(forerun_verifier_info{namespace=~"$namespace"}, pod)',
    },
    {
        "At a glance": (
            Panel(
                "Verifiers that answer", "short", {"": f"count(forerun_start_time_seconds{PODS})"}, width=4
            ),
            Panel("Sessions", "short", {"": f"sum(forerun_sessions{PODS})"}, width=4),
            Panel(
                "Tokens a second",
                "short",
                {"": f"sum(rate(vllm:generation_tokens_total{PODS}[5m]))"},
                width=4,
            ),
            Panel(
                "Refused for want of room",
                "short",
                {"": f'sum(increase(forerun_refusals_total{PODS[:-1]},code="RESOURCE_EXHAUSTED"}}[1h]))'},
                "In the last hour.",
                4,
            ),
            Panel("Draining", "short", {"": f"sum(forerun_draining{PODS})"}, width=4),
            Panel(
                "Oldest start",
                "dateTimeFromNow",
                {"": f"min(forerun_start_time_seconds{PODS}) * 1000"},
                width=4,
            ),
        ),
        "Do users wait?": (
            Panel("First token, without the network", "s", _percentiles("vllm:time_to_first_token_seconds")),
            Panel("Between two commits", "s", _percentiles("vllm:inter_token_latency_seconds")),
            Panel(
                "Queue: ready until the step begins",
                "s",
                _percentiles("forerun_queue_time_seconds"),
                "What the autoscaler follows.",
            ),
            Panel(
                "From a resumed Open to its first commit", "s", _percentiles("forerun_resume_time_seconds")
            ),
            Panel("Refusals", "reqps", {"{{code}}": _rate("forerun_refusals_total", "code")}),
            Panel("Sessions' ends", "reqps", {"{{reason}}": _rate("forerun_sessions_ended_total", "reason")}),
        ),
        "Is there room?": (
            Panel(
                "Sessions by what they do", "short", {"{{mode}}": f"sum by (mode) (forerun_sessions{PODS})"}
            ),
            Panel(
                "Share of the sessions that may be",
                "percentunit",
                {"{{pod}}": f"sum by (pod) (forerun_sessions{PODS}) / {MOST}"},
            ),
            Panel("KV slots", "short", {"{{state}}": f"sum by (state) (forerun_kv_slots{PODS})"}),
            Panel("KV slots that can be promised", "short", {"{{pod}}": f"forerun_kv_slots_available{PODS}"}),
            Panel("Preemptions", "ops", {"{{pod}}": _rate("vllm:num_preemptions_total")}),
            Panel(
                "Prefix cache: share that was known",
                "percentunit",
                {"": f"{_rate('vllm:prefix_cache_hits_total')} / {_rate('vllm:prefix_cache_queries_total')}"},
            ),
        ),
        "What do steps cost?": (
            Panel("Step time", "s", _percentiles("forerun_step_time_seconds")),
            Panel("Step time over what was expected", "none", _percentiles("forerun_step_time_ratio")),
            Panel("Steps", "ops", {"{{pod}}": _rate("forerun_steps_total")}),
            Panel("Rows by kind", "ops", {"{{kind}}": _rate("forerun_rows_total", "kind")}),
            Panel("Steps that failed", "ops", {"{{pod}}": _rate("forerun_failed_steps_total")}),
            Panel("Smaller steps for want of memory", "short", {"{{pod}}": f"forerun_memory_short{PODS}"}),
        ),
        "Do drafts help?": (
            Panel(
                "Tokens a step and session",
                "none",
                {
                    "{{pod}}": f"1 + {_rate('vllm:spec_decode_num_accepted_tokens_total')}"
                    f" / {_rate('vllm:spec_decode_num_drafts_total')}"
                },
            ),
            Panel(
                "Tips without a draft",
                "percentunit",
                {
                    "{{pod}}": f"{_rate('forerun_bare_tips_total')} / "
                    + _rate("forerun_rows_total", more='kind="tip"')
                },
            ),
            Panel(
                "Draft rows in vain",
                "percentunit",
                {
                    "{{pod}}": f"{_rate('forerun_wasted_rows_total')} / "
                    + _rate("forerun_rows_total", more='kind="draft"')
                },
            ),
            Panel("Drafts kept out for others", "percentunit", {"{{pod}}": f"forerun_credit_pressure{PODS}"}),
            Panel("Nodes above the limit", "ops", {"{{pod}}": _rate("forerun_dropped_nodes_total")}),
            Panel("Near ties", "ops", {"{{pod}}": _rate("forerun_near_ties_total")}),
        ),
        "The wire and the process": (
            Panel(
                "Bytes from edges", "Bps", {"{{message}}": _rate("forerun_received_bytes_total", "message")}
            ),
            Panel("Bytes to edges", "Bps", {"{{message}}": _rate("forerun_sent_bytes_total", "message")}),
            Panel("Streams", "short", {"{{pod}}": f"forerun_open_streams{PODS}"}),
            Panel("Processor", "short", {"{{pod}}": _rate("process_cpu_seconds_total")}, "Cores in use."),
            Panel("Memory of the process", "bytes", {"{{pod}}": f"process_resident_memory_bytes{PODS}"}),
            Panel("Tenants with a session", "short", {"{{pod}}": f"forerun_tenants{PODS}"}),
        ),
    },
)

FLEET = Dashboard(
    "forerun-fleet",
    "Forerun: edges",
    "How devices do whose metrics Prometheus reads: what they write, with whose tokens, where time goes.",
    {"instance": "label_values(forerun_edge_texts_running, instance)"},
    {
        "At a glance": (
            Panel("Edges", "short", {"": f"count(forerun_edge_texts_running{EDGES})"}, width=6),
            Panel("Texts being written", "short", {"": f"sum(forerun_edge_texts_running{EDGES})"}, width=6),
            Panel(
                "Tokens a second", "short", {"": f"sum(rate(forerun_edge_tokens_total{EDGES}[5m]))"}, width=6
            ),
            Panel(
                "Edges without a verifier",
                "short",
                {"": f"count(({REACHED}) == 0) or vector(0)"},
                width=6,
            ),
        ),
        "Texts": (
            Panel(
                "Texts by mode", "short", {"{{mode}}": f"sum by (mode) (forerun_edge_texts_by_mode{EDGES})"}
            ),
            Panel(
                "Texts' ends",
                "reqps",
                {"{{ended}}": f"sum by (ended) (rate(forerun_edge_texts_total{EDGES}[$__rate_interval]))"},
            ),
            Panel(
                "Waiting in their own queue", "short", {"{{instance}}": f"forerun_edge_texts_waiting{EDGES}"}
            ),
            Panel(
                "Refused by their own queue",
                "reqps",
                {"{{instance}}": _edge("forerun_edge_texts_refused_total")},
            ),
            Panel(
                "Streams after a text's first", "ops", {"{{instance}}": _edge("forerun_edge_resumes_total")}
            ),
            Panel(
                "Verifiers that answer",
                "short",
                {"{{address}}": f"sum by (address) (forerun_edge_verifier_reachable{EDGES})"},
                "By their address: how many edges reach it.",
            ),
        ),
        "Drafting": (
            Panel(
                "Tokens a target step",
                "none",
                {
                    "{{instance}}": f"{_edge('forerun_edge_tokens_total')} / "
                    + _edge("forerun_edge_spec_decode_num_drafts_total")
                },
            ),
            Panel(
                "Of the tokens: proposed in time",
                "percentunit",
                {
                    "{{instance}}": f"{_edge('forerun_edge_spec_decode_num_accepted_tokens_total')} / "
                    + _edge("forerun_edge_tokens_total")
                },
            ),
            Panel(
                "Of what was proposed: in vain",
                "percentunit",
                {
                    "{{instance}}": f"{_edge('forerun_edge_wasted_tokens_total')} / "
                    + _edge("forerun_edge_spec_decode_num_draft_tokens_total")
                },
            ),
            Panel(
                "Of the tokens: the draft model's alone",
                "percentunit",
                {
                    "{{instance}}": f"{_edge('forerun_edge_device_tokens_total')} / "
                    + _edge("forerun_edge_tokens_total")
                },
                "Without a verifier. These are not the target's.",
            ),
            Panel("Bytes up", "Bps", {"{{instance}}": _edge("forerun_edge_bytes_up_total")}),
            Panel("Bytes down", "Bps", {"{{instance}}": _edge("forerun_edge_bytes_down_total")}),
        ),
        "Where texts' time goes (seconds of it, each second)": (
            Panel("In all", "none", {"{{instance}}": _edge("forerun_edge_text_seconds_total")}),
            Panel(
                "Network and waiting", "none", {"{{instance}}": _edge("forerun_edge_network_seconds_total")}
            ),
            Panel(
                "Target steps", "none", {"{{instance}}": _edge("forerun_edge_verifier_step_seconds_total")}
            ),
            Panel(
                "Verifiers' queues",
                "none",
                {"{{instance}}": _edge("forerun_edge_verifier_queue_seconds_total")},
            ),
            Panel("Own queue", "none", {"{{instance}}": _edge("forerun_edge_wait_seconds_total")}),
            Panel(
                "Draft steps, beside the rest",
                "none",
                {"{{instance}}": _edge("forerun_edge_draft_seconds_total")},
            ),
        ),
    },
)

DASHBOARDS = {"verifier.json": VERIFIER, "fleet.json": FLEET}
"""By the file's name."""


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


def main() -> int:
    """Rewrite the files."""
    for name, dashboard in DASHBOARDS.items():
        (FOLDER / name).write_text(text_of(dashboard), encoding="utf-8")
        print(FOLDER / name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
