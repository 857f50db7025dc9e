"""Rules for what reads our metrics: monitors, alerts, dashboards, the autoscaler."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cloud_verifier.telemetry.collector import METRICS
from tools.deploy_rules.view import Object, Rule, View, title

ROOT = Path(__file__).resolve().parents[2]
EDGE_METRICS = ROOT / "edge_client" / "daemon" / "metrics.py"
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
NAMED = re.compile(r"\b(?:forerun_|vllm:|process_)[a-z_]+[a-z]")
LEAST_WINDOW = 300  # seconds, of the autoscaler's way down
ENOUGH_ALERTS = 12


@cache
def known_metrics() -> frozenset[str]:
    """Every series that a verifier or an edge has."""
    known = {metric.exposed for metric in METRICS} | PROCESS
    for metric in METRICS:
        if metric.kind == "histogram":
            known |= {f"{metric.exposed}_{part}" for part in ("bucket", "sum", "count")}
    return frozenset(known | edge_metrics())


def edge_metrics() -> set[str]:
    """Read from the page's source: its totals, and what it tells of now."""
    from edge_client.daemon.metrics import SECONDS, SUMS  # here: it imports prometheus_client

    known = {f"{name}_total" for name, _ in [*SUMS.values(), *SECONDS.values()]}
    text = EDGE_METRICS.read_text(encoding="utf-8")
    for kind, name in re.findall(r"(Counter|Gauge)MetricFamily\(\s*\"(forerun_edge_\w+)\"", text):
        known.add(f"{name}_total" if kind == "Counter" else name)
    return known


def unknown_metrics(query: str) -> list[str]:
    """Metrics of ours that a query names and nobody has."""
    return sorted(set(NAMED.findall(query)) - known_metrics())


def monitors_find_their_service(view: View) -> Iterator[str]:
    for monitor in view.of("ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        found = [each for each in view.of("Service") if wanted <= each["metadata"]["labels"].items()]
        ports = {port["name"] for each in found for port in each["spec"]["ports"]}
        if len(found) != 1 or {each["port"] for each in monitor["spec"]["endpoints"]} != ports:
            yield f"{title(monitor)} reads {[title(each) for each in found]} on {sorted(ports)}"


def monitors_look_here(view: View) -> Iterator[str]:
    for monitor in view.of("ServiceMonitor"):
        if monitor["spec"]["namespaceSelector"] != {"matchNames": [monitor["metadata"]["namespace"]]}:
            yield f"{title(monitor)} looks into other namespaces"


def monitors_have_bounds(view: View) -> Iterator[str]:
    for monitor in view.of("ServiceMonitor"):
        if not monitor["spec"].get("sampleLimit"):
            yield f"{title(monitor)} takes as many series as come"


def alerts(view: View) -> Iterator[Object]:
    for each in view.of("PrometheusRule"):
        for group in each["spec"]["groups"]:
            yield from group["rules"]


def alerts_ask_for_metrics_that_exist(view: View) -> Iterator[str]:
    for alert in alerts(view):
        for name in unknown_metrics(alert["expr"]):
            yield f"{alert['alert']} asks for {name}, which nobody has"


def alerts_ask_for_something(view: View) -> Iterator[str]:
    for alert in alerts(view):
        if not NAMED.search(alert["expr"]) and "up{" not in alert["expr"]:
            yield f"{alert['alert']} asks for no metric"


def alerts_say_what_to_do(view: View) -> Iterator[str]:
    for alert in alerts(view):
        notes = alert.get("annotations", {})
        if not notes.get("summary") or len(notes.get("description", "").split()) < 5:
            yield f"{alert['alert']} says too little"
        if alert.get("labels", {}).get("severity") not in ("page", "warn"):
            yield f"{alert['alert']} does not say how urgent it is"


def alerts_have_names_of_their_own(view: View) -> Iterator[str]:
    names = [alert["alert"] for alert in alerts(view)]
    if len(names) > len(set(names)):
        yield f"an alert stands twice in {sorted(names)}"
    for name in names:
        if not re.fullmatch(r"Forerun[A-Za-z]+", name):
            yield f"{name} may be somebody else's"


def alerts_are_enough(view: View) -> Iterator[str]:
    if view.of("PrometheusRule") and len(list(alerts(view))) < ENOUGH_ALERTS:
        yield f"there are only {len(list(alerts(view)))} alerts"


def dashboards(view: View) -> Iterator[Object]:
    for each in view.of("ConfigMap"):
        if each["metadata"].get("labels", {}).get("grafana_dashboard"):
            yield from (json.loads(text) for text in each["data"].values())


def dashboards_ask_for_metrics_that_exist(view: View) -> Iterator[str]:
    for dashboard in dashboards(view):
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
        chosen = [
            each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"
        ]
        for query in [*queries, *chosen]:
            for name in unknown_metrics(query) or ([] if NAMED.search(query) else ["nothing"]):
                yield f"{dashboard['title']} asks for {name}: {query}"


def dashboards_are_found(view: View) -> Iterator[str]:
    found = list(dashboards(view))
    if view.of("PrometheusRule") and len({each["uid"] for each in found}) < 2:
        yield f"there are {len(found)} dashboards"


def autoscalers_watch_waiting_and_sessions(view: View) -> Iterator[str]:
    """Never the processor: a verifier with one session is as busy as one with fifty."""
    for scaler in view.of("ScaledObject"):
        triggers = scaler["spec"]["triggers"]
        queries = " ".join(each["metadata"].get("query", "") for each in triggers)
        if {each["type"] for each in triggers} != {"prometheus"} or re.search(r"cpu|gpu_util", queries):
            yield f"{title(scaler)} watches {sorted(each['type'] for each in triggers)}"
        for name in ("forerun_queue_time_seconds_bucket", "forerun_sessions", "forerun_max_sessions"):
            if name not in queries:
                yield f"{title(scaler)} does not watch {name}"


def autoscalers_ask_for_metrics_that_exist(view: View) -> Iterator[str]:
    for scaler in view.of("ScaledObject"):
        for trigger in scaler["spec"]["triggers"]:
            for name in unknown_metrics(trigger["metadata"]["query"]):
                yield f"{title(scaler)} asks for {name}, which nobody has"


def autoscalers_go_down_slowly(view: View) -> Iterator[str]:
    for scaler in view.of("ScaledObject"):
        down = scaler["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
        one = [(each["type"], each["value"]) for each in down["policies"]] == [("Pods", 1)]
        if down["stabilizationWindowSeconds"] < LEAST_WINDOW or not one:
            yield f"{title(scaler)} sends verifiers away in a hurry"
        if scaler["spec"]["minReplicaCount"] < 2:
            yield f"{title(scaler)} leaves nobody to go to"


def autoscalers_do_not_take_silence_for_rest(view: View) -> Iterator[str]:
    """Where Prometheus is down or knows nobody, KEDA counts nothing as 0 and would go down to the least."""
    for scaler in view.of("ScaledObject"):
        told = [each["metadata"].get("ignoreNullValues") for each in scaler["spec"]["triggers"]]
        if "false" not in told:
            yield f"{title(scaler)} goes down when Prometheus knows nothing"


def autoscalers_have_a_target(view: View) -> Iterator[str]:
    for scaler in view.of("ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        if not view.has(target["kind"], target["name"]):
            yield f"{title(scaler)} scales {target['kind']}/{target['name']}, which is not here"


RULES: tuple[Rule, ...] = (
    monitors_find_their_service,
    monitors_look_here,
    monitors_have_bounds,
    alerts_ask_for_metrics_that_exist,
    alerts_ask_for_something,
    alerts_say_what_to_do,
    alerts_have_names_of_their_own,
    alerts_are_enough,
    dashboards_ask_for_metrics_that_exist,
    dashboards_are_found,
    autoscalers_watch_waiting_and_sessions,
    autoscalers_ask_for_metrics_that_exist,
    autoscalers_go_down_slowly,
    autoscalers_do_not_take_silence_for_rest,
    autoscalers_have_a_target,
)
