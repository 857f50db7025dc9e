"""Alerts, dashboards and the autoscaler ask for what verifiers and edges really export: each query is held
against the pages of live ones that have something to tell."""

from __future__ import annotations

import json
import re
import urllib.request
from asyncio import to_thread
from collections.abc import Iterator

import pytest
import yaml

from cloud_verifier.core.limits import SchedulerConfig
from common.sampling import SamplingParams
from lab.tools.generate import ROOT

COMPONENTS = ROOT / "deploy" / "kubernetes" / "components"

TARGETS_OWN = {"namespace", "pod", "instance", "job", "le"}
"""Labels that Prometheus gives a target, and a histogram its buckets."""

EDGES = "forerun_edge_"
SELECTOR = re.compile(r"\b((?:forerun_|vllm:|process_)[a-z_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')
GROUPED = re.compile(r"\b(?:by|without|on|ignoring) \(([^)]*)\)")

Series = dict[str, list[dict[str, str]]]
"""Metric -> the labels of each of its series."""


def queries() -> Iterator[tuple[str, str]]:
    """All there are, and who asks."""
    rules = yaml.safe_load((COMPONENTS / "monitoring" / "alerts.yaml").read_text(encoding="utf-8"))
    for alert in (rule for group in rules["spec"]["groups"] for rule in group["rules"]):
        yield alert["alert"], alert["expr"]
    for path in (COMPONENTS / "monitoring" / "dashboards").iterdir():
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                yield f"{dashboard['title']}: {panel['title']}", target["expr"]
    (scaler,) = yaml.safe_load_all((COMPONENTS / "keda" / "scaledobject.yaml").read_text(encoding="utf-8"))
    for trigger in scaler["spec"]["triggers"]:
        yield trigger["name"], trigger["metadata"]["query"]


def complaints(query: str, live: Series) -> Iterator[str]:
    """What a query asks for that nobody exports."""
    labels = set(TARGETS_OWN)
    for name, matchers in SELECTOR.findall(query):
        if name not in live:
            yield f"there is no {name}"
            continue
        labels |= {label for series in live[name] for label in series}
        for label, operator, value in MATCHER.findall(matchers):
            values = {series[label] for series in live[name] if label in series}
            if label in TARGETS_OWN:
                continue
            wanted = value.split("|") if operator in ("=~", "!~") else [value]
            if missing := set(wanted) - values:
                yield f"{name} has no {label} {sorted(missing)}, only {sorted(values)}"
    for grouped in GROUPED.findall(query):
        if strange := {each.strip() for each in grouped.split(",") if each.strip()} - labels:
            yield f"nothing in {query} has the labels {sorted(strange)}"


def series_of(page: str) -> Series:
    """As Prometheus reads it."""
    from prometheus_client.parser import text_string_to_metric_families

    series: Series = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            series.setdefault(sample.name, []).append(sample.labels)
    return series


async def verifiers_page() -> str:
    """Of one that has served a text, as Prometheus fetches it."""
    from cloud_verifier.server.serving import watched
    from tests.cloud_verifier.configured import configured
    from tests.support.tiny import complete, running

    operations = configured("--http", "127.0.0.1:0").operations
    async with running(SchedulerConfig()) as system, watched(operations, system.worker) as listening:
        await complete(system.address, SamplingParams(max_tokens=20, ignore_eos=True))
        answer = await to_thread(urllib.request.urlopen, f"http://{listening['http']}/metrics")
        page: bytes = answer.read()
        return page.decode()


async def edges_page() -> str:
    from tests.edge_client.api.world import world

    async with world() as daemon:
        await daemon.chat(max_tokens=5, ignore_eos=True)
        return str((await daemon.client.get("/metrics")).text)


@pytest.mark.grpc
async def test_queries_ask_for_metrics_that_verifiers_export() -> None:
    live = series_of(await verifiers_page())
    asked = [(who, query) for who, query in queries() if EDGES not in query and SELECTOR.search(query)]
    assert asked
    assert {who: list(complaints(query, live)) for who, query in asked if list(complaints(query, live))} == {}


@pytest.mark.grpc
@pytest.mark.api
async def test_queries_ask_for_metrics_that_edges_export() -> None:
    live = series_of(await edges_page())
    live["forerun_edge_texts_by_mode"] = [{"mode": "split"}]  # none is being written any more
    asked = [(who, query) for who, query in queries() if EDGES in query]
    assert asked
    assert {who: list(complaints(query, live)) for who, query in asked if list(complaints(query, live))} == {}
