"""The metrics in Prometheus' form. Nothing is counted here: each scrape looks at the verifier once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import assert_never, cast

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from cloud_verifier.telemetry import own_names, trust_names, vllm_names
from cloud_verifier.telemetry.histogram import Histogram
from cloud_verifier.telemetry.metric import Metric, Value
from cloud_verifier.telemetry.snapshot import Snapshot

METRICS: tuple[Metric, ...] = (*own_names.METRICS, *trust_names.METRICS, *vllm_names.METRICS)
"""Every metric whose name is known beforehand."""

ENGINE_NAME = re.compile(r"[a-z][a-z0-9_]*")

Labels = dict[str, str]


class VerifierCollector(Collector):
    """Yields every metric of what `take` returns; its own ones and the engine's."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take

    def collect(self) -> Iterator[Family]:
        snapshot = self._take()
        vllms = {"model_name": snapshot.target.name, "engine": "0"}
        for metric in METRICS:
            labels = vllms if metric.name.startswith(vllm_names.PREFIX) else {}
            yield family(metric, metric.value(snapshot), labels)
        for name, value in snapshot.engine.items():
            if ENGINE_NAME.fullmatch(name):  # one that is not would spoil the whole page
                yield family(engine_metric(name, isinstance(value, Mapping)), value, {})


def registry(take: Callable[[], Snapshot]) -> CollectorRegistry:
    """A verifier's own registry: its metrics, and on Linux the process' memory, time and files."""
    found = CollectorRegistry(auto_describe=False)
    found.register(VerifierCollector(take))
    ProcessCollector(registry=found)
    return found


def engine_metric(name: str, by_reason: bool = False) -> Metric:
    """How a figure of `ReportsStats` is told."""
    kind, stem = ("counter", name.removesuffix("_total")) if name.endswith("_total") else ("gauge", name)
    return Metric(
        f"forerun_engine_{stem}",
        "counter" if kind == "counter" else "gauge",
        "Told by the engine.",
        lambda snapshot: snapshot.engine[name],
        "reason" if by_reason else "",
    )


def family(metric: Metric, value: Value, constant: Labels) -> Family:
    """One metric with its samples, each labelled with `constant` too."""
    names, values = list(constant), list(constant.values())
    text = metric.meaning
    if isinstance(value, Histogram):
        distribution = HistogramMetricFamily(metric.name, text, labels=names)
        total = value.total if math.isfinite(value.total) else None  # one that nobody keeps
        distribution.add_metric(values, value.buckets(), total)
        return distribution
    if metric.kind == "info":
        info = InfoMetricFamily(metric.name, text, labels=names)
        info.add_metric(values, dict(cast(Mapping[str, str], value)))
        return info
    names += [metric.label] if metric.label else []
    by_label = cast(Mapping[str, float], value) if isinstance(value, Mapping) else {"": value}
    found = _plain(metric)(metric.name, text, labels=names)
    for label, number in by_label.items():
        found.add_metric([*values, label] if metric.label else values, float(number))
    return found


def _plain(metric: Metric) -> type[CounterMetricFamily] | type[GaugeMetricFamily]:
    match metric.kind:
        case "counter":
            return CounterMetricFamily
        case "gauge":
            return GaugeMetricFamily
        case "histogram" | "info":
            raise TypeError(f"{metric.name} is a {metric.kind} and its value is none")
        case _:
            assert_never(metric.kind)
